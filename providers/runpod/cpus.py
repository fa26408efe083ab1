"""CPU pods: on the Secure Cloud and on demand only, with a power of two of vCPUs.

The class of ours promises memory for each vCPU, so flavors with less of it (`cpu3c`, `cpu5c`) are not offered. RunPod
bounds a CPU pod's container disk by its vCPUs, and says so in its documentation alone: 10 GB for each, 15 of
generation 5.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from domain.catalog import BY_NAME, CpuClass
from domain.errors import Ambiguous
from providers.runpod.answers import CpuType, CpuTypeList, places_of
from providers.runpod.client import RunPodClient

CPU_CLASS = "cpu-general"
_STOCK_COUNTS = (2, 8, 32)
"""Numbers of vCPUs whose stock is asked for: each call counts towards the account's rate limit."""
_DISK_GB_PER_VCPU = {"cpu5": 15}
_LEAST_DISK_GB_PER_VCPU = 10


@dataclass(frozen=True, slots=True)
class CpuSize:
    """A pod that can be rented: `regions` are the data centers with stock of it, none where nothing is known."""

    flavor: str
    vcpus: int
    memory_gb: int
    disk_gb: int
    price_usd_hr: Decimal
    stocked: bool
    regions: tuple[str, ...]


async def read_sizes(client: RunPodClient) -> list[CpuSize]:
    """What the catalog has of the class, in three calls.

    Raises:
        Ambiguous: an empty catalog.
    """
    sizes: list[CpuSize] = []
    before = 1
    for asked in _STOCK_COUNTS:
        params = {"include": "AVAILABILITY", "product": "POD", "vcpuCount": str(asked)}
        answer = await client.rest("GET", "/catalog/cpus", CpuTypeList, "offers", params=params)
        if not answer.cpus:
            raise Ambiguous("offers: the catalog of CPUs came back empty")
        sizes += [size for cpu in answer.cpus for size in _sizes_of(cpu, before, asked)]
        before = asked
    return sizes


def _sizes_of(cpu: CpuType, above: int, most: int) -> Iterator[CpuSize]:
    """The powers of two up to the one that was asked about: their stock is taken to be the same."""
    wanted = BY_NAME[CPU_CLASS]
    assert isinstance(wanted, CpuClass)
    if cpu.ram_gb_per_vcpu < wanted.memory_gb_per_vcpu or not cpu.price.secure_per_vcpu:
        return
    vcpus = most
    while vcpus > above:
        if cpu.vcpu.min <= vcpus <= cpu.vcpu.max:
            stocked, regions = places_of(cpu)
            yield CpuSize(
                flavor=cpu.id,
                vcpus=vcpus,
                memory_gb=int(cpu.ram_gb_per_vcpu * vcpus),
                disk_gb=_DISK_GB_PER_VCPU.get(cpu.id[:4], _LEAST_DISK_GB_PER_VCPU) * vcpus,
                price_usd_hr=cpu.price.secure_per_vcpu * vcpus,
                stocked=stocked,
                regions=regions,
            )
        vcpus //= 2
