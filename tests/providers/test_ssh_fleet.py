"""A fleet of three hosts with a real sshd and podman each, one of them a bastion: what goes wrong on a network."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.script import agent_script
from domain.errors import AuthError, NoCapacity
from providers.base import Handle, InstanceSpec, OfferQuery, TerminateState
from providers.ssh.hostkeys import HostKeysInMemory
from providers.ssh.link import HostKeyChanged, HostUnreachable
from providers.ssh.settings import FleetHost, SshOptions
from tests.providers.conformance import until_gone
from tests.providers.control_plane import ControlPlane
from tests.providers.ssh_fleet import DIRECTORY, RunningFleet
from tests.providers.ssh_fleet.jobs import cleaned, make_spec, offer_of, started

pytestmark = [pytest.mark.e2e, pytest.mark.containers]
JOBS_AT_ONCE = 40
SHORT_SECONDS = 0.1


class TestTheWayThere:
    async def test_jobs_run_behind_a_bastion_and_their_agents_reach_the_control_plane(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
    ) -> None:
        control, socket = plane
        async with cleaned(fleet.provider(fleet.fleet("one", "two", bastion="gate"), tmp_path, owner)) as provider:
            assert (await provider.verify()).status == "ok"
            spec = make_spec(owner, agent_script(), socket)
            handle = await started(provider, spec, fleet.hosts["two"].address)
            await control.until(lambda: spec.attempt_id in control.exits, 30)
            assert control.exits[spec.attempt_id]["status"] == "0"
            assert control.output[spec.attempt_id, "stdout"] == b"hello from the fleet\n"
            await until_gone(provider, handle)
            assert fleet.hosts["two"].podman("ps", "--all", "--quiet") == ""
            link = provider._hosts[fleet.hosts["two"].address].link
            assert (await link.run(f"ls {DIRECTORY}/leases", timeout=10)).stdout == ""

    async def test_a_wrong_key_is_reported_and_disables_a_fleet_of_one(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        strange = (fleet.hosts["one"].root / "host_key").read_text()
        provider = fleet.provider(fleet.fleet("one", private_key=strange), tmp_path, owner)
        report = await provider.verify()
        assert report.status == "auth"
        assert "refuses the key of root" in report.message
        with pytest.raises(AuthError):
            await provider.list_owned()
        await provider.close()

    async def test_a_key_that_is_none_is_reported(self, fleet: RunningFleet, tmp_path: Path, owner: str) -> None:
        provider = fleet.provider(fleet.fleet("one", private_key="no key at all, canary"), tmp_path, owner)
        report = await provider.verify()
        assert report.status == "auth"
        assert "canary" not in report.message
        await provider.close()

    async def test_a_changed_host_key_is_refused_and_reported(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        host = fleet.hosts["one"]
        pins = HostKeysInMemory()
        first = fleet.provider(fleet.fleet("one"), tmp_path, owner, host_keys=pins)
        (seen,) = await first.probe()
        assert seen.status == "no_gpu"
        assert seen.host_key == " ".join((host.root / "host_key.pub").read_text().split()[:2])
        await first.close()
        host.power_off()
        host.new_key()
        host.start()
        second = fleet.provider(fleet.fleet("one"), tmp_path, owner, host_keys=pins)
        (report,) = await second.probe()
        assert (report.status, report.reachable) == ("host_key", True)
        assert (await second.verify()).status == "auth"
        with pytest.raises(HostKeyChanged, match="another host key"):
            await second.list_owned()
        await second.close()

    async def test_of_two_that_see_a_host_first_the_one_that_sees_another_key_refuses_it(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        class PinnedMeanwhile(HostKeysInMemory):
            async def pinned(self, address: str) -> str | None:
                return None

        pins = PinnedMeanwhile({f"{fleet.hosts['one'].address}:22": "ssh-ed25519 AAAA"})
        provider = fleet.provider(fleet.fleet("one"), tmp_path, owner, host_keys=pins)
        with pytest.raises(HostKeyChanged):
            await provider.list_owned()
        await provider.close()

    async def test_an_address_outside_the_allowed_networks_is_not_connected_to(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        provider = fleet.provider(fleet.fleet("one"), tmp_path, owner, allowed_networks=("192.0.2.0/24",))
        (report,) = await provider.probe()
        assert "outside the networks" in report.message
        assert not report.usable
        await provider.close()

    async def test_more_commands_than_the_host_has_sessions_for_wait_for_each_other(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        host = fleet.hosts["one"]
        host.power_off()
        host.configure("MaxSessions 2", fleet.root / "key.pub")
        host.start()
        try:
            provider = fleet.provider(fleet.fleet("one"), tmp_path, owner, connects=12)
            link = provider._hosts[host.address].link
            answers = await asyncio.gather(*(link.run(f"sleep 0.2; echo {n}", timeout=20) for n in range(8)))
            assert [answer.stdout for answer in answers] == [f"{n}\n" for n in range(8)]
            await provider.close()
        finally:
            host.power_off()
            host.configure("", fleet.root / "key.pub")
            host.start()


@dataclass
class Line:
    """A port of `gate` that leads to `one`, as if it were far away."""

    relay: "subprocess.Popen[bytes]"
    port: int = 2022

    def delay(self, seconds: float) -> None:
        """So many seconds each way, from now on."""
        assert self.relay.stdin is not None
        self.relay.stdin.write(f"{seconds}\n".encode())
        self.relay.stdin.flush()


@pytest.fixture
def line(fleet: RunningFleet) -> Iterator[Line]:
    gate, one = fleet.hosts["gate"], fleet.hosts["one"]
    program = str(Path(__file__).parent / "ssh_fleet" / "relay.py")
    argv = ["nsenter", f"--net=/run/netns/{gate.name}", sys.executable, program, gate.address, "2022", one.address]
    with subprocess.Popen([*argv, str(SHORT_SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"listening\n"
        yield Line(relay)
        relay.kill()


class TestALineWithFourSecondsOfLatency:
    async def test_is_slow_and_no_host_that_is_away(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, line: Line
    ) -> None:
        defaults = SshOptions()
        options = {"keepalive_seconds": defaults.keepalive_seconds, "connect_seconds": defaults.connect_seconds}
        provider = fleet.provider(
            fleet.fleet("gate", port=line.port), tmp_path, owner, **options, offers_seconds=0.1, probe_seconds=0
        )
        link = provider._hosts[fleet.hosts["gate"].address].link
        began = time.monotonic()
        await link.connection()
        # What a connection takes is nearly all waiting: so many times there and back, and the default has room for
        # them at four seconds each. Making one like that would take this test a minute.
        round_trips = (time.monotonic() - began) / (2 * SHORT_SECONDS)
        assert round_trips * 4 < defaults.greet_seconds
        line.delay(2)
        with pytest.raises(HostUnreachable, match="was not done within"):
            await provider.offers(OfferQuery())
        # One after the other a command takes three times there and back; the keepalives have gone unanswered meanwhile.
        assert (await link.run("echo here", timeout=1)).stdout == "here\n"
        line.delay(0)
        await provider.close()

    async def test_keeps_nobody_from_learning_of_the_other_hosts(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, line: Line
    ) -> None:
        line.delay(2)
        gate, one = fleet.hosts["gate"].address, fleet.hosts["one"].address
        hosts = (FleetHost(hostname=gate, port=line.port), FleetHost(hostname=one))
        provider = fleet.provider(fleet.fleet(hosts=hosts), tmp_path, owner, report_seconds=2)
        verified = await provider.verify()
        assert verified.status == "ok"
        assert [(report.hostname, report.status) for report in verified.hosts] == [
            (gate, "unreachable"),
            (one, "no_gpu"),
        ]
        assert f"{gate}:{line.port} was not done within 2 s" in verified.message
        await provider.close()


class TestManyJobs:
    async def test_run_at_once_on_all_hosts_and_leave_nothing(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, plane: tuple[ControlPlane, str]
    ) -> None:
        control, socket = plane
        names = ("gate", "one", "two")  # the bastion is a host as well
        slots = JOBS_AT_ONCE // len(names) + 1
        fleet_of_three = fleet.fleet(*names, bastion="gate", cpu_slots=slots)
        async with cleaned(fleet.provider(fleet_of_three, tmp_path, owner)) as provider:

            async def job(number: int) -> Handle:
                spec = make_spec(owner, agent_script(), socket)
                handle = await started(provider, spec, fleet.hosts[names[number % len(names)]].address)
                await control.until(lambda: spec.attempt_id in control.exits, 120)
                assert control.exits[spec.attempt_id]["status"] == "0"
                return handle

            handles = await asyncio.gather(*map(job, range(JOBS_AT_ONCE)))
            assert len({handle.provider_id for handle in handles}) == JOBS_AT_ONCE
            with pytest.raises(NoCapacity):  # every slot is held until its job is removed
                await provider.create(make_spec(owner), await offer_of(provider, fleet.hosts["gate"].address))
            ends = await asyncio.gather(*map(provider.terminate, handles))
            assert set(ends) == {TerminateState.GONE}
            assert await provider.list_owned() == []
            for name in names:
                assert fleet.hosts[name].podman("ps", "--all", "--quiet") == ""

    async def test_of_another_organization_wait_unless_an_administrator_lets_them(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner)) as provider:
            offer = await offer_of(provider, fleet.hosts["one"].address)
            await provider.create(make_spec(owner), offer)
            with pytest.raises(NoCapacity, match="another organization"):
                await provider.create(make_spec(owner, org_id="org_other"), offer)
            lenient = fleet.provider(fleet.fleet("one"), tmp_path, owner, multi_tenant=True)
            await lenient.create(make_spec(owner, org_id="org_other"), offer)
            await lenient.close()


class TestGpus:
    """The driver's program is a stand-in: this machine has no GPU. What is checked is who gets which device."""

    @pytest.fixture
    def smi(self, fleet: RunningFleet) -> Iterator[Path]:
        program = fleet.hosts["two"].root / "bin" / "nvidia-smi"
        program.write_text(
            "#!/bin/bash\ncase $1 in *driver*) echo 550.54 ;; *)\n"
            'for n in 0 1 2 3; do echo "NVIDIA H100 80GB HBM3, 81559, GPU-$n"; done ;; esac\n'
        )
        program.chmod(0o755)
        yield program
        program.unlink()

    async def test_are_leased_by_device_and_reported(
        self, fleet: RunningFleet, tmp_path: Path, owner: str, smi: Path
    ) -> None:
        provider = fleet.provider(fleet.fleet("two"), tmp_path, owner, probe_seconds=0)
        async with cleaned(provider):
            (report,) = await provider.probe()
            assert (report.status, report.message) == ("ok", "4x H100 (80GB), 320GB total")
            assert report.driver == "550.54"
            offers = {o.gpu_count: o for o in await provider.offers(OfferQuery())}
            assert {count: str(offer.price_usd_hr) for count, offer in offers.items()} == {
                1: "0.625000", 2: "1.250000", 3: "1.875000", 4: "2.500000",
            }  # fmt: skip

            def want(count: int) -> InstanceSpec:
                return make_spec(owner, accelerator="nvidia-h100-80gb", gpu_count=count)

            first, second = await asyncio.gather(
                provider.create(want(1), offers[1]), provider.create(want(2), offers[2])
            )
            leases = await provider._hosts[fleet.hosts["two"].address].leases.all(owner)
            held = [gpu for lease in leases for gpu in lease.gpu_ids]
            assert len(held) == len(set(held)) == 3
            with pytest.raises(NoCapacity):
                await provider.create(want(2), offers[2])
            left = {o.gpu_count: o.available for o in await provider.offers(OfferQuery())}
            assert left == {1: True, 2: False, 3: False, 4: False}
            for handle in (first, second):
                assert await provider.terminate(handle) is TerminateState.GONE
            assert all(offer.available for offer in await provider.offers(OfferQuery()))

    @pytest.fixture
    def broken_driver(self, smi: Path) -> None:
        smi.write_text("#!/bin/bash\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")

    @pytest.mark.usefixtures("broken_driver")
    async def test_whose_driver_fails_are_not_taken_for_none(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        provider = fleet.provider(fleet.fleet("two"), tmp_path, owner)
        (report,) = await provider.probe()
        assert report.status == "probe_failed"
        assert "version mismatch" in report.message
        assert await provider.offers(OfferQuery()) == []
        await provider.close()
