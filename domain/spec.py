"""What a job asks for, after validation: the public part (`JobSpec`) and the part that is sealed (`Workload`)."""

from decimal import Decimal
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class Frozen(BaseModel):
    """An immutable value that survives a round trip through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Interconnect(StrEnum):
    PCIE = "pcie"
    NVLINK = "nvlink"
    INFINITY_FABRIC = "infinity_fabric"


class ComputeRequest(Frozen):
    """The hardware of one instance, and how many identical ones."""

    accelerator: str
    gpu_count: int
    ephemeral_disk_gb: int
    instance_count: int | None = None
    interconnect: Interconnect | None = None
    vcpu_count: int | None = None


class Limits(Frozen):
    """Ceilings of a job; None is no ceiling. Either one terminates the job when it binds."""

    max_cost_usd: Decimal | None = None
    max_runtime_hours: Decimal | None = None


class Port(Frozen):
    name: str
    container_port: int
    protocol: Literal["http", "tcp"]


class PlacementStrategy(StrEnum):
    CAPACITY_OPTIMIZED = "capacity_optimized"
    LOWEST_COST = "lowest_cost"


class SpotPolicy(StrEnum):
    NEVER = "never"
    ALLOW = "allow"
    ONLY = "only"


class Placement(Frozen):
    """Which offers may serve the job and in which order they are tried."""

    providers: tuple[str, ...] = ()
    strategy: PlacementStrategy = PlacementStrategy.CAPACITY_OPTIMIZED
    spot: SpotPolicy = SpotPolicy.NEVER
    max_price_usd_hr: Decimal | None = None
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    capacity_wait_seconds: int | None = None


class Retry(Frozen):
    """Whether a preempted or lost attempt is tried again on new hardware."""

    on_preemption: bool = False
    max_attempts: int = 3


class SecretReference(Frozen):
    secret_id: str
    key: str


class JobSpec(Frozen):
    """The part of a create request that may be stored and shown to its owner in clear."""

    image: str
    compute: ComputeRequest
    limits: Limits = Limits()
    ports: tuple[Port, ...] = ()
    placement: Placement = Placement()
    retry: Retry = Retry()
    ssh_public_key: str | None = None
    image_pull_secret: str | None = None
    inline_credential: bool = False
    """Whether the request carried a `registry_credential`, which is discarded at the terminal state."""


class Workload(Frozen):
    """What runs inside the container. Sealed at admission, opened only when the agent fetches it, never echoed.

    Exactly one of `argv` and `script` is set; `script` is the decoded, normalised text (see `domain.scripts`).
    """

    argv: tuple[str, ...] | None = None
    script: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    secret_env: dict[str, SecretReference] = Field(default_factory=dict)


class RegistryCredential(Frozen):
    """A user name and a password (or token) for the image's registry. Renders as `**********` everywhere."""

    username: str
    password: SecretStr
