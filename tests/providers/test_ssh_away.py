"""Hosts that cannot be reached, or lost their power: what stays, what is lost, and what they end by themselves."""

import asyncio
import time
from pathlib import Path

import pytest

from agent.script import agent_script
from domain.errors import Ambiguous, NoCapacity
from domain.spec import Workload
from providers.base import OfferQuery, ProviderState
from providers.ssh import scripts
from tests.providers.conformance import until_gone
from tests.providers.control_plane import ControlPlane
from tests.providers.ssh_fleet import DIRECTORY, FleetHostProcess, RunningFleet
from tests.providers.ssh_fleet.jobs import cleaned, make_spec, offer_of, started, state_of, state_once_reachable

pytestmark = [pytest.mark.e2e, pytest.mark.containers]
TIMER = f"{DIRECTORY}/[k]eeper-"
"""The host's kill timer among its processes."""


class TestAHostThatIsAway:
    async def test_its_jobs_stay_through_a_partition_and_go_on_after_it(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
    ) -> None:
        control, socket = plane
        control.workload = Workload(argv=("bash", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done; echo over"))
        host = fleet.hosts["one"]
        provider = fleet.provider(
            fleet.fleet("one", "two"), tmp_path, owner, probe_seconds=0, connects=1, connect_seconds=1
        )
        async with cleaned(provider):
            spec = make_spec(owner, agent_script(), socket)
            handle = await started(provider, spec, host.address)
            offer = await offer_of(provider, host.address)
            await control.until(lambda: "/agent/v1/started" in control.paths(spec.attempt_id), 30)
            host.cut()
            try:
                offers = asyncio.create_task(provider.offers(OfferQuery()))
                answers = await asyncio.gather(
                    provider.get(handle),
                    provider.list_owned(),
                    provider.find(spec.attempt_id),
                    provider.terminate(handle),
                    return_exceptions=True,
                )
                assert [type(answer) for answer in answers if not isinstance(answer, Ambiguous)] == []
                with pytest.raises(NoCapacity):
                    await provider.create(make_spec(owner), offer)
                assert {offer.provider_sku.partition("/")[0] for offer in await offers} == {fleet.hosts["two"].address}
            finally:
                host.heal()
            assert await state_once_reachable(provider, handle) is ProviderState.RUNNING
            host.podman("exec", handle.provider_id, "touch", "/tmp/go")
            await control.until(lambda: spec.attempt_id in control.exits, 60)
            assert control.exits[spec.attempt_id]["status"] == "0"
            assert control.output[spec.attempt_id, "stdout"] == b"over\n"

    async def test_a_job_that_ends_meanwhile_tells_its_exit_code_afterwards(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
    ) -> None:
        control, socket = plane
        control.workload = Workload(argv=("bash", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done; echo over; exit 7"))
        host = fleet.hosts["one"]
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner, connect_seconds=1)) as provider:
            spec = make_spec(owner, agent_script(), socket)
            handle = await started(provider, spec, host.address)
            await control.until(lambda: "/agent/v1/started" in control.paths(spec.attempt_id), 30)
            host.cut()
            try:
                host.podman("exec", handle.provider_id, "touch", "/tmp/go")
                runs = r"while grep -qs 'until \[ -e' /proc/[0-9]*/cmdline; do sleep 0.05; done"
                host.podman("exec", handle.provider_id, "bash", "-c", runs)
                assert spec.attempt_id not in control.exits
            finally:
                host.heal()
            await control.until(lambda: spec.attempt_id in control.exits, 60)
            assert control.exits[spec.attempt_id]["status"] == "7"
            assert control.output[spec.attempt_id, "stdout"] == b"over\n"

    async def test_its_jobs_are_lost_with_its_power_and_new_ones_run_after_it(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
    ) -> None:
        control, socket = plane
        host = fleet.hosts["two"]
        async with cleaned(
            fleet.provider(fleet.fleet("two", cpu_slots=1), tmp_path, owner, probe_seconds=0)
        ) as provider:
            handle = await started(provider, make_spec(owner, socket=socket), host.address)
            assert await state_of(provider, handle) is ProviderState.RUNNING
            host.power_off()
            host.start()
            view = await provider.get(handle)
            assert view is not None
            assert view.state is ProviderState.FAILED
            assert "the machine or the engine was restarted" in view.message
            assert [listed.state for listed in await provider.list_owned()] == [ProviderState.FAILED]
            assert not (await offer_of(provider, host.address)).available  # the lease stands until it is deleted
            await until_gone(provider, handle)
            spec = make_spec(owner, agent_script(), socket)
            await started(provider, spec, host.address)
            await control.until(lambda: spec.attempt_id in control.exits, 30)
            assert control.output[spec.attempt_id, "stdout"] == b"hello from the fleet\n"

    async def test_agents_find_a_control_plane_that_was_restarted(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
    ) -> None:
        control, socket = plane
        control.workload = Workload(argv=("bash", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done; echo over"))
        host = fleet.hosts["two"]
        first = fleet.provider(fleet.fleet("two"), tmp_path, owner)
        spec = make_spec(owner, agent_script(), socket)
        handle = await started(first, spec, host.address)
        await control.until(lambda: "/agent/v1/started" in control.paths(spec.attempt_id), 30)
        await first.close()
        async with cleaned(fleet.provider(fleet.fleet("two"), tmp_path, owner, agent_socket=socket)) as second:
            await second.list_owned()
            host.podman("exec", handle.provider_id, "touch", "/tmp/go")
            await control.until(lambda: spec.attempt_id in control.exits, 60)
            assert control.output[spec.attempt_id, "stdout"] == b"over\n"


class TestAControlPlaneThatDoesNotComeBack:
    """What a host ends by itself, and what it then says to whoever asks."""

    async def test_its_jobs_end_with_their_lifetime_and_nothing_else_does(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        host = fleet.hosts["one"]
        fleet_of_one = fleet.fleet("one", cpu_slots=2)
        async with cleaned(fleet.provider(fleet_of_one, tmp_path, f"{owner}-other")) as other:
            kept = await started(other, make_spec(f"{owner}-other"), host.address)
            provider = fleet.provider(fleet_of_one, tmp_path, owner, connects=1, connect_seconds=1)
            doomed = await started(provider, make_spec(owner, lifetime_seconds=7200), host.address)
            assert 0 <= time.time() + 7200 - host.until(doomed.provider_id) < 60
            host.cut()
            try:
                await provider.close()
                host.spend_lifetime(doomed.provider_id)
                await until_alone(host, kept.provider_id)
            finally:
                host.heal()
            async with cleaned(fleet.provider(fleet_of_one, tmp_path, owner)) as later:
                view = await later.get(doomed)
                assert view is not None
                assert (view.state, view.message) == (
                    ProviderState.FAILED, "the host ended it by itself: its time was over",
                )  # fmt: skip
                assert [listed.state for listed in await later.list_owned()] == [ProviderState.FAILED]
                assert await state_of(other, kept) is ProviderState.RUNNING
                # What it held is free, although nobody has asked for its removal yet.
                spare = await later.create(make_spec(owner), await offer_of(later, host.address))
                for handle in (doomed, spare):
                    await until_gone(later, handle)
                assert await later.list_owned() == []

    async def test_a_job_without_limits_lives_while_its_control_plane_asks(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        host = fleet.hosts["one"]
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner)) as provider:
            handle = await started(provider, make_spec(owner), host.address)
            link = provider._hosts[host.address].link
            seen = f"{DIRECTORY}/seen/{scripts.digest(owner)}"
            for hours_ago, state in ((24 * 6, ProviderState.RUNNING), (24 * 8, ProviderState.FAILED)):
                touch = f"touch --date='{hours_ago} hours ago' {seen}; sleep 0.6"
                assert (await link.run(touch, timeout=10)).returncode == 0
                async with asyncio.timeout(20):
                    while (found := await state_of(provider, handle)) is not state:
                        assert found is not ProviderState.PENDING
                        await asyncio.sleep(0.1)

    async def test_the_timer_ends_with_the_last_lease(self, fleet: RunningFleet, tmp_path: Path, owner: str) -> None:
        host = fleet.hosts["one"]
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner)) as provider:
            handle = await provider.create(make_spec(owner), await offer_of(provider, host.address))
            host.command("pgrep", "-f", TIMER)
            await until_gone(provider, handle)
            host.command("timeout", "20", "bash", "-c", f"while pgrep -f '{TIMER}'; do sleep 0.05; done")

    async def test_where_systemd_ends_what_a_session_leaves_the_timer_is_a_unit_of_its_own(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        host = fleet.hosts["two"]
        program = host.root / "bin" / "systemd-run"
        program.write_text('#!/bin/bash\necho "$@" >/run/unit\nshift 3\nsetsid -f "$@" </dev/null >/dev/null 2>&1\n')
        program.chmod(0o755)
        host.command("mkdir", "-p", "/run/systemd/system")
        try:
            async with cleaned(fleet.provider(fleet.fleet("two"), tmp_path, owner)) as provider:
                await provider.create(make_spec(owner), await offer_of(provider, host.address))
                assert host.command("cat", "/run/unit").startswith("--quiet --collect --description=")
                host.command("pgrep", "-f", TIMER)
        finally:
            program.unlink()
            host.command("rm", "-r", "/run/systemd", "/run/unit")


async def until_alone(host: FleetHostProcess, name: str) -> None:
    """Until the host has no container but that one."""
    async with asyncio.timeout(20):
        while True:
            names = await asyncio.to_thread(host.podman, "ps", "--all", "--format={{.Names}}")
            if names.split() == [name]:
                return
            await asyncio.sleep(0.1)
