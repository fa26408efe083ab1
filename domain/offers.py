"""Offers: what a connection would rent, at which price, as observed at a moment."""

from datetime import datetime
from decimal import Decimal

from pydantic import Field

from domain.billing import model_of
from domain.money import PricingModel
from domain.spec import Frozen, Interconnect
from domain.terms import BillingModel


class Offer(Frozen):
    """One rentable configuration. Prices are USD per hour for the whole instance; memory and disk in GB."""

    id: str
    """Stable within its connection: the same configuration keeps its id while it is offered."""
    provider: str
    connection_id: str
    provider_sku: str
    accelerator: str
    gpu_count: int
    gpu_memory_gb: int = 0
    """Per GPU; 0 for CPU."""
    vcpus: int
    memory_gb: float
    ephemeral_disk_gb: int
    interconnect: Interconnect | None = None
    region: str = "local"
    zone: str | None = None
    country: str | None = None
    price_usd_hr: Decimal
    price_source: str = "settings"
    pricing_model: PricingModel = PricingModel.INSTANCE_MINUTES
    billing: BillingModel | None = None
    """How it is charged, where that differs from what `domain.billing` knows of its backend."""
    stopped_usd_hr: Decimal | None = None
    """What it costs once it stopped or was preempted, until it is deleted; None where the backend does not say."""
    teardown_seconds: float = Field(default=60, description="Expected from the delete request to confirmed absence.")
    spot: bool = False
    available: bool = True
    over_quota: str | None = None
    """Which quota of the account it does not fit even if nothing else is rented, in words for people; then it is not
    available, and waiting does not help."""
    exclusive: bool = False
    """Whether it is one machine, as on a marketplace: then at most one attempt has it at a time."""
    observed_at: datetime
    disk_enforced: bool = True
    """Whether `ephemeral_disk_gb` is a limit that the backend enforces."""
    network_isolated: bool = False
    """Whether a job is known to be kept from its machine's own services, private networks and cloud metadata."""

    @property
    def terms(self) -> BillingModel:
        """How it is charged."""
        return self.billing or model_of(self.provider)

    @property
    def ref(self) -> str:
        """Names the offer among those of all connections."""
        return f"{self.connection_id}/{self.id}"


class Capabilities(Frozen):
    """What a backend can do, as data: placement's eligibility rules read it, the conformance suite asserts it."""

    custom_image: bool = True
    http_ports: bool = False
    tcp_ports: bool = False
    ssh: bool = False
    private_image: bool = False
    multi_node: bool = False
    managed_service: bool = False
    scale_to_zero: bool = False
    persistent_volume: bool = False
    shared_volume: bool = False
    standalone_volume: bool = False
    bundles_cpu_with_gpu: bool = False
    """A backend that sells vCPUs only with the GPU refuses `vcpu_count` on GPU requests."""
    shared_host: bool = False
    """Whether jobs of its slots share one host: then they belong to one organization, unless an admin opts in."""
    logs_api: bool = False
    restarts_finished: bool = False
    """Whether the backend starts a finished command again (RunPod): the agent then idles until deleted."""
