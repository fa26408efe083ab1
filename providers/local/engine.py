"""What runs workloads on this machine: a container engine or the sandbox, behind one small interface."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from domain.ids import AttemptId
from domain.spec import Port, RegistryCredential
from providers.base import Progress, ProviderState, PublishedPort

AGENT_MOUNT = "/run/headrace"
"""Where a workload finds the agent's directory, read-only: the script and the socket."""

FAULT_EXIT_CODE = 211
"""The agent's own exit code for an image that lacks what it needs; it prints the reason first."""
FAULT_PREFIX = "headrace-agent: fault:"


@dataclass(frozen=True, slots=True)
class Launch:
    """All that an engine needs to start one workload. `environment` holds a token: never in an argv."""

    attempt_id: AttemptId
    name: str
    directory: Path
    """The attempt's own directory, on this machine only: never mounted."""
    image: str
    agent_directory: Path
    script_name: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    ports: tuple[Port, ...] = ()
    publish_address: str = "127.0.0.1"
    network: str | None = None
    """The network that it joins, where that is found out for each start; None: the engine's own choice."""
    registry: RegistryCredential | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_gb: int | None = None
    """Enforced; None where the engine cannot."""
    gpu_ids: tuple[str, ...] = ()
    still_wanted: Callable[[], bool] = lambda: True
    """Asked last before the start and once after it: an attempt that was terminated meanwhile must not run."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A workload as its engine reports it."""

    name: str
    attempt_id: AttemptId | None
    state: ProviderState
    exit_code: int | None = None
    message: str = ""
    oom_killed: bool | None = None
    created_at: datetime | None = None
    endpoints: tuple[PublishedPort, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Starts, looks at and removes workloads by name. Every method may be repeated."""

    name: str
    resource_type: str
    notice: str | None
    """A sentence that the owner of a job must see, or None."""
    takes_image: bool
    """Whether the image of a job is what runs; the sandbox runs on this machine's own programs."""
    publishes_ports: bool
    enforces_disk: bool
    isolates_network: bool
    """Whether workloads are kept from the machine's own services, private networks and cloud metadata."""
    takes_gpus: bool

    async def start(self, launch: Launch, progress: Progress) -> None:
        """Starts the workload unless it was started before. A present image costs no look at its registry.

        Raises:
            ImagePullFailed, BootstrapFailed: the image is at fault; the message says how.
            Ambiguous: the engine did not answer; it may have started.
        """
        ...

    async def inspect(self, name: str, directory: Path) -> Seen | None:
        """The workload now; None only when the engine says that there is none of that name."""
        ...

    async def owned(self, owner_id: str) -> list[Seen]:
        """Every workload with this owner's label."""
        ...

    async def output(self, name: str, directory: Path) -> str:
        """The last 64 KiB of what its first process printed; empty when there is nothing."""
        ...

    async def remove(self, name: str, directory: Path) -> bool:
        """Kills it at once and wipes what it wrote; whether it is gone now. A missing one is gone."""
        ...

    def describe(self) -> dict[str, Any]:
        """For logs and `headrace` commands: which engine, how configured, what it does not enforce."""
        ...
