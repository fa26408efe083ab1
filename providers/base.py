"""The provider contract: one protocol for every backend, its values, and what each method must guarantee.

Every sentence in these docstrings is a test in `tests/providers/conformance.py`. No exception but those of
`domain.errors.ProviderError` may leave a provider; no vendor type crosses this line.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from pydantic import Field, SecretStr

from domain.ids import AttemptId
from domain.offers import Capabilities, Offer
from domain.spec import ComputeRequest, Frozen, Port, RegistryCredential


class HostReport(Frozen):
    """What was found out of one host of a fleet, for people. Its texts are bounded."""

    hostname: str
    reachable: bool
    status: str
    """`ok`, `no_gpu` (reachable, and there is none), `unreachable`, `auth`, `host_key`, `permission`, `no_engine`, or
    `probe_failed`: reachable, and it could not be found out what it has."""
    message: str
    """One line: what it has, or why not."""
    gpus: tuple[str, ...] = ()
    """As the driver names them, with the memory."""
    driver: str | None = None
    vcpus: int = 0
    memory_gb: float = 0
    disk_gb: int = 0
    engine: str | None = None
    host_key: str | None = None
    """The public key that the host has shown, in OpenSSH's form; None where it showed none, or another than it must."""

    @property
    def usable(self) -> bool:
        return self.status in ("ok", "no_gpu")


class CredentialReport(Frozen):
    """Outcome of `verify`: `ok`, `auth`, `permission` or `unreachable`, and a sentence for people. A backend that is
    made of hosts reports on each."""

    status: str
    message: str = ""
    hosts: tuple[HostReport, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentBootstrap:
    """How the agent inside the workload reaches the control plane.

    `script` is the agent's text, the same bytes on every retry of an attempt. Exactly one of `socket` (the path, on
    this machine, of the agent-only Unix socket) and `url` is set. `token` reaches the agent by environment, never by
    argv.
    """

    script: str
    token: SecretStr
    socket: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """All that a backend needs to create an instance. Nothing in it but `agent.token` and `registry` is secret."""

    attempt_id: AttemptId
    owner_id: str
    """Identifies this control plane at the provider: name prefix, tag or label."""
    job_id: str
    org_id: str
    image: str
    compute: ComputeRequest
    agent: AgentBootstrap
    ports: tuple[Port, ...] = ()
    registry: RegistryCredential | None = None
    ssh_public_key: str | None = None
    lifetime_seconds: int | None = None
    """For the machine's own kill timer, where the backend has one: past every limit of the job. None without limits:
    the backend's option."""


class Handle(Frozen):
    """What the provider calls the instance. `data` holds sub-resource ids and whatever `terminate` needs."""

    provider_id: str
    resource_type: str
    region: str | None = None
    host: str | None = None
    price_usd_hr: Decimal | None = None
    """The price in the create answer, where the provider states one: it counts, over the offer's."""
    created_at: datetime | None = None
    """When the provider says that it made the instance, and so began to charge for it."""
    data: dict[str, Any] = Field(default_factory=dict)


class ProviderState(StrEnum):
    """Normalised states. A status that is not known means `pending` or `running`: still billing, never gone."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    EXITED = "exited"
    FAILED = "failed"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class PublishedPort:
    name: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class InstanceView:
    """What the provider says of an instance at a moment."""

    attempt_id: AttemptId | None
    handle: Handle
    state: ProviderState
    exit_code: int | None = None
    message: str = ""
    """Why it failed, was interrupted or exited, in the provider's words, bounded to 2,000 characters."""
    oom_killed: bool | None = None
    """None where the backend cannot tell."""
    created_at: datetime | None = None
    price_usd_hr: Decimal | None = None
    endpoints: tuple[PublishedPort, ...] = ()


class TerminateState(StrEnum):
    """`requested`: accepted, and not yet observed gone. `gone`: authoritatively not there."""

    REQUESTED = "requested"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LogPage:
    text: str
    cursor: str | None


Progress = Callable[[str], Awaitable[None]]
"""Receives one line of boot or pull progress; it becomes a system log line. Calling it also heartbeats."""


@dataclass(frozen=True, slots=True)
class OfferQuery:
    """Narrows `offers`; None does not. A provider may return more than asked: placement filters again."""

    accelerator: str | None = None
    gpu_count: int | None = None


class HostKeys(Protocol):
    """Where a connection's host keys are pinned, by `host:port`; keys are in OpenSSH's public form, without a comment.
    Every worker has the same pins."""

    async def pinned(self, address: str) -> str | None:
        """The key, or None where none was seen yet."""
        ...

    async def pin(self, address: str, key: str) -> str:
        """Keeps a key that a host showed at its first connection. Answers the one that is pinned: another one, where
        somebody else saw another one first."""
        ...


@dataclass
class ProviderContext:
    """What every provider is given by the process that builds it."""

    connection_id: str
    owner_id: str
    data_dir: str
    options: dict[str, Any] = field(default_factory=dict)
    host_keys: HostKeys | None = None
    """None: what is pinned is forgotten with the provider."""
    agent_socket: str | None = None
    """The control plane's agent-only socket on this machine."""
    fleet_networks: tuple[str, ...] | None = None
    """CIDRs in which an administrator allows hosts of fleets; None: none was asked."""
    workload_networks: tuple[str, ...] = ()
    """Private networks, as CIDRs, that jobs on hosts of fleets and on rented machines reach all the same."""
    multi_tenant: bool = False
    """Whether jobs of several organizations may be on one machine at once."""


class Provider(Protocol):
    """A backend. Methods are repeatable; a 5xx, a timeout or a reset on `create` is `Ambiguous`, never "failed"."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do; of a local engine it is found out at the first look, which may take a second."""
        ...

    @property
    def slots(self) -> int | None:
        """How many instances the backend holds at once, which the allocation counts; None where it says itself when it
        is full."""
        ...

    async def verify(self) -> CredentialReport:
        """Cheap check of the credentials. Never raises for wrong ones: the report says so."""
        ...

    async def offers(self, query: OfferQuery) -> list[Offer]:
        """What can be had now. An unusable answer is an error, never an empty list."""
        ...

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        """Rents the instance and returns as soon as its id is known; billing starts here.

        Repeating it for one attempt yields the same instance, or `Ambiguous` where the backend cannot tell.

        Raises:
            NoCapacity, QuotaExceeded: the offer cannot be had; nothing was created.
            Ambiguous: something may have been created; `find` tells.
        """
        ...

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        """Drives the instance until the agent can say hello: image pull, container start, boot. Repeatable and
        cancel-safe; it may take long and reports progress. Returns the handle, with what was learnt.

        Raises:
            ImagePullFailed, BootstrapFailed: the workload's image is at fault.
            NoCapacity, QuotaExceeded, ProviderNotFound: the instance could not be had after all, or is not there any
                more: the next offer is tried.
        """
        ...

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        """Every instance of the attempt that the provider knows, by name, tag or label."""
        ...

    async def get(self, handle: Handle) -> InstanceView | None:
        """The instance now; None only when the provider says authoritatively that it is not there."""
        ...

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        """Boot or container output, for diagnosis; an empty page where the backend has no log API."""
        ...

    async def terminate(self, handle: Handle) -> TerminateState:
        """Asks for deletion of the instance and its sub-resources. Repeatable; a missing instance is `gone`."""
        ...

    async def list_owned(self) -> list[InstanceView]:
        """Every instance that carries our owner id, all pages. A partial or malformed answer is an error."""
        ...

    async def close(self) -> None:
        """Releases connections; the instances stay."""
        ...
