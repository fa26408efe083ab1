"""Private images on hosts of a fleet: right, wrong and missing credentials at a real registry that wants a password."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.errors import ImagePullFailed
from domain.spec import RegistryCredential
from providers.base import ProviderState
from providers.local.host_image import HOST_IMAGE
from providers.local.images import auth_file, qualify
from tests.providers.ssh_fleet import FleetHostProcess, RunningFleet
from tests.providers.ssh_fleet.jobs import cleaned, make_spec, started, state_of
from tests.support.registry import PASSWORD, RIGHT, USER, WRONG, Registry, serving

pytestmark = [pytest.mark.e2e, pytest.mark.containers]
SECRETS = (PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())


@pytest.fixture(scope="module", params=["podman", "docker"])
def store(request: pytest.FixtureRequest) -> RunningFleet:
    """The hosts with an engine of each kind."""
    running: RunningFleet = request.getfixturevalue({"podman": "fleet", "docker": "docker_fleet"}[request.param])
    return running


@pytest.fixture(scope="module")
def host(store: RunningFleet) -> FleetHostProcess:
    return store.hosts.get("whale") or store.hosts["one"]


@pytest.fixture(scope="module")
def registry(
    store: RunningFleet, host: FleetHostProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    with serving(tmp_path_factory.mktemp("registry"), store.gateway) as registry:
        (host.root / "etc" / "registries.conf").write_text((registry.root / "registries.conf").read_text())
        yield registry


@pytest.fixture
def private_image(host: FleetHostProcess, registry: Registry) -> Iterator[str]:
    """In the registry only: the host has no copy of it."""
    image, secrets = registry.image("org/private:v1"), host.root / "etc" / "push"
    secrets.mkdir(exist_ok=True)
    docker = host.engine == "docker"
    (secrets / "config.json").write_text(auth_file(qualify(image), RIGHT, docker=docker))
    inside = "/etc/containers/push"
    host.command(host.engine, "tag", HOST_IMAGE, image)
    if docker:
        host.command("docker", f"--config={inside}", "push", image)
    else:
        host.command("podman", "push", f"--authfile={inside}/config.json", image)
    (secrets / "config.json").unlink()
    host.command(host.engine, "rmi", image)
    yield image
    host.command("bash", "-c", f"{host.engine} rmi --force {image} || true")


async def test_a_password_runs_its_own_jobs_and_is_left_nowhere(
    store: RunningFleet, host: FleetHostProcess, tmp_path: Path, owner: str, private_image: str
) -> None:
    hosts = store.fleet("whale" if host.engine == "docker" else "one")
    async with cleaned(store.provider(hosts, tmp_path, owner, multi_tenant=True)) as provider:

        async def start(credential: RegistryCredential | None, organization: str = "org_fleet") -> ProviderState | None:
            spec = make_spec(owner, image=private_image, registry=credential, org_id=organization)
            return await state_of(provider, await started(provider, spec, host.address))

        for credential in (None, WRONG):
            with pytest.raises(ImagePullFailed, match=r"unauthorized|authentication|no basic auth") as caught:
                await start(credential)
            assert "canary" not in caught.value.message
        right = asyncio.create_task(start(RIGHT))
        while not right.done():
            assert_on_no_command_line()
            await asyncio.wait([right], timeout=0.02)
        assert await right is ProviderState.RUNNING
        # The copy that is there now is the one organization's, whatever the other one brings.
        for credential in (None, WRONG):
            with pytest.raises(ImagePullFailed):
                await start(credential, "org_other")
        assert await start(RIGHT, "org_other") is ProviderState.RUNNING
        left = host.command("bash", "-c", f"grep -rlsF -e '{SECRETS[1]}' /srv /root /run || true")
        assert left == ""


def assert_on_no_command_line() -> None:
    """No process of this machine, its hosts' among them, has the password among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes()
        except OSError:  # it ended meanwhile
            continue
        assert not any(secret.encode() in arguments for secret in SECRETS), path
