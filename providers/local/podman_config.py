"""Podman as Headrace calls it: a configuration of our own, so that a bare machine works and starts are quick.

Debian's podman on a machine without systemd and without CAP_SYS_RESOURCE runs nothing as it comes: limits cannot be
raised, the cgroup manager and the journal are missing. The values here need neither.
"""

import ipaddress
import json
import resource
import shutil
from pathlib import Path

from providers.local.container_flags import Setup
from providers.local.firewall import PODMAN_SUBNET, split

NETWORK = "headrace"
PORTS_NETWORK = "headrace-ports"
_PLUGIN_DIRECTORIES = ("/usr/lib/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/opt/cni/bin")
_PLUGINS = ("ptp", "host-local", "portmap")

# Link-local is where clouds serve a machine's credentials.
_NOT_ROUTED = ("169.254.0.0/16", "127.0.0.0/8", "224.0.0.0/3")

_SPEED = (("GOGC", "off"),)
"""A start allocates little and lives 0.1 s: collecting garbage only costs time."""


def has_cni_plugins() -> bool:
    """Whether this machine has the plugins of the lean network."""
    return any(all(Path(d, plugin).exists() for plugin in _PLUGINS) for d in _PLUGIN_DIRECTORIES)


def tuned(directory: Path, *, bridge: bool, lean: bool) -> Setup:
    """Writes the configuration into `directory` and returns how to call podman with it.

    `bridge` asks for a network with a way out; `lean` makes it of two plugins instead of five, which saves a third of
    the time that a start takes. Without `lean` the network has to be created by the engine.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = ["[containers]", f"default_ulimits = [{_limits()}]", 'base_hosts_file = "none"', "http_proxy = false"]
    lines += ["[engine]", 'cgroup_manager = "cgroupfs"', 'events_logger = "file"']
    if shutil.which("runc", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"):
        lines.append('runtime = "runc"')
    if bridge and lean:
        networks = directory / "cni"
        networks.mkdir(exist_ok=True)
        for name, subnet in zip((NETWORK, PORTS_NETWORK), split(PODMAN_SUBNET), strict=True):
            _write(networks / f"{name}.conflist", _conflist(name, subnet, ports=name == PORTS_NETWORK))
        lines += ["[network]", 'network_backend = "cni"', f'network_config_dir = "{networks}"']
    configuration = directory / ("containers-lean.conf" if lean else "containers.conf")
    _write(configuration, "\n".join(lines) + "\n")
    return Setup(
        name="podman",
        argv=("podman",),
        environment=(("CONTAINERS_CONF", str(configuration)), *_SPEED),
        network=NETWORK if bridge else "",
        ports_network=PORTS_NETWORK if bridge and lean else NETWORK if bridge else "",
    )


def plain() -> Setup:
    """Podman as this machine configures it: what works without root."""
    return Setup(name="podman", argv=("podman",), environment=_SPEED)


def _limits() -> str:
    """Soft equal to hard: podman 4.3 mixes them up over its socket, and nothing here can raise a limit.

    Podman lowers its own limit of processes to 32,768 before it starts the runtime, which cannot raise it again.
    """
    wanted = (("nofile", resource.RLIMIT_NOFILE, 1_048_576), ("nproc", resource.RLIMIT_NPROC, 30_000))
    values = []
    for name, kind, most in wanted:
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
        values.append(f'"{name}={limit}:{limit}"')
    return ", ".join(values)


def _routes() -> list[str]:
    """Everything but `_NOT_ROUTED`, without a default route: workloads lack the capability to add one."""
    networks = [ipaddress.IPv4Network("0.0.0.0/0")]
    for hole in map(ipaddress.IPv4Network, _NOT_ROUTED):
        networks = [
            part
            for network in networks
            for part in (network.address_exclude(hole) if network.supernet_of(hole) else [network])
        ]
    return [str(network) for network in sorted(networks)]


def _conflist(name: str, subnet: str, *, ports: bool) -> str:
    """A pair of virtual interfaces for each container: no bridge, so containers share no wire."""
    routes = [{"dst": route} for route in _routes()]
    address = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": routes}
    plugins: list[dict[str, object]] = [{"type": "ptp", "ipMasq": False, "ipam": address}]
    if ports:
        plugins.append({"type": "portmap", "capabilities": {"portMappings": True}})
    return json.dumps({"cniVersion": "0.4.0", "name": name, "plugins": plugins}, indent=1)


def _write(path: Path, content: str) -> None:
    """Atomically: another process may be starting a container with it."""
    if path.exists() and path.read_text() == content:
        return
    draft = path.with_name(f".{path.name}")
    draft.write_text(content)
    draft.replace(path)
