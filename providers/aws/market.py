"""What AWS has and what it costs: instance types, zones, and the two kinds of prices. Its catalog is kept for a while.

The price list is one service for all regions (`pricing` in us-east-1); the prices are those of Linux on shared
hardware.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from weakref import WeakValueDictionary

from domain.errors import Ambiguous
from providers.aws.calls import AwsCalls
from providers.aws.offers import Catalog, Machine, machine_of
from providers.aws.settings import AwsOptions

_PRICING_REGION = "us-east-1"
_FILTER_CHARACTERS = 1024
"""The longest value of a filter of the price list."""
_GPU_PATTERNS = ("p*", "g*")
SpotPrices = dict[tuple[str, str], Decimal]
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, InvalidOperation)


class Market:
    """The catalogs of a connection's regions, and the spot prices of the moment."""

    def __init__(self, calls: AwsCalls, options: AwsOptions) -> None:
        self._calls = calls
        self._options = options
        self._catalogs: dict[str, tuple[float, Catalog]] = {}
        self._spot: dict[tuple[str, ...], tuple[float, SpotPrices]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def catalog(self, region: str) -> Catalog:
        """What the region has; at most `catalog_seconds` old."""
        async with self._lock(region):
            read_at, catalog = self._catalogs.get(region, (0.0, None))
            if catalog is None or time.monotonic() - read_at > self._options.catalog_seconds:
                catalog = await self._read(region)
                self._catalogs[region] = (time.monotonic(), catalog)
            return catalog

    async def spot_prices(self, region: str, types: Sequence[str]) -> SpotPrices:
        """The prices now by type and zone; at most `spot_seconds` old, so that a crowd of jobs asks once."""
        key = (region, *types)
        async with self._lock("/".join(key)):
            read_at, prices = self._spot.get(key, (0.0, {}))
            if types and time.monotonic() - read_at >= self._options.spot_seconds:
                prices = await self._read_spot(region, types)
                fresh = time.monotonic() - self._options.spot_seconds
                self._spot = {k: v for k, v in self._spot.items() if v[0] > fresh} | {key: (time.monotonic(), prices)}
            return prices

    async def _read_spot(self, region: str, types: Sequence[str]) -> SpotPrices:
        newest: dict[tuple[str, str], tuple[datetime, Decimal]] = {}
        items = await self._calls.pages(
            "ec2",
            region,
            "describe_spot_price_history",
            "SpotPriceHistory",
            f"offers in {region}",
            InstanceTypes=list(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
            MaxResults=self._options.page_size,
        )
        try:
            for item in items:
                at, price = item["Timestamp"], _price(item["SpotPrice"])
                key = (item["InstanceType"], item["AvailabilityZone"])
                if key not in newest or newest[key][0] < at:
                    newest[key] = (at, price)
        except _UNREADABLE as error:
            raise Ambiguous(f"offers in {region}: an unreadable spot price ({type(error).__name__})") from None
        return {key: price for key, (_, price) in newest.items()}

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _read(self, region: str) -> Catalog:
        patterns = [*_GPU_PATTERNS, *(f"{family}.*" for family in self._options.cpu_families)]
        described, offered = await asyncio.gather(
            self._calls.pages(
                "ec2",
                region,
                "describe_instance_types",
                "InstanceTypes",
                f"offers in {region}",
                Filters=[
                    _filter("instance-type", patterns),
                    _filter("processor-info.supported-architecture", ["x86_64"]),
                    _filter("bare-metal", ["false"]),
                ],
                MaxResults=min(100, self._options.page_size),
            ),
            self._calls.pages(
                "ec2",
                region,
                "describe_instance_type_offerings",
                "InstanceTypeOfferings",
                f"offers in {region}",
                LocationType="availability-zone",
                Filters=[_filter("instance-type", patterns)],
                MaxResults=self._options.page_size,
            ),
        )
        try:
            machines = self._machines(described)
            zones = _zones(offered, self._options.subnet_ids)
        except _UNREADABLE as error:
            raise Ambiguous(f"offers in {region}: an unreadable type ({type(error).__name__}: {error})") from None
        return Catalog(region, machines, zones, await self._prices(region, machines))

    def _machines(self, described: Iterable[Mapping[str, Any]]) -> dict[str, Machine]:
        found = (machine_of(item, self._options.cpu_families) for item in described)
        return {machine.type: machine for machine in found if machine is not None}

    async def _prices(self, region: str, machines: Mapping[str, Machine]) -> dict[str, Decimal]:
        """On-demand prices by type."""
        if not machines:
            return {}
        terms = {
            "regionCode": region, "operatingSystem": "Linux", "preInstalledSw": "NA", "tenancy": "Shared",
            "capacitystatus": "Used",
        }  # fmt: skip
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in terms.items()]
        products: list[str] = []
        for types in batches(sorted(machines), _FILTER_CHARACTERS):
            products += await self._calls.pages(
                "pricing",
                _PRICING_REGION,
                "get_products",
                "PriceList",
                f"prices in {region}",
                ServiceCode="AmazonEC2",
                Filters=[*filters, {"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(types)}],
                MaxResults=min(100, self._options.page_size),
            )
        try:
            return dict(filter(None, map(_on_demand, products)))
        except _UNREADABLE as error:
            raise Ambiguous(f"prices in {region}: an unreadable product ({type(error).__name__})") from None


def batches(names: Iterable[str], characters: int) -> list[list[str]]:
    """The names in lists whose comma-separated forms have at most so many characters."""
    found: list[list[str]] = []
    for name in names:
        if found and len(",".join([*found[-1], name])) <= characters:
            found[-1].append(name)
        else:
            found.append([name])
    return found


def _on_demand(product: str) -> tuple[str, Decimal] | None:
    """The type and its USD an hour; None for what is not sold by the hour."""
    read = json.loads(product)
    for term in read.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs" and "USD" in dimension["pricePerUnit"]:
                price = _price(dimension["pricePerUnit"]["USD"])
                # A reservation's hours are listed at 0.
                return (read["product"]["attributes"]["instanceType"], price) if price else None
    return None


def _zones(offered: Iterable[Mapping[str, Any]], subnets: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The zones of each type; only those with a subnet, where there are subnets."""
    zones: defaultdict[str, set[str]] = defaultdict(set)
    for item in offered:
        if not subnets or item["Location"] in subnets:
            zones[item["InstanceType"]].add(item["Location"])
    return {name: tuple(sorted(found)) for name, found in zones.items()}


def _price(text: str) -> Decimal:
    price = Decimal(text)
    if not price.is_finite() or price < 0:
        raise ValueError(text)
    return price


def _filter(name: str, values: Sequence[str]) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}
