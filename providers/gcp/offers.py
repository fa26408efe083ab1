"""Offers: what the types, zones, quotas and prices that Google states amount to. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from domain.catalog import BY_NAME, Gpu
from domain.money import PricingModel
from domain.offers import Offer
from domain.spec import Interconnect
from providers.gcp.prices import Prices, Shape, price_of
from providers.gcp.views import last_part, region_of

CPU_CLASS = "cpu-general"
TEARDOWN_SECONDS = 90.0
DISK_GB = 64_000
"""What is offered of a disk's limit of 64 TiB; the request says how much is rented."""

ACCELERATORS: Mapping[str, str] = {
    "nvidia-tesla-t4": "nvidia-t4-16gb",
    "nvidia-tesla-v100": "nvidia-v100-16gb",
    "nvidia-tesla-a100": "nvidia-a100-40gb",
    "nvidia-a100-80gb": "nvidia-a100-80gb",
    "nvidia-l4": "nvidia-l4-24gb",
    "nvidia-h100-80gb": "nvidia-h100-80gb",
    "nvidia-h100-mega-80gb": "nvidia-h100-80gb",
    "nvidia-h200-141gb": "nvidia-h200-141gb",
    "nvidia-b200": "nvidia-b200-192gb",
    "nvidia-rtx-pro-6000": "nvidia-rtx-pro-6000-blackwell-96gb",
}
GPU_FAMILIES = ("a2", "a3", "a4", "g2", "g4")
"""Machines that come with their GPUs."""

ATTACHED: Mapping[str, Mapping[int, str]] = {
    "nvidia-tesla-t4": {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32"},
    "nvidia-tesla-v100": {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32", 8: "n1-standard-64"},
}
"""GPUs that are attached to a general machine: one of a fitting size for each number of them."""

QUOTA_METRICS: Mapping[str, str] = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
}
"""Quotas that a region states. Those of newer GPUs it does not: they count as there."""
ALL_REGIONS_METRIC = "GPUS_ALL_REGIONS"
_CPU_METRICS: Mapping[str, str] = {"e2": "CPUS", "n1": "CPUS", "n2": "N2_CPUS", "n2d": "N2D_CPUS", "c3": "C3_CPUS"}
_HYPERDISK_ONLY = ("a3-ultragpu", "a4", "g4")
_NVLINK = ("a2", "a3", "a4")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine in a zone that can be offered. `attached` says that its GPUs are not part of its type."""

    zone: str
    shape: Shape
    attached: bool = False

    @property
    def gpu(self) -> Gpu | None:
        found = BY_NAME.get(ACCELERATORS.get(self.shape.accelerator, ""))
        return found if isinstance(found, Gpu) else None

    @property
    def accelerator(self) -> str:
        return self.gpu.name if self.gpu else CPU_CLASS

    @property
    def sku(self) -> str:
        shape = self.shape
        return f"{shape.machine}+{shape.gpu_count}x{shape.accelerator}" if self.attached else shape.machine


@dataclass(frozen=True, slots=True)
class Quota:
    """How much the account may have at once, and has."""

    limit: float
    usage: float


@dataclass(frozen=True, slots=True)
class Quotas:
    """What the account may have, by metric: in each region that is up, and in the project. What is not stated does not
    limit."""

    regions: Mapping[str, Mapping[str, Quota]] = field(default_factory=dict)
    project: Mapping[str, Quota] = field(default_factory=dict)

    def allow(self, machine: Machine, spot: bool) -> bool:
        """Whether there is room for the machine now."""
        if region_of(machine.zone) not in self.regions:
            return False
        return all(quota.limit - quota.usage >= wanted for _, quota, wanted in self._of(machine, spot))

    def never_allow(self, machine: Machine, spot: bool) -> str | None:
        """Which quota the machine does not fit even if nothing else is rented, for people; None if it fits."""
        for metric, quota, wanted in self._of(machine, spot):
            if quota.limit < wanted:
                return f"the quota {metric} is {quota.limit:g}, and {wanted} are needed"
        return None

    def _of(self, machine: Machine, spot: bool) -> Iterator[tuple[str, Quota, int]]:
        """The quotas that the machine counts in: by name, and how much of each it takes."""
        shape, region = machine.shape, region_of(machine.zone)
        stated = self.regions.get(region, {})
        cpus = _CPU_METRICS.get(shape.machine.partition("-")[0], "")
        if cpus in stated:
            yield f"{cpus} of {region}", stated[cpus], shape.vcpus
        if not shape.gpu_count:
            return
        gpus = ("PREEMPTIBLE_" if spot else "") + QUOTA_METRICS.get(shape.accelerator, "")
        if gpus in stated:
            yield f"{gpus} of {region}", stated[gpus], shape.gpu_count
        if everywhere := self.project.get(ALL_REGIONS_METRIC):
            yield f"{ALL_REGIONS_METRIC} of the project", everywhere, shape.gpu_count


def machines_of(types: Iterable[Any], accelerators: Iterable[Any], cpu_families: Iterable[str]) -> list[Machine]:
    """The machines that `compute_v1.MachineType`s and `AcceleratorType`s make; those of another kind are left out.

    Raises:
        ValueError: a type lacks what every type has.
    """
    machines: list[Machine] = []
    general: dict[tuple[str, str], Any] = {}
    for kind in types:
        zone = last_part(kind.zone)
        if not (kind.name and zone and kind.guest_cpus and kind.memory_mb):
            raise ValueError(f"a machine type {kind.name!r} in {zone!r} without its size")
        if kind.deprecated.state in ("OBSOLETE", "DELETED") or kind.architecture == "ARM64":
            continue
        general[zone, kind.name] = kind
        parts = list(kind.accelerators)
        if parts:
            if len(parts) == 1 and parts[0].guest_accelerator_type in ACCELERATORS:
                accelerator, count = parts[0].guest_accelerator_type, parts[0].guest_accelerator_count
                machines.append(Machine(zone, _shape(kind, accelerator, count)))
        elif kind.name.startswith(tuple(f"{family}-" for family in cpu_families)):
            machines.append(Machine(zone, _shape(kind)))
    for found in accelerators:
        zone = last_part(found.zone)
        if not (found.name and zone):
            raise ValueError(f"an accelerator type {found.name!r} in {zone!r}")
        for count, name in ATTACHED.get(found.name, {}).items():
            if (zone, name) in general and count <= found.maximum_cards_per_instance:
                machines.append(Machine(zone, _shape(general[zone, name], found.name, count), attached=True))
    return machines


def split_sku(sku: str) -> tuple[str, str, int]:
    """The machine type of an offer, and the accelerator to attach with their number, or "" and 0."""
    machine, _, attached = sku.partition("+")
    count, _, accelerator = attached.partition("x")
    return machine, accelerator, int(count or 0)


def disk_type(machine: str) -> str:
    """The newest machines take Hyperdisks only."""
    return "hyperdisk-balanced" if machine.startswith(_HYPERDISK_ONLY) else "pd-balanced"


def offers_of(
    machines: Iterable[Machine], prices: Prices, quotas: Quotas, connection_id: str, now: datetime
) -> list[Offer]:
    """An offer for each machine and way to rent it that has a price; not available where a quota is used up.

    A price is for the machine: its boot disk is charged apart (docs/providers/gcp.md).
    """
    found: list[Offer] = []
    for machine in sorted(machines, key=lambda machine: (machine.sku, machine.zone)):
        for spot in (False, True):
            price = price_of(machine.shape, region_of(machine.zone), spot, prices)
            if price is None:
                continue
            shape, gpu = machine.shape, machine.gpu
            found.append(
                Offer(
                    id=f"{machine.zone}:{machine.sku}:{'spot' if spot else 'on-demand'}",
                    provider="gcp",
                    connection_id=connection_id,
                    provider_sku=machine.sku,
                    accelerator=machine.accelerator,
                    gpu_count=shape.gpu_count,
                    gpu_memory_gb=gpu.memory_gb if gpu else 0,
                    vcpus=shape.vcpus,
                    memory_gb=shape.memory_mib / 1024,
                    ephemeral_disk_gb=DISK_GB,
                    interconnect=_interconnect(machine),
                    region=region_of(machine.zone),
                    zone=machine.zone,
                    price_usd_hr=price,
                    price_source="cloud billing catalog",
                    pricing_model=PricingModel.INSTANCE_SECONDS,
                    teardown_seconds=TEARDOWN_SECONDS,
                    # What is stopped costs its disk, and that is in no price here.
                    stopped_usd_hr=Decimal(0),
                    spot=spot,
                    available=quotas.allow(machine, spot),
                    over_quota=quotas.never_allow(machine, spot),
                    observed_at=now,
                    network_isolated=True,
                )
            )
    return found


def _shape(kind: Any, accelerator: str = "", count: int = 0) -> Shape:
    return Shape(
        machine=kind.name,
        vcpus=kind.guest_cpus,
        memory_mib=kind.memory_mb,
        accelerator=accelerator,
        gpu_count=count,
        local_disks=kind.bundled_local_ssds.partition_count,
    )


def _interconnect(machine: Machine) -> Interconnect | None:
    if machine.gpu is None:
        return None
    nvlink = machine.shape.machine.partition("-")[0] in _NVLINK or machine.shape.accelerator == "nvidia-tesla-v100"
    return Interconnect.NVLINK if nvlink else Interconnect.PCIE
