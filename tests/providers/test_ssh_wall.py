"""What a workload on a host of a fleet cannot reach, and what it does."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from domain.errors import Ambiguous
from providers.base import OfferQuery, ProviderState
from providers.ssh.provider import SshProvider
from tests.providers.conformance import no_progress
from tests.providers.ssh_fleet import FleetHostProcess, RunningFleet
from tests.providers.ssh_fleet.jobs import cleaned, make_spec, started, state_of

pytestmark = [pytest.mark.e2e, pytest.mark.containers]

METADATA, OUTSIDE = "169.254.169.254", "198.51.100.7"
PORT = 8099
# Begins when it is told to, and its address of IPv6 may be used.
TRY = f"""
until [ -e /tmp/go ]; do sleep 0.05; done
while [ -s /proc/net/if_inet6 ] && ! grep -q ' 80 *eth0' /proc/net/if_inet6; do sleep 0.05; done
attempt() {{
  if timeout 1 bash -c "exec 3<>/dev/tcp/$1/{PORT}" 2>/dev/null; then echo "reached $1"; else echo "failed $1"; fi
}}
"""


@contextmanager
def listening(namespace: str) -> Iterator[None]:
    """A web server on every address of a network namespace."""
    argv = [sys.executable, "-u", "-m", "http.server", "--directory=/srv", "--bind=::", str(PORT)]
    inside = ["nsenter", f"--net={namespace}", *argv]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert b"Serving" in server.stdout.readline()
        yield
        server.kill()


@pytest.fixture
def neighbours(fleet: RunningFleet) -> Iterator[None]:
    """`gate` is what `one` reaches: the fleet's own network, a cloud's metadata, and the world."""
    one, gate = fleet.hosts["one"], fleet.hosts["gate"]
    with ExitStack() as stack:
        for address in (METADATA, OUTSIDE):
            gate.ip("address", "add", f"{address}/32", "dev", "lo")
            stack.callback(gate.ip, "address", "delete", f"{address}/32", "dev", "lo")
            one.ip("route", "add", address, "via", gate.address)
            stack.callback(one.ip, "route", "delete", address)
        # Where the packet filter does not see what stays on a bridge, as on most hosts.
        one.ip("netns", "exec", one.name, "sysctl", "-q", "net.bridge.bridge-nf-call-iptables=0")
        for host in (one, gate):
            stack.enter_context(listening(f"/run/netns/{host.name}"))
        yield


@contextmanager
def no_packet_filter(host: FleetHostProcess) -> Iterator[None]:
    """As on a host whose kernel or installation has none."""
    program = host.root / "bin" / "iptables-restore"
    program.write_text("#!/bin/bash\necho 'iptables: no such table' >&2\nexit 3\n")
    program.chmod(0o755)
    yield
    program.unlink()


@pytest.fixture
def no_rules(fleet: RunningFleet) -> Iterator[None]:
    with no_packet_filter(fleet.hosts["one"]):
        yield


async def forget_rules(provider: SshProvider, host: FleetHostProcess) -> None:
    """They are then laid, or not, by the next look."""
    await provider._hosts[host.address].link.run("rm -f /run/headrace-wall-*", timeout=10)


async def settled(host: FleetHostProcess, bridge: str) -> str:
    """The link-local address of a bridge, once the kernel lets it be used."""
    async with asyncio.timeout(10):
        while True:
            words = host.ip("-6", "-o", "address", "show", "dev", bridge, "scope", "link").split()
            if "tentative" not in words:
                return words[3]
            await asyncio.sleep(0.05)


async def tried(provider: SshProvider, owner: str, host: FleetHostProcess, addresses: list[str]) -> dict[str, str]:
    """What came of each address, tried from a workload."""
    script = TRY + "".join(f"attempt '{address}' &\n" for address in addresses) + "wait"
    handle = await started(provider, make_spec(owner, script), host.address)
    host.command(host.engine, "exec", handle.provider_id, "touch", "/tmp/go")
    async with asyncio.timeout(30):
        while True:
            view = await provider.get(handle)
            assert view is not None
            if view.state is ProviderState.EXITED:
                lines = (await provider.logs(handle, None)).text.splitlines()
                return {address: word for word, address in map(str.split, lines)}
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("neighbours")
class TestAWorkload:
    async def test_reaches_the_world_and_nothing_of_its_host_or_its_hosts_network(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        one, gate = fleet.hosts["one"], fleet.hosts["gate"]
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner)) as provider:
            await forget_rules(provider, one)
            other = await started(provider, make_spec(owner), one.address)
            form = (
                "{{.NetworkSettings.SandboxKey}} {{range .NetworkSettings.Networks}}{{.IPAddress}} {{.Gateway}}{{end}}"
            )
            namespace, neighbour, gateway = one.podman("inspect", f"--format={form}", other.provider_id).split()
            bridge = one.podman("network", "inspect", "--format={{.NetworkInterface}}", "headrace-fleet").strip()
            inner = (await settled(one, bridge)).partition("/")[0]
            closed = [one.address, gateway, f"{inner}%eth0", neighbour, gate.address, METADATA, "fd00:ec2::254"]
            with listening(one.path(namespace)):
                found = await tried(provider, owner, one, [*closed, OUTSIDE])
            assert found == {**dict.fromkeys(closed, "failed"), OUTSIDE: "reached"}
            assert all(offer.network_isolated for offer in await provider.offers(OfferQuery()))
            assert neighbour

    async def test_reaches_a_private_network_that_an_administrator_allows(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        one, gate = fleet.hosts["one"], fleet.hosts["gate"]
        allowed = (f"{gate.address}/32",)
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner, workload_networks=allowed)) as provider:
            found = await tried(provider, owner, one, [gate.address, one.address, METADATA])
            assert [address for address, word in found.items() if word == "reached"] == [gate.address]

    @pytest.mark.usefixtures("no_rules")
    async def test_is_not_kept_from_anything_where_there_are_no_rules_and_offers_say_so(
        self, fleet: RunningFleet, tmp_path: Path, owner: str
    ) -> None:
        one, gate = fleet.hosts["one"], fleet.hosts["gate"]
        async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner)) as provider:
            await forget_rules(provider, one)
            (report,) = await provider.probe()
            assert report.message.endswith("; jobs can reach the host's own network (iptables: no such table)")
            assert [offer.network_isolated for offer in await provider.offers(OfferQuery())] == [False]
            tries = [one.address, gate.address, METADATA]
            assert await tried(provider, owner, one, tries) == dict.fromkeys(tries, "reached")
            await forget_rules(provider, one)


async def test_a_job_that_was_offered_rules_does_not_start_without_them(
    fleet: RunningFleet, tmp_path: Path, owner: str
) -> None:
    one, spec = fleet.hosts["one"], make_spec(owner)
    async with cleaned(fleet.provider(fleet.fleet("one"), tmp_path, owner)) as provider:
        assert [offer.network_isolated for offer in await provider.offers(OfferQuery())] == [True]
        with no_packet_filter(one):
            await forget_rules(provider, one)
            with pytest.raises(Ambiguous, match=r"lays no packet rules around jobs: iptables: no such table$"):
                await started(provider, spec, one.address)
            assert one.podman("ps", "--all", "--quiet") == ""
        await forget_rules(provider, one)
        (handle,) = await provider.find(spec.attempt_id)
        await provider.provision(handle, spec, no_progress)
        assert await state_of(provider, handle) is ProviderState.RUNNING


async def test_rules_are_around_dockers_network_as_well(docker_fleet: RunningFleet, tmp_path: Path, owner: str) -> None:
    host, fleet = docker_fleet.hosts["whale"], docker_fleet.fleet("whale")
    host.ip("address", "add", f"{METADATA}/32", "dev", "lo")
    try:
        async with cleaned(docker_fleet.provider(fleet, tmp_path, owner)) as provider:
            with listening(f"/run/netns/{host.name}"):
                tries = [host.address, METADATA, docker_fleet.gateway]
                assert await tried(provider, owner, host, tries) == dict.fromkeys(tries, "failed")
            assert [offer.network_isolated for offer in await provider.offers(OfferQuery())] == [True]
    finally:
        host.ip("address", "delete", f"{METADATA}/32", "dev", "lo")
