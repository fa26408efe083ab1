"""A container on a rented machine reaches no metadata of it, by real rules in real network namespaces."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.agent.machine import Machine, Plane, script_for

METADATA = ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254")
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

with ThreadPoolExecutor(6) as threads:
    print(end="".join(threads.map(ask, itertools.product(sys.argv[1:], (53, 80)))))
"""


class Network:
    """Three namespaces: the machine routes between a container and the metadata."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.machine, self.container, self.metadata = (
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
        for index, (other, addresses) in enumerate(((self.container, ()), (self.metadata, METADATA))):
            v4, v6 = f"10.9.{index}", f"fd09:{index}:"
            self.run(
                self.machine, "ip", "link", "add", f"v{index}", "type", "veth", "peer", "eth0", "netns", str(other)
            )
            for where, device, last in ((self.machine, f"v{index}", 1), (other, "eth0", 2)):
                self.run(where, "ip", "address", "add", f"{v4}.{last}/24", "dev", device)
                self.run(where, "ip", "address", "add", f"{v6}:{last}/64", "dev", device, "nodad")
                self.run(where, "ip", "link", "set", device, "up")
            self.run(other, "ip", "route", "add", "default", "via", f"{v4}.1")
            self.run(other, "ip", "route", "add", "default", "via", f"{v6}:1")
            for address in addresses:
                self.run(other, "ip", "address", "add", address, "dev", "eth0", *(("nodad",) if ":" in address else ()))
                self.run(self.machine, "ip", "route", "add", address, "via", f"{v6}:2" if ":" in address else f"{v4}.2")

    def answer(self) -> None:
        self.start(*self.inside(self.metadata, "python3", "-c", _ANSWERS, *METADATA))
        # The links come up a moment later.
        for _ in range(20):
            if len(self.reached_from(self.container)) == 2 * len(METADATA):
                return

    def reached_from(self, where: int) -> list[str]:
        return self.run(where, "python3", "-c", _ASKS, *METADATA).splitlines()


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
def test_a_container_reaches_the_resolver_and_no_metadata_while_the_machine_does(
    machine: Machine, network: Network
) -> None:
    everything = [f"{address} {port}" for address in METADATA for port in (53, 80)]
    assert network.reached_from(network.container) == everything
    real(machine)
    machine.boot(script_for(Plane("http://127.0.0.1:9")), under=network.inside(network.machine))
    assert "run --detach" in machine.read("argv")
    assert network.reached_from(network.container) == [name for name in everything if name.endswith("53")]
    assert network.reached_from(network.machine) == everything


def test_a_machine_in_a_cloud_that_cannot_hide_its_metadata_runs_nothing(machine: Machine, plane: Plane) -> None:
    machine.tool("iptables", "#!/bin/bash\nexit 1\n")
    machine.boot(script_for(plane, cloud="gcp"))
    assert plane.lines("fault") == ["containers cannot be kept from the machine's metadata: iptables fails"]
    assert "run --detach" not in machine.read("argv")
