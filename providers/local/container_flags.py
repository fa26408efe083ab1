"""The command line of a container: what it may do, what it sees, and what it is bounded by."""

import json
from dataclasses import dataclass

from providers.local.container_view import LABEL_GPUS, LABEL_PORTS
from providers.local.engine import AGENT_MOUNT, Launch

KEPT_CAPABILITIES = (
    "AUDIT_WRITE",  # sshd records logins
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",  # apt and su change to other users
    "SETUID",
    "SYS_CHROOT",  # sshd separates privileges
)
"""What root inside needs for apt, pip, chown and sshd. Not kept: NET_RAW (forged source addresses would pass the
firewall rules), NET_ADMIN (routes to the metadata service), MKNOD, SETFCAP, SETPCAP, SYS_ADMIN and the others."""

PIDS_LIMIT = 4096
LOG_BYTES = "10m"
"""Of the agent's own output: a workload's output goes to the control plane, never through the engine."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine on this machine is called, found out by running a container."""

    name: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    network: str = ""
    """The network that workloads join; empty is the engine's default."""
    ports_network: str = ""
    """The one that they join when they publish ports."""
    enforces_disk: bool = False
    takes_gpus: bool = False

    @property
    def is_docker(self) -> bool:
        return self.name == "docker"


def run_arguments(setup: Setup, launch: Launch, image: str) -> list[str]:
    """The arguments of `run` for a workload. Values of the environment are inherited by name, never in the argv."""
    network = launch.network
    if network is None:
        network = setup.ports_network if launch.ports else setup.network
    arguments = ["run", "--detach", "--pull=never", f"--name={launch.name}", "--restart=no"]
    labels = dict(launch.labels)
    if launch.ports:
        labels[LABEL_PORTS] = json.dumps([port.model_dump() for port in launch.ports])
    if launch.gpu_ids:
        labels[LABEL_GPUS] = ",".join(launch.gpu_ids)
    arguments += [f"--label={key}={value}" for key, value in sorted(labels.items())]
    arguments += ["--cap-drop=ALL", *(f"--cap-add={name}" for name in KEPT_CAPABILITIES)]
    arguments += ["--security-opt=no-new-privileges", f"--pids-limit={PIDS_LIMIT}"]
    if launch.cpus:
        arguments.append(f"--cpus={launch.cpus:g}")
    if launch.memory_bytes:
        # Equal to the memory: no swap. Half of it may be shared memory, which data loaders pass their batches in.
        arguments += [f"--memory={launch.memory_bytes}b", f"--memory-swap={launch.memory_bytes}b"]
        arguments.append(f"--shm-size={launch.memory_bytes // 2}b")
    if launch.disk_gb and setup.enforces_disk:
        arguments.append(f"--storage-opt=size={launch.disk_gb}G")
    arguments += gpu_arguments(setup.name, launch.gpu_ids)
    if network:
        arguments.append(f"--network={network}")
    if network not in ("host", "none"):
        arguments += [f"--publish={launch.publish_address}::{port.container_port}" for port in launch.ports]
    driver = "json-file" if setup.is_docker else "k8s-file"
    arguments += [f"--log-driver={driver}", f"--log-opt=max-size={LOG_BYTES}"]
    arguments.append(f"--volume={launch.agent_directory}:{AGENT_MOUNT}:ro")
    arguments += [f"--env={name}" for name in sorted(launch.environment)]
    return [*arguments, "--entrypoint=bash", image, f"{AGENT_MOUNT}/{launch.script_name}"]


def gpu_arguments(engine: str, ids: tuple[str, ...]) -> list[str]:
    """Docker's own request, podman's by the container device interface: both fail when the device is not there.

    Podman's `--gpus` is accepted without a GPU, so it proves nothing and is not used.
    """
    if not ids:
        return []
    if engine == "docker":
        return ["--gpus", "all" if ids == ("all",) else '"device=' + ",".join(ids) + '"']
    return [f"--device=nvidia.com/gpu={identifier}" for identifier in ids]
