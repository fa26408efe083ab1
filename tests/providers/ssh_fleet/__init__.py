"""Hosts of a fleet on this machine: real sshd and podman, each in namespaces of its own, on a bridge."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from providers.base import HostKeys, ProviderContext
from providers.local.host_image import HOST_IMAGE
from providers.local.podman_config import tuned
from providers.ssh.provider import SshProvider
from providers.ssh.settings import Bastion, Fleet, FleetHost
from tests.providers.conformance import OWNER
from tests.providers.local_support import load_host_image, podman, require_podman, setup_of

DIRECTORY = "/srv/headrace"
_READY_SECONDS = 30.0

SSHD = """
Port 22
HostKey {root}/host_key
AuthorizedKeysFile {authorized}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PidFile none
# Hosts have this machine's /tmp in common.
SetEnv TMPDIR=/srv
{more}
"""


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@dataclass
class FleetHostProcess:
    """One running host."""

    name: str
    address: str
    root: Path
    interface: str
    image: Path | None
    engine: str = "podman"
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Powers it on; what its disk holds is there again."""
        script = str(Path(__file__).parent / "host.sh")
        log = (self.root / "log").open("ab")
        self.process = subprocess.Popen(
            [
                "nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork",
                "--kill-child", "--mount-proc", "--propagation", "private", "bash", script, str(self.root),
            ],
            env={**os.environ, "HOST_IMAGE": str(self.image or ""), "HOST_ENGINE": self.engine},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=1) as link:
                if link.recv(4) == b"SSH-":
                    return
            failed = time.monotonic() > deadline or self.process.poll() is not None
            assert not failed, (self.root / "log").read_text()
            time.sleep(0.02)

    def power_off(self) -> None:
        """All of its processes end at once, as without power."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def configure(self, more: str, authorized: Path) -> None:
        """Its sshd's configuration; it holds from the next start on."""
        text = SSHD.format(root=self.root, authorized=authorized, more=more)
        (self.root / "sshd_config").write_text(text)

    def new_key(self) -> None:
        """A host key like that of a machine that was installed anew."""
        (self.root / "host_key").unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.root / "host_key"))

    def cut(self) -> None:
        """A partition: what runs there runs on."""
        _run("ip", "link", "set", self.interface, "down")

    def heal(self) -> None:
        _run("ip", "link", "set", self.interface, "up")

    def until(self, name: str) -> int:
        """When the lifetime of an attempt is over, in seconds of the epoch."""
        return int(self.command("head", "-n", "1", f"{DIRECTORY}/leases/{name}/lease").split()[3])

    def spend_lifetime(self, name: str) -> None:
        """As if its time had passed."""
        until = str(self.until(name))
        self.command("sed", "-i", f"1s/ {until} / 1 /", f"{DIRECTORY}/leases/{name}/lease")

    def ip(self, *arguments: str) -> str:
        """Its network, as its administrator would change it."""
        argv = ["nsenter", f"--net=/run/netns/{self.name}", "ip", *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    @property
    def init(self) -> str:
        """The process id, out here, of its first process."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0]

    def path(self, inside: str) -> str:
        """Where a file of the host is seen from out here."""
        return f"/proc/{self.init}/root{inside}"

    def podman(self, *arguments: str) -> str:
        return self.command("podman", *arguments)

    def command(self, *argv: str) -> str:
        """What a command says inside the host."""
        answer = subprocess.run(
            ["nsenter", "--target", self.init, "--mount", "--uts", "--ipc", "--net", "--pid", *argv],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@dataclass
class RunningFleet:
    """The hosts, and the key that they let in."""

    root: Path
    gateway: str
    """This machine's own address on the hosts' bridge."""
    hosts: dict[str, FleetHostProcess] = field(default_factory=dict)

    @property
    def private_key(self) -> str:
        return (self.root / "key").read_text()

    def fleet(self, *names: str, bastion: str | None = None, **changes: Any) -> Fleet:
        values: dict[str, Any] = {
            "user": "root",
            "private_key": self.private_key,
            "hosts": tuple(FleetHost(hostname=self.hosts[name].address) for name in names),
            "bastion": Bastion(hostname=self.hosts[bastion].address) if bastion else None,
            "price_usd_hr": "2.50",
            "cpu_slots": 8,
            **changes,
        }
        return Fleet.model_validate(values)

    def provider(
        self,
        fleet: Fleet,
        data_dir: Path,
        owner: str = OWNER,
        *,
        connection: str = "conn_fleet",
        host_keys: HostKeys | None = None,
        **options: Any,
    ) -> SshProvider:
        options = {
            "directory": DIRECTORY,
            "connect_seconds": 5,
            "keepalive_seconds": 0.5,
            "forward_seconds": 0.3,
            "keeper_seconds": 0.2,
            **options,
        }
        return SshProvider(ProviderContext(connection, owner, str(data_dir), options, host_keys), fleet)


@contextlib.contextmanager
def running_fleet(root: Path, *names: str, engine: str = "podman") -> Iterator[RunningFleet]:
    """Hosts of these names, on a bridge of their own."""
    require_podman()
    if engine == "docker" and shutil.which("dockerd", path="/usr/sbin:/sbin:/usr/bin:/usr/local/bin") is None:
        pytest.skip("dockerd is not installed: tests/prepare installs it")
    if os.geteuid() != 0 or shutil.which("sshd", path="/usr/sbin:/sbin") is None:
        pytest.skip("hosts of a fleet need root and sshd: tests/prepare installs it")
    unique = uuid.uuid4().hex[:6]
    subnet = f"10.{200 + int(unique[:2], 16) % 12}.{int(unique[2:4], 16)}"
    bridge = f"hr{unique}"
    fleet = RunningFleet(root, f"{subnet}.1")
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(root / "key"))
    image = _archive(root)
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{subnet}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names):
            namespace, interface = f"{name}-{unique}", f"hr{unique}v{number}"
            host = FleetHostProcess(namespace, f"{subnet}.{10 + number}", root / name, interface, image, engine)
            fleet.hosts[name] = host
            _plug(host, bridge)
            (host.root / "etc").mkdir(parents=True)
            _configure_podman(host.root / "etc")
            host.new_key()
            host.configure("", root / "key.pub")
            host.start()
        yield fleet
    finally:
        for host in fleet.hosts.values():
            host.power_off()
            subprocess.run(["ip", "netns", "delete", host.name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def _plug(host: FleetHostProcess, bridge: str) -> None:
    inside = ["nsenter", f"--net=/run/netns/{host.name}", "ip"]
    _run("ip", "netns", "add", host.name)
    _run("ip", "link", "add", host.interface, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _run("ip", "link", "set", host.interface, "master", bridge, "up")
    _run(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run(*inside, "link", "set", "lo", "up")


def _configure_podman(directory: Path) -> None:
    """As an operator of a machine like this one would have to, for podman to run at all."""
    tuned(directory, bridge=False, lean=False)
    (directory / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (directory / "registries.conf").write_text("")


def _archive(root: Path) -> Path:
    """The image of this machine's own programs, as a file that hosts load."""
    setup = setup_of(root)
    load_host_image(setup)
    target = root / "image.tar"
    saved = podman(setup, "save", "--output", str(target), HOST_IMAGE)
    assert saved.returncode == 0, saved.stderr
    return target
