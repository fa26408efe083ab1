"""What Google has and what it costs: types in zones, SKUs, quotas. Types and prices are kept for a while."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from domain.errors import Ambiguous
from providers.gcp.calls import GcpCalls
from providers.gcp.offers import ATTACHED, GPU_FAMILIES, Machine, Quota, Quotas, machines_of
from providers.gcp.prices import Prices, prices_of
from providers.gcp.settings import GcpOptions
from providers.gcp.views import region_of

SERVICE = "6F81-5844-456A"
"""Compute Engine in the Cloud Billing catalog."""
_WHAT = "offers"
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What there is in the connection's regions, whatever of it is free."""

    machines: tuple[Machine, ...]
    prices: Prices


class Market:
    """The catalog of a connection, and its quotas of the moment."""

    def __init__(self, calls: GcpCalls, options: GcpOptions) -> None:
        self._calls = calls
        self._options = options
        self._kept: tuple[float, Catalog] | None = None
        self._lock = asyncio.Lock()

    async def catalog(self) -> Catalog:
        """At most `catalog_seconds` old."""
        async with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > self._options.catalog_seconds:
                self._kept = time.monotonic(), await self._read()
            return self._kept[1]

    async def quotas(self) -> Quotas:
        """The quotas now. A region that is down has none."""
        pages, project = await asyncio.gather(
            self._calls.pages("Regions", "list", _WHAT, kind="compute#regionList"),
            self._calls.call("Projects", "get", _WHAT, kind="compute#project"),
        )
        regions: dict[str, Mapping[str, Quota]] = {}
        for region in (region for page in pages for region in page.items):
            if not (region.name and region.status):
                raise Ambiguous(f"{_WHAT}: an unreadable region {region.name!r}")
            if region.status == "UP":
                regions[region.name] = _by_metric(region.quotas)
        return Quotas(regions, _by_metric(project.quotas))

    async def _read(self) -> Catalog:
        families = (*GPU_FAMILIES, *self._options.cpu_families)
        attached = sorted({name for sizes in ATTACHED.values() for name in sizes.values()})
        pattern = "|".join([*(f"{family}-.*" for family in families), *attached])
        types, accelerators, prices = await asyncio.gather(
            self._calls.pages(
                "MachineTypes",
                "aggregated_list",
                _WHAT,
                kind="compute#machineTypeAggregatedList",
                filter=f'name eq "{pattern}"',
            ),
            self._calls.pages(
                "AcceleratorTypes", "aggregated_list", _WHAT, kind="compute#acceleratorTypeAggregatedList"
            ),
            self._prices(),
        )
        try:
            machines = machines_of(
                (kind for page in types for scope in page.items.values() for kind in scope.machine_types),
                (kind for page in accelerators for scope in page.items.values() for kind in scope.accelerator_types),
                self._options.cpu_families,
            )
        except _UNREADABLE as error:
            raise Ambiguous(f"{_WHAT}: {error}") from None
        wanted = self._options.regions
        return Catalog(tuple(m for m in machines if not wanted or region_of(m.zone) in wanted), prices)

    async def _prices(self) -> Prices:
        skus: list[Mapping[str, Any]] = []
        token, seen = "", set[str]()
        while True:
            following = {"pageToken": token} if token else {}
            page = await self._calls.billing(
                f"/v1/services/{SERVICE}/skus", _WHAT, currencyCode="USD", pageSize="5000", **following
            )
            if not isinstance(page.get("skus"), list):
                raise Ambiguous(f"{_WHAT}: a page of prices without any")
            skus += page["skus"]
            token = str(page.get("nextPageToken") or "")
            if not token:
                break
            if token in seen:
                raise Ambiguous(f"{_WHAT}: the same page of prices came twice")
            seen.add(token)
        try:
            return prices_of(skus)
        except _UNREADABLE as error:
            raise Ambiguous(f"{_WHAT}: an unreadable price ({type(error).__name__}: {error})") from None


def _by_metric(quotas: Iterable[Any]) -> dict[str, Quota]:
    return {quota.metric: Quota(quota.limit, quota.usage) for quota in quotas}
