"""What answers look like, for the OpenAPI document. Enumerations of answers are open: clients must take new values."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_TIME = "2026-07-29T12:01:00Z"


class Error(BaseModel):
    code: str = Field(examples=["invalid_request"])
    message: str = Field(examples=["compute.gpu_count: must be 0 for cpu-general, a CPU class"])
    request_id: str = Field(examples=["req_9f2kQxWv3bT8mLpZ"])
    details: dict[str, Any] | None = Field(default=None, examples=[{"field": "compute.gpu_count", "limit": 0}])


class ErrorEnvelope(BaseModel):
    """The body of every error."""

    error: Error


class VcpuRange(BaseModel):
    min: int
    max: int


class Accelerator(BaseModel):
    """A GPU entry has vendor, memory_gb, gpu_counts and interconnects; a CPU entry vcpu and memory_gb_per_vcpu."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "nvidia-rtx-4090-24gb",
                "display_name": "NVIDIA GeForce RTX 4090 24GB",
                "hardware_class": "gpu",
                "vendor": "nvidia",
                "memory_gb": 24,
                "gpu_counts": [1, 2, 3, 4, 5, 6, 7, 8],
                "interconnects": ["pcie"],
            }
        }
    )

    name: str
    display_name: str
    hardware_class: str = Field(description="`gpu` or `cpu`.")
    vendor: str | None = None
    memory_gb: int | None = Field(default=None, description="Of one GPU.")
    gpu_counts: list[int] | None = None
    interconnects: list[str] | None = None
    vcpu: VcpuRange | None = None
    memory_gb_per_vcpu: int | None = None


class Page(BaseModel):
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null at the end.")
    total: int = Field(description="Of the whole list under its filters.")


class AcceleratorList(Page):
    data: list[Accelerator]


class Reason(BaseModel):
    code: str = Field(examples=["workload_exit_nonzero"])
    message: str
    details: dict[str, Any] | None = None


class Compute(BaseModel):
    accelerator: str
    gpu_count: int
    ephemeral_disk_gb: int
    instance_count: int | None = None
    interconnect: str | None = None
    vcpu_count: int | None = None


class Limits(BaseModel):
    max_cost_usd: float | None = None
    max_runtime_hours: float | None = None


class Hardware(BaseModel):
    accelerator: str
    gpu_count: int
    gpu_memory_gb: int = Field(description="Of one GPU; 0 for a CPU class.")
    interconnect: str | None = None


class Endpoint(BaseModel):
    name: str
    protocol: str
    host: str
    port: int
    url: str | None = None


class Ssh(BaseModel):
    host: str
    port: int
    user: str
    command: str
    host_key: str | None = Field(
        default=None,
        description="The public key of the workload's sshd, made in it at its start: `known_hosts` takes it.",
    )


class Attempts(BaseModel):
    """Attempts of all kinds, and those that ended for the fault of each kind."""

    total: int
    rejected: int = Field(description="Refused by the provider, or dearer than offered: nothing ran.")
    user_failure: int = Field(description="The workload or its image failed. Never tried again.")
    preemption: int = Field(description="Taken back by the provider.")
    infrastructure: int = Field(description="The hardware did not boot, or was lost.")


class Job(BaseModel):
    """Container, environment and secrets are never part of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "job_9f2kQxWv3bT8mLpZ",
                "name": "qwen-fine-tune",
                "state": "running",
                "reason": None,
                "compute": {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 100},
                "hardware": {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "gpu_memory_gb": 24},
                "price_usd_hr": 0.44,
                "accrued_usd": 0.07,
                "allocated_at": "2026-07-29T12:03:12Z",
                "limits": {"max_runtime_hours": 2, "max_cost_usd": 5},
                "endpoints": [],
                "created_at": _TIME,
                "started_at": "2026-07-29T12:04:40Z",
                "terminal_at": None,
                "project": "default",
                "labels": {},
                "kind": "sft",
                "attempts": {"total": 1, "rejected": 0, "user_failure": 0, "preemption": 0, "infrastructure": 0},
            }
        }
    )

    id: str
    name: str | None = None
    state: str = Field(
        description="`requested`, `allocating`, `provisioning`, `running`, `finalizing`, `terminating`, `succeeded`, "
        "`failed`, `terminated`."
    )
    reason: Reason | None
    compute: Compute
    limits: Limits
    accrued_usd: float = Field(description="Spend of all attempts so far, rounded half-up to cents.")
    endpoints: list[Endpoint]
    created_at: datetime
    allocated_at: datetime | None = Field(default=None, description="First allocation: billing starts here.")
    started_at: datetime | None
    terminal_at: datetime | None
    hardware: Hardware | None = None
    provider: str | None = Field(default=None, description="Absent where the organization is not told of providers.")
    price_usd_hr: float | None = Field(default=None, description="Captured at allocation.")
    current_price_usd_hr: float | None = Field(default=None, description="While something is billed.")
    instance_price_usd_hr: float | None = None
    pricing_model: str | None = Field(default=None, description="`instance_minutes` or `instance_seconds`.")
    ssh: Ssh | None = None
    exit_code: int | None = None
    project: str
    labels: dict[str, str]
    kind: str
    attempts: Attempts


class JobList(Page):
    data: list[Job]


class Event(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "evt_2bT8mLpZ9f2kQxWv",
                "timestamp": _TIME,
                "type": "state_changed",
                "data": {"from": "requested", "to": "allocating"},
            }
        }
    )

    id: str
    timestamp: datetime
    type: str
    data: dict[str, Any]


class EventList(Page):
    data: list[Event]


class Instance(BaseModel):
    """An attempt whose creation a backend has not confirmed has an empty `provider_id` and the type `attempt`."""

    id: str
    provider: str | None = Field(default=None, description="Absent where the organization is not told of providers.")
    provider_id: str
    provider_resource_type: str
    state: str
    hardware: Hardware
    endpoints: list[Endpoint]
    rank: int
    spot: bool
    region: str
    host: str | None = None
    price_usd_hr: float | None = None
    ssh: Ssh | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    created_at: datetime
    allocated_at: datetime | None = None
    started_at: datetime | None = None
    draining_at: datetime | None = None
    terminal_at: datetime | None = None
    confirmed_absent_at: datetime | None = None


class InstanceList(Page):
    data: list[Instance]


class Log(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "log_0000000000000412",
                "timestamp": "2026-07-29T12:06:02.184213Z",
                "source": "user",
                "stream": "stdout",
                "message": "step 1 loss 2.31",
                "instance_rank": 0,
            }
        }
    )

    id: str
    timestamp: datetime
    source: Literal["system", "user"]
    stream: Literal["stdout", "stderr"]
    message: str
    instance_rank: int | None = None
    continued: bool | None = Field(default=None, description="True when the line goes on in the next entry.")


class LogList(Page):
    data: list[Log]


class Secret(BaseModel):
    """Values are write-only: no answer has them."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "sec_Vb3nRk8sQw1xYz2M",
                "name": "artifact-repository",
                "keys": ["HF_TOKEN"],
                "version": 1,
                "created_at": _TIME,
                "updated_at": _TIME,
                "expires_at": None,
            }
        }
    )

    id: str
    name: str
    keys: list[str] = Field(description="In alphabetical order.")
    version: int = Field(description="1, and one more with each rotation.")
    created_at: datetime
    updated_at: datetime = Field(description="When the current version was written.")
    expires_at: datetime | None = Field(description="When it stops to resolve for new launches; null is never.")


class SecretList(Page):
    data: list[Secret]


class PriceRange(BaseModel):
    """USD per hour, of all instances together."""

    min: float
    max: float


class ProviderQuote(BaseModel):
    provider: str
    available: bool
    price_usd_hr: PriceRange | None
    reason: str | None = Field(default=None, description="Why nothing of this provider is eligible.")


class Quote(BaseModel):
    """An observation of the market; it reserves nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "available": True,
                "price_usd_hr": {"min": 0.38, "max": 0.69},
                "observed_at": "2026-07-29T12:00:00Z",
                "expires_at": None,
                "providers": [
                    {"provider": "aws", "available": False, "price_usd_hr": None, "reason": "offers no SSH access"},
                    {"provider": "runpod", "available": True, "price_usd_hr": {"min": 0.38, "max": 0.69}},
                ],
            }
        }
    )

    available: bool
    price_usd_hr: PriceRange | None
    observed_at: datetime
    expires_at: datetime | None
    providers: list[ProviderQuote] | None = Field(
        default=None, description="Absent where the organization is not told of providers."
    )


class OfferRegion(BaseModel):
    name: str
    country: str | None = None


class OfferCompute(BaseModel):
    accelerator: str
    gpu_count: int
    gpu_memory_gb: int = Field(description="Of one GPU; 0 for a CPU class.")
    instance_count: int
    memory_gb: int
    vcpus: int
    ephemeral_disk_gb: int
    interconnect: str | None = None


class OfferCapabilities(BaseModel):
    custom_image: bool
    http_ports: bool
    tcp_ports: bool
    ssh: bool
    private_image: bool
    multi_node: bool
    managed_service: bool
    scale_to_zero: bool
    persistent_volume: bool
    shared_volume: bool
    standalone_volume: bool


OFFER_CAPABILITIES = tuple(OfferCapabilities.model_fields)


class Offer(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "provider": "runpod",
                "provider_sku": "NVIDIA GeForce RTX 4090",
                "available": True,
                "price_usd_hr": 0.44,
                "observed_at": _TIME,
                "expires_at": None,
                "region": {"name": "EU-RO-1", "country": "RO"},
                "compute": {
                    "accelerator": "nvidia-rtx-4090-24gb",
                    "gpu_count": 1,
                    "gpu_memory_gb": 24,
                    "instance_count": 1,
                    "memory_gb": 41,
                    "vcpus": 6,
                    "ephemeral_disk_gb": 1000,
                    "interconnect": "pcie",
                },
                "capabilities": {
                    "custom_image": True,
                    "http_ports": True,
                    "tcp_ports": True,
                    "ssh": True,
                    "private_image": True,
                    "multi_node": False,
                    "managed_service": False,
                    "scale_to_zero": False,
                    "persistent_volume": False,
                    "shared_volume": False,
                    "standalone_volume": False,
                },
                "spot": False,
            }
        }
    )

    provider: str
    provider_sku: str
    available: bool
    unavailable_reason: str | None = Field(
        default=None, description="The quota that keeps the account from it; absent where none is known to."
    )
    price_usd_hr: float
    observed_at: datetime
    expires_at: datetime | None
    region: OfferRegion
    compute: OfferCompute
    capabilities: OfferCapabilities
    spot: bool
    disk_enforced: bool | None = Field(
        default=None, description="`false` where a job is not held to `ephemeral_disk_gb`; else absent."
    )
    network_isolated: bool | None = Field(
        default=None,
        description="`false` where a job is not known to be kept from its machine's own services, private networks and "
        "cloud metadata; else absent.",
    )


class OfferList(Page):
    data: list[Offer]


class ProviderHealth(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "provider": "runpod",
                "healthy": True,
                "degraded": False,
                "error": None,
                "last_poll_at": _TIME,
                "latency_ms": 412,
                "offer_count": 118,
            }
        }
    )

    provider: str
    healthy: bool = Field(description="The last poll succeeded.")
    degraded: bool = Field(description="The last poll failed; the offers of an earlier one still count.")
    error: str | None
    last_poll_at: datetime
    latency_ms: int
    offer_count: int = Field(description="How many offers count now.")


class ProviderHealthList(Page):
    data: list[ProviderHealth]
