"""Jobs on a host with docker: a real daemon of the host's own."""

import asyncio
import time
from pathlib import Path

import pytest

from agent.script import agent_script
from domain.spec import Port, Workload
from providers.base import ProviderState
from tests.providers.conformance import until_gone
from tests.providers.control_plane import ControlPlane
from tests.providers.ssh_fleet import RunningFleet
from tests.providers.ssh_fleet.jobs import cleaned, make_spec, started, state_of

pytestmark = [pytest.mark.e2e, pytest.mark.containers]


async def test_a_job_runs_to_its_exit_code_and_leaves_nothing(
    docker_fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
) -> None:
    control, socket = plane
    control.workload = Workload(argv=("bash", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; echo hello; exit 3"))
    host = docker_fleet.hosts["whale"]
    async with cleaned(docker_fleet.provider(docker_fleet.fleet("whale"), tmp_path, owner)) as provider:
        (report,) = await provider.probe()
        assert (report.status, str(report.engine).partition(" ")[0]) == ("no_gpu", "docker")
        spec = make_spec(owner, agent_script(), socket, ports=(Port(name="web", container_port=8080, protocol="http"),))
        handle = await started(provider, spec, host.address)
        view = await provider.get(handle)
        assert view is not None
        assert [(port.name, port.host) for port in view.endpoints] == [("web", host.address)]
        host.command("docker", "exec", handle.provider_id, "touch", "/tmp/go")
        await control.until(lambda: spec.attempt_id in control.exits, 30)
        assert control.exits[spec.attempt_id]["status"] == "3"
        assert control.output[spec.attempt_id, "stdout"] == b"hello\n"
        await until_gone(provider, handle)
        assert await provider.list_owned() == []
        assert host.command("docker", "ps", "--all", "--quiet") == ""


async def test_a_job_without_its_control_plane_ends_with_its_lifetime(
    docker_fleet: RunningFleet, tmp_path: Path, owner: str
) -> None:
    host = docker_fleet.hosts["whale"]
    first = docker_fleet.provider(docker_fleet.fleet("whale"), tmp_path, owner)
    handle = await started(first, make_spec(owner, lifetime_seconds=7200), host.address)
    await first.close()
    host.spend_lifetime(handle.provider_id)
    host.command("bash", "-c", "timeout 20 bash -c 'while [ \"$(docker ps --all --quiet)\" ]; do sleep 0.1; done'")
    async with cleaned(docker_fleet.provider(docker_fleet.fleet("whale"), tmp_path, owner)) as later:
        view = await later.get(handle)
        assert view is not None
        assert (view.state, view.message) == (ProviderState.FAILED, "the host ended it by itself: its time was over")


async def test_a_job_is_lost_with_the_power_of_its_host(docker_fleet: RunningFleet, tmp_path: Path, owner: str) -> None:
    host = docker_fleet.hosts["whale"]
    async with cleaned(docker_fleet.provider(docker_fleet.fleet("whale"), tmp_path, owner)) as provider:
        handle = await started(provider, make_spec(owner), host.address)
        assert await state_of(provider, handle) is ProviderState.RUNNING
        host.power_off()
        await asyncio.sleep(1 - time.time() % 1)  # a kernel tells its start in whole seconds
        host.start()
        view = await provider.get(handle)
        assert view is not None
        assert (view.state, view.exit_code) == (ProviderState.FAILED, None)
        assert "the machine or the engine was restarted" in view.message
        await until_gone(provider, handle)
