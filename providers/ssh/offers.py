"""What the probed hosts offer: a slot of a host without GPUs, and each count of the GPUs of a host with some."""

from collections import Counter
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal

from domain.catalog import Gpu
from domain.errors import ProviderRejected
from domain.offers import Offer
from providers.local.offers import CPU_CLASS, TEARDOWN_SECONDS, Machine
from providers.ssh.probe import Facts

REGION = "on-prem"
_PRICE_STEP = Decimal("0.000001")


def host_of(offer: Offer) -> str:
    """The host that an offer is of.

    Raises:
        ProviderRejected: the offer is not one of a fleet.
    """
    host, separator, _ = offer.provider_sku.partition("/")
    if not separator:
        raise ProviderRejected(f"{offer.provider_sku!r} names no host of a fleet")
    return host


def machine_of(facts: Facts, slots: int) -> Machine:
    """What a job's part is reckoned of: the whole host where it has GPUs, else one of its slots."""
    if facts.gpus:
        return Machine(facts.vcpus, facts.memory_gb, facts.disk_gb, facts.gpus)
    return Machine(max(1, facts.vcpus // slots), round(facts.memory_gb / slots, 1), facts.disk_gb // slots)


def host_offers(
    hostname: str, facts: Facts, *, connection_id: str, price_usd_hr: Decimal, slots: int, observed_at: datetime
) -> list[Offer]:
    """`price_usd_hr` is that of the whole host, and a job pays for its part. Nothing where the host is not usable: no
    engine, or GPUs whose driver does not answer."""
    if facts.engine is None or facts.driver_problem is not None:
        return []
    machine = machine_of(facts, slots)

    def offer(sku: str, accelerator: str, count: int, part: Decimal, available: bool, model: Gpu | None) -> Offer:
        vcpus, memory_gb = machine.share(count)
        return Offer(
            id=f"{connection_id}:{hostname}/{sku}",
            provider="ssh",
            connection_id=connection_id,
            provider_sku=f"{hostname}/{sku}",
            accelerator=accelerator,
            gpu_count=count,
            gpu_memory_gb=model.memory_gb if model else 0,
            vcpus=vcpus,
            memory_gb=memory_gb,
            ephemeral_disk_gb=machine.disk_gb,
            # Which links join the GPUs is not looked at: the least that the model can have is promised.
            interconnect=model.interconnects[0] if model else None,
            region=REGION,
            price_usd_hr=(price_usd_hr * part).quantize(_PRICE_STEP, ROUND_HALF_UP),
            teardown_seconds=TEARDOWN_SECONDS,
            available=available,
            observed_at=observed_at,
            disk_enforced=facts.disk_enforced,
            network_isolated=facts.network is not None,
        )

    if not facts.gpu_names:
        return [offer(CPU_CLASS, CPU_CLASS, 0, Decimal(1) / slots, facts.held_slots < slots, None)]
    free = Counter(gpu.model for gpu in facts.gpus if gpu.id not in facts.held_gpus)
    return [
        offer(
            f"{model.name}-x{count}", model.name, count, Decimal(count) / len(facts.gpus), count <= free[model], model
        )
        for model, existing in Counter(gpu.model for gpu in facts.gpus).items()
        for count in model.gpu_counts
        if count <= existing
    ]
