"""What a container on a rented machine reaches: the world, and nothing of the machine, its metadata and the private
networks around it. By real rules in real network namespaces."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from tests.agent.machine import Machine, Plane, script_for

METADATA = ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254")
WORLD, NEIGHBOUR, RESOLVER, PLANE, FILES = "198.51.100.7", "10.8.0.1", "10.8.0.2", "10.8.0.3", "10.8.7.1"
AROUND = (*METADATA, WORLD, NEIGHBOUR, RESOLVER, PLANE, FILES)
MACHINE, CONTAINER = "10.9.0.1", "10.9.0.2"
# Without the second in which IPv6 looks for who else may have an address.
_NAMESPACE = "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad; echo ready; exec sleep 60"
_ANSWERS = """
import socket, sys, time
for host in sys.argv[1:]:
    for port in (53, 80):
        server = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        server.listen()
        globals()[f"{host} {port}"] = server
print("ready", flush=True)
time.sleep(60)
"""
_ASKS = """
import itertools, socket, sys
from concurrent.futures import ThreadPoolExecutor

def ask(where):
    try:
        socket.create_connection(where, 0.3).close()
        return f"{where[0]} {where[1]}\\n"
    except OSError:
        return ""

with ThreadPoolExecutor(20) as threads:
    print(end="".join(threads.map(ask, itertools.product(sys.argv[1:], (53, 80)))))
"""


class Network:
    """Three namespaces: the machine routes between a container and what is around."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.machine, self.container, self.around = (
            self.start("unshare", "--net", "sh", "-c", _NAMESPACE) for _ in range(3)
        )

    def start(self, *command: str) -> int:
        """The process, once it is ready: before, it may not be in its namespace."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    def run(self, where: int, *command: str) -> str:
        return subprocess.run(self.inside(where, *command), check=True, capture_output=True, text=True).stdout

    def inside(self, where: int, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{where}/ns/net", *command]

    def connect(self) -> None:
        self.run(self.machine, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; "
                 "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")  # fmt: skip
        for index, (other, addresses) in enumerate(((self.container, ()), (self.around, AROUND))):
            link = ("docker0", "eth0")[index]
            v4, v6 = f"10.9.{index}", f"fd09:{index}:"
            self.run(self.machine, "ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", str(other))
            for where, device, last in ((self.machine, link, 1), (other, "eth0", 2)):
                self.run(where, "ip", "address", "add", f"{v4}.{last}/24", "dev", device)
                self.run(where, "ip", "address", "add", f"{v6}:{last}/64", "dev", device, "nodad")
                self.run(where, "ip", "link", "set", device, "up")
            self.run(other, "ip", "route", "add", "default", "via", f"{v4}.1")
            self.run(other, "ip", "route", "add", "default", "via", f"{v6}:1")
            for address in addresses:
                self.run(other, "ip", "address", "add", address, "dev", "eth0", *(("nodad",) if ":" in address else ()))
                self.run(self.machine, "ip", "route", "add", address, "via", f"{v6}:2" if ":" in address else f"{v4}.2")

    def answer(self) -> None:
        for where, addresses in ((self.around, AROUND), (self.machine, (MACHINE,)), (self.container, (CONTAINER,))):
            self.start(*self.inside(where, "python3", "-c", _ANSWERS, *addresses))
        # The links come up a moment later.
        for _ in range(20):
            if self.reached_from(self.container) == both(*AROUND, MACHINE):
                return

    def reached_from(self, where: int, addresses: Sequence[str] = (*AROUND, MACHINE)) -> list[str]:
        return self.run(where, "python3", "-c", _ASKS, *addresses).splitlines()


def both(*addresses: str) -> list[str]:
    """The two ports at which each address answers."""
    return [f"{address} {port}" for address in addresses for port in (53, 80)]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.connect()
        network.answer()
        yield network
    finally:
        for process in network.processes:
            process.kill()
            process.wait()


def real(machine: Machine) -> None:
    for name in ("iptables", "ip6tables"):
        machine.tool(name, f'#!/bin/bash\nexec {shutil.which(name)} "$@"\n')


@pytest.mark.containers
def test_a_container_reaches_the_world_and_of_what_is_around_its_machine_only_what_it_needs(
    machine: Machine, network: Network
) -> None:
    assert network.reached_from(network.container) == both(*AROUND, MACHINE)
    real(machine)
    machine.tool("curl", "#!/bin/bash\nexit 7\n")  # nobody answers there
    (machine.path / "etc").mkdir()
    machine.says("etc/resolv.conf", f"nameserver {RESOLVER}\n")
    script = script_for(Plane(f"http://{PLANE}"), networks=("10.8.7.0/24",))
    machine.boot(script, under=network.inside(network.machine))
    assert "run --detach" in machine.read("argv")
    assert network.reached_from(network.container) == [
        f"{METADATA[0]} 53",
        *both(WORLD),
        f"{RESOLVER} 53",
        f"{PLANE} 80",
        *both(FILES),
    ]
    assert network.reached_from(network.machine, AROUND) == both(*AROUND)
    # Who is let in gets replies, from a private network too.
    assert network.reached_from(network.around, [CONTAINER]) == both(CONTAINER)


@pytest.mark.parametrize(("table", "what"), [("raw", "the machine's metadata"), ("mangle", "the machine's network")])
def test_a_machine_in_a_cloud_that_cannot_close_what_is_around_it_runs_nothing(
    machine: Machine, plane: Plane, table: str, what: str
) -> None:
    machine.tool("iptables", f'#!/bin/bash\n[[ "$*" != *"-t {table}"* ]]\n')
    machine.boot(script_for(plane, cloud="gcp"))
    assert plane.lines("fault") == [f"containers cannot be kept from {what}: iptables fails"]
    assert "run --detach" not in machine.read("argv")
