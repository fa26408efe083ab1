"""Which engine runs workloads here. An engine is taken only after it has run a container, or a sandboxed process."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from providers.local import podman_config
from providers.local.container_flags import Setup, gpu_arguments
from providers.local.firewall import DOCKER_SUBNET, PODMAN_SUBNET, Firewall
from providers.local.gpus import discover
from providers.local.host_image import PROBE_IMAGE, load
from providers.local.host_tree import HostTreeError, minimal_tree
from providers.local.process import Completed, clean_environment, run_blocking
from providers.local.sandbox import probe as probe_sandbox

AUTO, DOCKER, PODMAN, SANDBOX = "auto", "docker", "podman", "sandbox"
_PROBE_PROGRAM = "test"
_DOCKER_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_QUOTA_FILESYSTEMS = ("xfs", "btrfs", "zfs")
_GPU_DEVICE = "/dev/nvidiactl"


@dataclass(frozen=True, slots=True)
class Selection:
    """The engine that was taken, and a reason for each one that was not. `setup` is None for the sandbox."""

    name: str | None
    setup: Setup | None
    rejected: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    """What the isolation of this machine lacks, for the log."""

    def explain(self) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self.rejected) or "nothing was rejected"


_cache: dict[tuple[str, str, str], Selection] = {}
_cache_lock = threading.Lock()
FIREWALL = Firewall()
"""One per process: every data directory needs the same rules."""


def select(engine: str, network: str, directory: Path) -> Selection:
    """Chooses once per process, engine setting and directory. Blocks for about a second the first time.

    That nothing works is not remembered: a daemon may be starting.
    """
    key = (engine, network, str(directory))
    with _cache_lock:
        if key in _cache:
            return _cache[key]
        chosen = _select(engine, network, directory)
        if chosen.name is not None:
            _cache[key] = chosen
        return chosen


def _select(engine: str, network: str, directory: Path) -> Selection:
    rejected: list[tuple[str, str]] = []
    for name in (DOCKER, PODMAN) if engine == AUTO else (engine,):
        if name == SANDBOX:
            continue
        candidates = _docker(network) if name == DOCKER else _podman(network, directory)
        for setup in candidates:
            problem = _probe(setup)
            if problem is None:
                setup, notes = _complete(setup, network)
                return Selection(name, setup, tuple(rejected), notes)
            rejected.append((name, problem))
        if not any(name == refused for refused, _ in rejected):
            rejected.append((name, "no engine of this kind was found"))
    if engine in (AUTO, SANDBOX):
        problem = probe_sandbox()
        if problem is None:
            return Selection(SANDBOX, None, tuple(rejected))
        rejected.append((SANDBOX, problem))
    return Selection(None, None, tuple(rejected))


def _docker(network: str) -> Iterator[Setup]:
    socket = docker_socket()
    if socket is None:
        return
    joined = "headrace" if network == "bridge" else network
    setup = Setup(name=DOCKER, argv=("docker", "--host", f"unix://{socket}"), network=joined, ports_network=joined)
    if network == "bridge":
        _call(
            setup, "network", "create", f"--subnet={DOCKER_SUBNET}",
            "--opt=com.docker.network.bridge.enable_icc=false", joined,
        )  # fmt: skip
    yield setup


def docker_socket() -> str | None:
    """The path of a docker daemon's socket on this machine: DOCKER_HOST's, or the usual one where it exists."""
    named = os.environ.get("DOCKER_HOST", "")
    if named:
        return named.removeprefix("unix://") if named.startswith("unix://") else None
    return next((path for path in _DOCKER_SOCKETS if os.path.exists(path)), None)


def _podman(network: str, directory: Path) -> Iterator[Setup]:
    """Ways to call podman, the quickest first."""
    if run_blocking(["podman", "--version"], environment=clean_environment({})).returncode != 0:
        return
    bridge = network == "bridge"
    named = "" if bridge else network
    if os.geteuid() == 0:
        if bridge and podman_config.has_cni_plugins():
            yield podman_config.tuned(directory, bridge=True, lean=True)
        setup = podman_config.tuned(directory, bridge=bridge, lean=False)
        if bridge:
            _call(setup, "network", "create", f"--subnet={PODMAN_SUBNET}", "--disable-dns", podman_config.NETWORK)
        yield setup if bridge else replace(setup, network=named, ports_network=named)
    yield replace(podman_config.plain(), network=named, ports_network=named)


def _probe(setup: Setup) -> str | None:
    """Runs a container; the reason why that did not work, or None."""
    answer = _run_probe(setup)
    if answer.returncode != 0 and _call(setup, "image", "inspect", PROBE_IMAGE).returncode != 0:
        try:
            load(setup, PROBE_IMAGE, minimal_tree(_PROBE_PROGRAM))
        except HostTreeError as error:
            return str(error)
        answer = _run_probe(setup)
    return None if answer.returncode == 0 else answer.last_line


def _run_probe(setup: Setup, *options: str, path: str = "/") -> Completed:
    name = f"headrace-probe-{os.getpid()}-{threading.get_ident()}"
    joined = [f"--network={setup.network}"] if setup.network else []
    try:
        return _call(
            setup, "run", "--pull=never", f"--name={name}", "--label=headrace.probe=1", *joined, *options,
            PROBE_IMAGE, _PROBE_PROGRAM, "-e", path,
        )  # fmt: skip
    finally:
        # Never `--rm`: it has made an engine answer 0 for a container that failed.
        _call(setup, "rm", "--force", name)


def _complete(setup: Setup, network: str) -> tuple[Setup, tuple[str, ...]]:
    """What else this engine can do here, and what its isolation lacks."""
    notes: list[str] = []
    if network == "bridge" and setup.network:
        problem = FIREWALL.ensure()
        if problem is not None:
            notes.append(f"no packet rules ({problem}): workloads can reach this machine's services on 0.0.0.0")
    elif network == "bridge":
        notes.append("without root the engine's own network is used: cloud metadata is not blocked")
    elif network == "host":
        notes.append("workloads share this machine's network: for a single user's machine only")
    gpus = bool(discover()) and _takes_gpus(setup)
    disk = (
        _backing_filesystem(setup) in _QUOTA_FILESYSTEMS and _run_probe(setup, "--storage-opt=size=1G").returncode == 0
    )
    return replace(setup, takes_gpus=gpus, enforces_disk=disk), tuple(notes)


def _takes_gpus(setup: Setup) -> bool:
    """Whether a device asked for is there inside: some engines accept the request and pass nothing."""
    return _run_probe(setup, *gpu_arguments(setup.name, ("all",)), path=_GPU_DEVICE).returncode == 0


def _backing_filesystem(setup: Setup) -> str:
    form = "{{json .DriverStatus}}" if setup.is_docker else "{{json .Store.GraphStatus}}"
    text = _call(setup, "info", f"--format={form}").stdout.lower()
    return next((name for name in _QUOTA_FILESYSTEMS if name in text), "")


def _call(setup: Setup, *arguments: str) -> Completed:
    environment = clean_environment(dict(setup.environment))
    return run_blocking([*setup.argv, *arguments], environment=environment, timeout=60)
