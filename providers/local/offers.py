"""What this machine offers: one CPU class, and for each proven GPU model every count that exists."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from domain.catalog import Gpu
from domain.offers import Offer
from providers.local.gpus import HostGpu

CPU_CLASS = "cpu-general"
TEARDOWN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is. Memory and disk in GB."""

    vcpus: int
    memory_gb: float
    disk_gb: int
    gpus: tuple[HostGpu, ...] = ()
    reserved_gpus: Mapping[str, int] = field(default_factory=dict)
    """How many GPUs of each accelerator are promised to attempts."""

    def share(self, gpu_count: int) -> tuple[int, float]:
        """vCPUs and memory (GB) that come with so many of the machine's GPUs; everything for none."""
        if not gpu_count or not self.gpus:
            return self.vcpus, self.memory_gb
        part = gpu_count / len(self.gpus)
        return max(1, int(self.vcpus * part)), round(self.memory_gb * part, 1)


def local_offers(
    machine: Machine,
    *,
    connection_id: str,
    price_usd_hr: Decimal,
    disk_enforced: bool,
    network_isolated: bool,
    observed_at: datetime,
) -> list[Offer]:
    """One offer for CPU jobs and one per GPU model and count. The price is per hour, and per GPU where there are any.

    A GPU that the driver does not prove is not offered: a request for one gets no capacity, never a CPU.
    """

    def offer(sku: str, accelerator: str, count: int, model: Gpu | None = None, available: bool = True) -> Offer:
        vcpus, memory_gb = machine.share(count)
        return Offer(
            id=f"{connection_id}:{sku}",
            provider="local",
            connection_id=connection_id,
            provider_sku=sku,
            accelerator=accelerator,
            gpu_count=count,
            gpu_memory_gb=model.memory_gb if model else 0,
            vcpus=vcpus,
            memory_gb=memory_gb,
            ephemeral_disk_gb=machine.disk_gb,
            # Which links join the GPUs is not looked at: the least that the model can have is promised.
            interconnect=model.interconnects[0] if model else None,
            price_usd_hr=price_usd_hr * max(1, count),
            teardown_seconds=TEARDOWN_SECONDS,
            available=available,
            observed_at=observed_at,
            disk_enforced=disk_enforced,
            network_isolated=network_isolated,
        )

    found = [offer(CPU_CLASS, CPU_CLASS, 0)]
    for model, existing in Counter(gpu.model for gpu in machine.gpus).items():
        free = existing - machine.reserved_gpus.get(model.name, 0)
        found += [
            offer(f"{model.name}-x{count}", model.name, count, model, available=count <= free)
            for count in model.gpu_counts
            if count <= existing
        ]
    return found
