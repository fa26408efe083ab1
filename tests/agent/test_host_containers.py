"""The host agent against a real container engine and the real agent routes: from a fresh machine to an exit report."""

import asyncio
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from agent.host import Cloud, HostSpec, host_script
from agent.script import agent_script
from domain import images
from domain.registry_auth import engine_config
from domain.spec import RegistryCredential, Workload
from providers.local.host_image import HOST_IMAGE
from tests.agent.metadata import metadata_service
from tests.agent.site import Attempt, Site
from tests.providers.local_support import load_host_image, podman, setup_of
from tests.support.registry import PASSWORD, RIGHT, WRONG, Registry, serving

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def podman_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory: how podman works here is found out once."""
    return tmp_path_factory.mktemp("podman")


async def boot(
    machine: Path,
    attempt: Attempt,
    url: str,
    podman_data: Path,
    image: str = HOST_IMAGE,
    configuration: str = "",
    *,
    private: bool = False,
    cloud: Cloud | None = None,
    metadata: str = "http://127.0.0.1:9",
) -> str:
    """Runs the host agent to the end of its workload; its console. `docker` is podman, in the machine's network."""
    setup = setup_of(podman_data)
    load_host_image(setup)
    environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in setup.environment)
    engine = f"env {environment} {configuration} {shlex.join(setup.argv)}"
    tools = {
        "docker": "[[ -z $DOCKER_CONFIG ]] || export REGISTRY_AUTH_FILE=$DOCKER_CONFIG/config.json\n"
        'if [[ $1 == run ]]; then shift; set -- run --network=host "$@"; fi\n'
        f'exec {engine} "$@"\n',
        "shutdown": f'echo "$*" >>{machine}/shutdowns\n',
        "iptables": ":\n",
        "ip6tables": ":\n",
        "sleep": ":\n",
    }
    (machine / "bin").mkdir()
    (machine / "proc").mkdir()
    (machine / "proc/meminfo").write_text("MemTotal: 200000 kB\n")
    for name, text in tools.items():
        (machine / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (machine / "bin" / name).chmod(0o755)
    script = machine / "part-001"
    token = SecretStr(attempt.token)
    spec = HostSpec(url, token, attempt.instance.id, image, agent_script(), private, cloud=cloud)
    script.write_text(host_script(spec))
    host = await asyncio.create_subprocess_exec(
        "bash", str(script), "run", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={
            "PATH": f"{machine / 'bin'}:{os.environ['PATH']}",
            "HEADRACE_HOST_ROOT": str(machine),
            "HEADRACE_HOST_METADATA": metadata,
        },
    )  # fmt: skip
    try:
        console, _ = await asyncio.wait_for(host.communicate(), 90)
    finally:
        if host.returncode is None:
            host.kill()
        podman(setup, "rm", "--force", "--time=0", attempt.instance.id)
    return console.decode()


async def test_a_machine_runs_its_workload_and_powers_itself_off(
    site: Site, url: str, tmp_path: Path, podman_data: Path
) -> None:
    attempt = site.attempt(Workload(argv=("bash", "-c", "echo out; echo $HEADRACE_TOKEN$HEADRACE_URL; exit 7")))
    console = await boot(tmp_path, attempt, url, podman_data)
    report = (await attempt.row()).exit_report
    assert report is not None, console
    assert report["status"] == 7
    assert bytes(site.logs.accepted[attempt.instance.id, "stdout"]) == b"out\n\n"
    assert attempt.token not in console
    assert (tmp_path / "shutdowns").read_text().splitlines()[-1].startswith("-P +1 ")


async def test_a_workload_is_told_by_sigterm_that_its_machine_is_taken_back_and_may_end_well(
    site: Site, url: str, tmp_path: Path, podman_data: Path
) -> None:
    attempt = site.attempt(Workload(argv=("bash", "-c", "trap 'echo saved; exit' TERM; while :; do sleep 0.05; done")))
    with metadata_service() as metadata:
        metadata.answers["/latest/meta-data/spot/instance-action"] = (
            '{"action": "terminate", "time": "2026-11-30T23:00:00Z"}'
        )
        console = await boot(tmp_path, attempt, url, podman_data, cloud="aws", metadata=metadata.url)
    report = (await attempt.row()).exit_report
    assert report is not None, console
    assert (report["status"], report["interrupted"]) == (0, True)
    assert attempt.output() == b"saved\n"
    assert "interruption_noticed" in [event.type for event in await attempt.events()]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serving(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def private_image(registry: Registry, podman_data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In the registry only: no copy of it is on this machine."""
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(registry.root / "registries.conf"))
    setup = setup_of(podman_data)
    image = registry.image("org/private:v1")
    (registry.root / "auth.json").write_text(engine_config(images.parse(image), RIGHT, docker=False))
    assert podman(setup, "tag", load_host_image(setup), image).returncode == 0
    pushed = podman(setup, "push", f"--authfile={registry.root / 'auth.json'}", image)
    assert pushed.returncode == 0, pushed.stderr
    podman(setup, "untag", image, image)
    yield image
    podman(setup, "untag", image, image)


@pytest.mark.parametrize(
    ("credential", "reason"),
    [(RIGHT, None), (WRONG, "authentication required"), (None, "authentication required")],
    ids=["right", "wrong", "missing"],
)
async def test_a_private_image_is_pulled_with_what_the_token_was_exchanged_for(
    site: Site, url: str, tmp_path: Path, podman_data: Path, private_image: str,
    registry: Registry, credential: RegistryCredential | None, reason: str | None,
) -> None:  # fmt: skip
    attempt = site.attempt(Workload(argv=("true",)), image=private_image, registry=credential)
    configuration = f"CONTAINERS_REGISTRIES_CONF={registry.root / 'registries.conf'}"
    console = await boot(
        tmp_path, attempt, url, podman_data, private_image, configuration, private=credential is not None
    )
    row = await attempt.row()
    if reason is None:
        assert row.exit_report is not None, console
        assert row.exit_report["status"] == 0
    else:
        assert row.reason_code == "image_pull_failed"
        assert row.reason_message is not None
        assert f"{private_image} cannot be pulled" in row.reason_message
        assert reason in row.reason_message
        assert (tmp_path / "shutdowns").read_text().splitlines()[-1].startswith("-P +1 ")
    told = "\n".join(line.message for line in await attempt.lines("system"))
    for secret in (PASSWORD, "canary-wrong"):
        assert secret not in console + told + (row.reason_message or "")
