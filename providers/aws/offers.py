"""Offers: what the types, zones and prices that AWS states amount to. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from domain.catalog import Gpu, match_nvidia_smi
from domain.money import PricingModel
from domain.offers import Offer
from domain.spec import Interconnect
from providers.aws.quotas import QuotaValues, refusal_of

CPU_CLASS = "cpu-general"
TEARDOWN_SECONDS = 60.0
DISK_GB = 16_000
"""What is offered of a volume's limit of 16 TiB; the request says how much is rented."""
_PRODUCTS: Mapping[str, str] = {"RTX PRO Server 6000": "RTX PRO 6000 Blackwell"}
"""Where AWS names a GPU otherwise than its driver does."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance type that can be offered. Memory in GB; `gpu` None is a machine without one."""

    type: str
    vcpus: int
    memory_gb: float
    on_demand: bool
    spot: bool
    gpu: Gpu | None = None
    gpu_count: int = 0

    @property
    def accelerator(self) -> str:
        return self.gpu.name if self.gpu else CPU_CLASS


def machine_of(described: Mapping[str, Any], cpu_families: Iterable[str]) -> Machine | None:
    """The machine that `DescribeInstanceTypes` describes; None where it is nothing that the catalog knows: a GPU of
    another kind or a part of one, or a family without GPUs that was not asked for.

    Raises:
        KeyError, TypeError, IndexError: the description is none.
    """
    name: str = described["InstanceType"]
    usage = described["SupportedUsageClasses"]
    gpu, count = None, 0
    if gpus := described.get("GpuInfo", {}).get("Gpus"):
        found = gpus[0]
        product = f"{found['Manufacturer']} {_PRODUCTS.get(found['Name'], found['Name'])}"
        gpu, count = match_nvidia_smi(product, found["MemoryInfo"]["SizeInMiB"]), int(found["Count"])
        if gpu is None or count < 1 or len(gpus) > 1:
            return None
    elif name.partition(".")[0] not in cpu_families:
        return None
    return Machine(
        type=name,
        vcpus=described["VCpuInfo"]["DefaultVCpus"],
        memory_gb=described["MemoryInfo"]["SizeInMiB"] / 1024,
        on_demand="on-demand" in usage,
        spot="spot" in usage,
        gpu=gpu,
        gpu_count=count,
    )


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a region has, whatever of it is free: machines by type, the zones of each, and the on-demand prices."""

    region: str
    machines: Mapping[str, Machine]
    zones: Mapping[str, tuple[str, ...]]
    prices: Mapping[str, Decimal]


def offers_of(
    catalog: Catalog, machines: Iterable[Machine], spot_prices: Mapping[tuple[str, str], Decimal], quotas: QuotaValues,
    connection_id: str, now: datetime,
) -> list[Offer]:  # fmt: skip
    """An offer for each machine, zone and way to rent it that has a price, not available where a quota is too small.
    Spot prices are by type and zone.

    A price is for the machine: its disk is charged apart (docs/providers/aws.md).
    """
    found: list[Offer] = []
    for machine in sorted(machines, key=lambda machine: machine.type):
        for zone in catalog.zones.get(machine.type, ()):
            price, spot_price = catalog.prices.get(machine.type), spot_prices.get((machine.type, zone))
            if machine.on_demand and price is not None:
                found.append(_offer(catalog, machine, zone, price, False, quotas, connection_id, now))
            if machine.spot and spot_price is not None:
                found.append(_offer(catalog, machine, zone, spot_price, True, quotas, connection_id, now))
    return found


def _offer(
    catalog: Catalog, machine: Machine, zone: str, price: Decimal, spot: bool, quotas: QuotaValues, connection_id: str,
    now: datetime,
) -> Offer:  # fmt: skip
    refusal = refusal_of(machine.type, machine.vcpus, spot, catalog.region, quotas)
    return Offer(
        id=f"{zone}:{machine.type}:{'spot' if spot else 'on-demand'}",
        provider="aws",
        connection_id=connection_id,
        provider_sku=machine.type,
        accelerator=machine.accelerator,
        gpu_count=machine.gpu_count,
        gpu_memory_gb=machine.gpu.memory_gb if machine.gpu else 0,
        vcpus=machine.vcpus,
        memory_gb=machine.memory_gb,
        ephemeral_disk_gb=DISK_GB,
        interconnect=_interconnect(machine),
        region=catalog.region,
        zone=zone,
        price_usd_hr=price,
        price_source="spot price history" if spot else "price list",
        pricing_model=PricingModel.INSTANCE_SECONDS,
        teardown_seconds=TEARDOWN_SECONDS,
        spot=spot,
        available=refusal is None,
        over_quota=refusal,
        observed_at=now,
        network_isolated=True,
    )


def _interconnect(machine: Machine) -> Interconnect | None:
    """The P families carry modules that NVLink joins, the G families cards."""
    if machine.gpu is None:
        return None
    nvlink = machine.type.startswith("p") and Interconnect.NVLINK in machine.gpu.interconnects
    return Interconnect.NVLINK if nvlink else Interconnect.PCIE
