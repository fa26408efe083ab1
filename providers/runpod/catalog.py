"""Offers of RunPod: the GPU and CPU catalogs of REST v2 for on-demand pods, GraphQL's lowest bids for spot."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from domain.catalog import CATALOG, Gpu, match_nvidia_smi
from domain.errors import Ambiguous
from domain.money import PricingModel
from domain.offers import Offer
from domain.spec import Interconnect
from providers.base import OfferQuery
from providers.runpod.answers import GpuType, GpuTypeList, SpotPrice, has_stock, places_of, validated
from providers.runpod.client import RunPodClient
from providers.runpod.cpus import CPU_CLASS, CpuSize, read_sizes

ANYWHERE = "global"
"""The region of an offer whose place the scheduler chooses."""
MOST_DISK_GB = 1_000
TEARDOWN_SECONDS = 30.0
_STOCK_COUNTS = (1, 2, 4, 8)
_MIB_PER_GB = 1024
# Slower or faster than what the catalog's name means, though the words of the name are all there.
_OTHER_PRODUCTS = re.compile(r"max-q|\bti\b|\bsuper\b|\blaptop\b|\bmobile\b", re.IGNORECASE)
_BRIDGED = re.compile(r"sxm|hbm3", re.IGNORECASE)


class Cloud(StrEnum):
    SECURE = "SECURE"
    COMMUNITY = "COMMUNITY"


@dataclass(frozen=True, slots=True)
class Product:
    """What an offer rents, as its `provider_sku` says it: `{id of the GPU type or CPU flavor}|{cloud}`."""

    type_id: str
    cloud: Cloud

    @property
    def sku(self) -> str:
        return f"{self.type_id}|{self.cloud}"

    @classmethod
    def of(cls, sku: str) -> "Product":
        """Raises ValueError for another backend's."""
        type_id, _, cloud = sku.rpartition("|")
        return cls(type_id, Cloud(cloud))


def accelerator_of(gpu_id: str, memory_gb: int) -> tuple[Gpu, Interconnect | None] | None:
    """The catalog entry of a GPU type, and what connects its GPUs where the id tells; None for what has no name here.

    RunPod's ids are the drivers' product names: `NVIDIA H100 80GB HBM3`, `AMD Instinct MI300X OAM`.
    """
    if _OTHER_PRODUCTS.search(gpu_id):
        return None
    entry = match_nvidia_smi(gpu_id, memory_gb * _MIB_PER_GB) or _match_amd(gpu_id, memory_gb)
    if entry is None:
        return None
    if len(entry.interconnects) == 1:
        return entry, entry.interconnects[0]
    if _BRIDGED.search(gpu_id) and Interconnect.NVLINK in entry.interconnects:
        return entry, Interconnect.NVLINK
    return entry, Interconnect.PCIE if Interconnect.PCIE in entry.interconnects else None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the API said at a moment, by cloud and number of GPUs, then by GPU id."""

    at: datetime
    stock: dict[tuple[Cloud, int], dict[str, GpuType]]
    spot: dict[tuple[Cloud, int], dict[str, SpotPrice]]


class Catalog:
    """Reads offers. `clouds` are those that the connection uses. An answer that is no older than `fresh_seconds` serves
    again, so that a burst of jobs does not use up the calls that the account has per minute."""

    def __init__(
        self,
        client: RunPodClient,
        clouds: Sequence[Cloud],
        provider: str,
        connection_id: str,
        *,
        fresh_seconds: float,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._clouds = clouds
        self._provider = provider
        self._connection_id = connection_id
        self._fresh = timedelta(seconds=fresh_seconds)
        self._clock = clock
        self._reading = asyncio.Lock()
        self._seen: dict[tuple[int, ...], _Seen] = {}
        self._cpus: tuple[datetime, list[CpuSize]] | None = None

    async def offers(self, query: OfferQuery) -> list[Offer]:
        """On demand and spot, for every number of GPUs that a pod may have, and CPU pods; for a narrowed query, one
        number of GPUs, or CPU pods alone.

        Stock is asked for by number of GPUs. Of 3, 5, 6 and 7 it is that of the next number asked, unless the query
        names one: each call counts towards the account's rate limit.
        """
        wants_cpus = query.accelerator in (None, CPU_CLASS) and not query.gpu_count
        cpus = await self._cpu_offers() if wants_cpus else []
        if query.accelerator == CPU_CLASS or query.gpu_count not in (None, *range(1, _STOCK_COUNTS[-1] + 1)):
            return cpus
        counts = _STOCK_COUNTS if query.gpu_count is None else (query.gpu_count,)
        seen = await self._look(counts)
        offers: list[Offer] = []
        for (cloud, count), gpus in seen.stock.items():
            for gpu in gpus.values():
                named = accelerator_of(gpu.id, gpu.memory)
                if named is None or query.accelerator not in (None, named[0].name):
                    continue
                spot = seen.spot[cloud, count].get(gpu.id)
                for n in _stands_for(count, counts):
                    if n in named[0].gpu_counts and n <= _most(gpu, cloud):
                        offers += self._of(gpu, cloud, n, named, _share(spot, n, count), seen.at)
        return offers + cpus

    async def _cpu_offers(self) -> list[Offer]:
        async with self._reading:
            if self._cpus is None or self._clock() - self._cpus[0] >= self._fresh:
                self._cpus = (self._clock(), await read_sizes(self._client))
        at, sizes = self._cpus
        return [self._of_cpu(size, region, at) for size in sizes for region in size.regions or (ANYWHERE,)]

    def _of_cpu(self, size: CpuSize, region: str, now: datetime) -> Offer:
        return Offer(
            id=f"{size.flavor}:{size.vcpus}:ondemand:{region}",
            provider=self._provider,
            connection_id=self._connection_id,
            provider_sku=Product(size.flavor, Cloud.SECURE).sku,
            accelerator=CPU_CLASS,
            gpu_count=0,
            vcpus=size.vcpus,
            memory_gb=size.memory_gb,
            ephemeral_disk_gb=min(size.disk_gb, MOST_DISK_GB),
            region=region,
            price_usd_hr=size.price_usd_hr,
            price_source="api",
            pricing_model=PricingModel.INSTANCE_SECONDS,
            stopped_usd_hr=Decimal(0),
            teardown_seconds=TEARDOWN_SECONDS,
            available=size.stocked,
            observed_at=now,
        )

    async def _look(self, counts: tuple[int, ...]) -> _Seen:
        async with self._reading:
            seen = self._seen.get(counts)
            if seen is None or self._clock() - seen.at >= self._fresh:
                stock = {(cloud, count): await self._stock(cloud, count) for cloud in self._clouds for count in counts}
                seen = self._seen[counts] = _Seen(self._clock(), stock, await self._spot(counts))
            return seen

    async def _stock(self, cloud: Cloud, count: int) -> dict[str, GpuType]:
        params = {"include": "AVAILABILITY", "product": "POD", "cloud": cloud.value, "count": str(count)}
        answer = await self._client.rest("GET", "/catalog/gpus", GpuTypeList, "offers", params=params)
        if not answer.gpus:
            raise Ambiguous("offers: the catalog came back empty")
        return {gpu.id: gpu for gpu in answer.gpus}

    async def _spot(self, counts: Iterable[int]) -> dict[tuple[Cloud, int], dict[str, SpotPrice]]:
        asked = [(cloud, count) for cloud in self._clouds for count in counts]
        variables = {
            f"{cloud.lower()}{count}": {"gpuCount": count, "secureCloud": cloud is Cloud.SECURE}
            for cloud, count in asked
        }
        data = await self._client.graphql(_spot_query(variables), variables, "offers")
        rows = data.get("gpuTypes")
        if not isinstance(rows, list) or not rows:
            raise Ambiguous("offers: no spot prices in the answer")
        found: dict[tuple[Cloud, int], dict[str, SpotPrice]] = {key: {} for key in asked}
        for row in rows:
            if not isinstance(row, dict) or not isinstance(row.get("id"), str):
                raise Ambiguous("offers: a GPU type without an id among the spot prices")
            for cloud, count in asked:
                price = row.get(f"{cloud.lower()}{count}")
                if price is not None:
                    found[cloud, count][row["id"]] = validated(price, SpotPrice, "offers")
        return found

    def _of(
        self, gpu: GpuType, cloud: Cloud, count: int, named: tuple[Gpu, Interconnect | None],
        spot: SpotPrice | None, now: datetime,
    ) -> list[Offer]:  # fmt: skip
        entry, interconnect = named
        each = gpu.price.secure if cloud is Cloud.SECURE else gpu.price.community

        def offer(market: str, region: str, price: Decimal, available: bool) -> Offer:
            return Offer(
                id=f"{gpu.id}:{count}:{cloud.lower()}:{market}:{region}",
                provider=self._provider,
                connection_id=self._connection_id,
                provider_sku=Product(gpu.id, cloud).sku,
                accelerator=entry.name,
                gpu_count=count,
                gpu_memory_gb=entry.memory_gb,
                # What is known is the least that comes with so many GPUs.
                vcpus=(spot.vcpus or 0) if spot else 0,
                memory_gb=(spot.memory_gb or 0) if spot else 0,
                ephemeral_disk_gb=MOST_DISK_GB,
                interconnect=interconnect,
                region=region,
                price_usd_hr=price,
                price_source="api",
                pricing_model=PricingModel.INSTANCE_SECONDS,
                # A stopped pod's container disk is not charged, and these pods have no volume.
                stopped_usd_hr=Decimal(0),
                teardown_seconds=TEARDOWN_SECONDS,
                spot=market == "spot",
                available=available,
                observed_at=now,
            )

        stocked, places = places_of(gpu)
        places = places if cloud is Cloud.SECURE else ()
        offers: list[Offer] = []
        if each > 0:
            offers += [offer("ondemand", place, each * count, stocked) for place in places or (ANYWHERE,)]
        if spot is not None and spot.minimum_bid:
            # The bid is that of the cloud: where it is too low in a data center, the rent is refused.
            bid, free = spot.minimum_bid * count, has_stock(spot)
            offers += [offer("spot", place, bid, free) for place in (*places, ANYWHERE)]
        return offers


def _share(spot: SpotPrice | None, count: int, asked: int) -> SpotPrice | None:
    """What comes with fewer GPUs than were asked for."""
    if spot is None or count == asked:
        return spot
    vcpus, memory_gb = (None if value is None else value * count // asked for value in (spot.vcpus, spot.memory_gb))
    return spot.model_copy(update={"vcpus": vcpus, "memory_gb": memory_gb})


def _stands_for(count: int, counts: Sequence[int]) -> range:
    """The numbers of GPUs whose stock is taken to be that of `count`."""
    before = max((other for other in counts if other < count), default=0 if len(counts) > 1 else count - 1)
    return range(before + 1, count + 1)


def _most(gpu: GpuType, cloud: Cloud) -> int:
    if cloud is Cloud.SECURE:
        return gpu.max_count.secure if gpu.secure else 0
    return gpu.max_count.community if gpu.community else 0


def _spot_query(names: Iterable[str]) -> str:
    """One look-up for each cloud and number of GPUs, in a single call. `names` are ours, nobody's input."""
    declared = ", ".join(f"${name}: GpuLowestPriceInput" for name in names)
    fields = " ".join(
        f"{name}: lowestPrice(input: ${name}) {{ minimumBidPrice stockStatus minVcpu minMemory }}" for name in names
    )
    return f"query SpotPrices({declared}) {{ gpuTypes {{ id {fields} }} }}"


def _match_amd(gpu_id: str, memory_gb: int) -> Gpu | None:
    words = set(re.findall(r"[a-z0-9]+", gpu_id.lower()))
    if "amd" not in words:
        return None
    for entry in CATALOG:
        if isinstance(entry, Gpu) and entry.vendor == "amd" and entry.memory_gb == memory_gb:
            product = set(entry.name.split("-")) - {"amd", f"{entry.memory_gb}gb"}
            if product <= words:
                return entry
    return None
