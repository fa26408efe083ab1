"""Private images: right, wrong and missing credentials at a real registry that wants a password."""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from domain.errors import ImagePullFailed
from domain.spec import RegistryCredential
from providers.base import OfferQuery, ProviderState
from providers.local import LocalProvider
from providers.local.images import PrivateRepositories, auth_file, qualify
from tests.providers.local_support import (
    cleaned,
    load_host_image,
    make_local,
    make_spec,
    podman,
    quiet,
    setup_of,
    start,
    unique_owner,
    view_of,
)
from tests.support.registry import PASSWORD, RIGHT, USER, WRONG, Registry, serving


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serving(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
async def provider(
    registry: Registry, podman_data: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalProvider]:
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(registry.root / "registries.conf"))
    async with cleaned(make_local(podman_data, "podman", owner=unique_owner())) as provider:
        yield provider


@pytest.fixture
def private_image(registry: Registry, provider: LocalProvider, podman_data: Path) -> Iterator[str]:
    """In the registry only: no copy of it is on this machine."""
    setup = setup_of(podman_data)
    image = registry.image("org/private:v1")
    (registry.root / "auth.json").write_text(auth_file(qualify(image), RIGHT, docker=False))
    assert podman(setup, "tag", load_host_image(setup), image).returncode == 0
    pushed = podman(setup, "push", f"--authfile={registry.root / 'auth.json'}", image)
    assert pushed.returncode == 0, pushed.stderr
    podman(setup, "untag", image, image)
    yield image
    podman(setup, "untag", image, image)


@pytest.mark.containers
class TestPrivateImages:
    async def test_with_the_right_password_run_and_show_their_progress(
        self, provider: LocalProvider, podman_data: Path, private_image: str
    ) -> None:
        lines: list[str] = []

        async def progress(line: str) -> None:
            lines.append(line)

        spec = make_spec(podman_data, "sleep 60", image=private_image, registry=RIGHT)
        offer = (await provider.offers(OfferQuery()))[0]
        handle = await provider.provision(await provider.create(spec, offer), spec, progress)
        assert (await view_of(provider, handle)).state is ProviderState.RUNNING
        assert lines[0] == f"pulling {private_image}"
        assert lines[-1].startswith(f"pulled {private_image} in ")
        assert PASSWORD not in "\n".join(lines)
        left = {path.name for path in (podman_data / "local" / spec.attempt_id).iterdir()}
        assert left == {"record.json", "begun"}  # and no credential file

    @pytest.mark.parametrize("credential", [WRONG, None], ids=["wrong", "missing"])
    async def test_without_the_right_password_fail_and_say_why(
        self, provider: LocalProvider, podman_data: Path, private_image: str, credential: RegistryCredential | None
    ) -> None:
        with pytest.raises(ImagePullFailed) as caught:
            await start(provider, make_spec(podman_data, "true", image=private_image, registry=credential))
        assert "authentication required" in caught.value.message
        assert "canary" not in caught.value.message

    async def test_a_copy_on_this_machine_is_no_permission(
        self, provider: LocalProvider, podman_data: Path, private_image: str
    ) -> None:
        await start(provider, make_spec(podman_data, "sleep 60", image=private_image, registry=RIGHT))
        with pytest.raises(ImagePullFailed):
            await start(provider, make_spec(podman_data, "true", image=private_image))
        with pytest.raises(ImagePullFailed):
            await start(provider, make_spec(podman_data, "true", image=private_image, registry=WRONG))

    async def test_the_operators_own_login_is_not_the_jobs(
        self,
        provider: LocalProvider,
        podman_data: Path,
        private_image: str,
        registry: Registry,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(registry.root / "auth.json"))
        with pytest.raises(ImagePullFailed):
            await start(provider, make_spec(podman_data, "true", image=private_image))

    async def test_an_image_that_the_registry_does_not_have_is_named(
        self, provider: LocalProvider, podman_data: Path, registry: Registry
    ) -> None:
        image = registry.image("org/nothing:v9")
        with pytest.raises(ImagePullFailed, match="org/nothing:v9") as caught:
            await start(provider, make_spec(podman_data, "true", image=image, registry=RIGHT))
        assert "manifest unknown" in caught.value.message

    async def test_a_failed_pull_leaves_the_job_to_be_deleted(
        self, provider: LocalProvider, podman_data: Path, registry: Registry
    ) -> None:
        spec = make_spec(podman_data, "true", image=registry.image("org/nothing:v9"))
        handle = await provider.create(spec, (await provider.offers(OfferQuery()))[0])
        with pytest.raises(ImagePullFailed):
            await provider.provision(handle, spec, quiet)
        assert (await view_of(provider, handle)).state is ProviderState.PENDING
        await provider.terminate(handle)
        assert await provider.list_owned() == []


class TestCredentials:
    @pytest.mark.parametrize(
        ("image", "docker", "key"),
        [
            ("registry.example.com:5000/org/app:v1", False, "registry.example.com:5000"),
            ("localhost:5005/app", True, "localhost:5005"),
            ("ubuntu", False, "docker.io"),
            ("ubuntu", True, "https://index.docker.io/v1/"),
        ],
    )
    def test_are_for_the_images_own_registry_alone(self, image: str, docker: bool, key: str) -> None:
        written = json.loads(auth_file(qualify(image), RIGHT, docker=docker))
        assert list(written["auths"]) == [key]
        assert base64.b64decode(written["auths"][key]["auth"]).decode() == f"{USER}:{PASSWORD}"

    def test_are_none_at_all_for_a_job_without(self) -> None:
        assert json.loads(auth_file(qualify("ubuntu"), None, docker=False)) == {"auths": {}}

    def test_mark_a_repository_under_every_tag(self, tmp_path: Path) -> None:
        private = PrivateRepositories(tmp_path / "private")
        assert private.add(qualify("quay.io/org/app:v1"))
        assert not private.add(qualify("quay.io/org/app:v2"))
        assert qualify(f"quay.io/org/app@sha256:{'a' * 64}") in private
        assert qualify("quay.io/org/other:v1") not in private


@pytest.mark.parametrize(
    ("text", "qualified"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("org/app:v1", "docker.io/org/app:v1"),
        ("deadbeefcafe", "docker.io/library/deadbeefcafe:latest"),
        ("localhost/x", "localhost/x:latest"),
        ("host:5005/org/app", "host:5005/org/app:latest"),
        (f"name:tag@sha256:{'0' * 64}", f"docker.io/library/name@sha256:{'0' * 64}"),
    ],
)
def test_a_reference_names_its_registry(text: str, qualified: str) -> None:
    assert str(qualify(text)) == qualified


def test_what_is_no_reference_cannot_be_pulled() -> None:
    with pytest.raises(ImagePullFailed):
        qualify("https://user:secret@example.com/app")
