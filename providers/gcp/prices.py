"""Prices of machines, summed from the SKUs of Cloud Billing: cores, memory, GPUs, bundled local disks. No I/O.

A SKU says what it prices in its description only ("Spot Preemptible A2 Instance Core running in Americas"), so it is
known by that, exactly: what reads otherwise (custom, sole tenancy, reserved, commitments) is another product.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_CORE, _RAM = "instance core", "instance ram"
SERIES: Mapping[str, str] = {
    "a2": "a2", "a3-highgpu": "a3", "a3-edgegpu": "a3", "a3-megagpu": "a3plus", "a3-ultragpu": "a3ultra", "a4": "a4",
    "e2": "e2", "g2": "g2", "g4": "g4", "n1": "n1 predefined", "n2": "n2", "n2d": "n2d amd", "c3": "c3",
}  # fmt: skip
"""What a family of machines is called in SKUs; the longest beginning of its name counts."""

GPU_SKUS: Mapping[str, tuple[str, ...]] = {
    "nvidia-tesla-t4": ("nvidia tesla t4 gpu",),
    "nvidia-tesla-v100": ("nvidia tesla v100 gpu",),
    "nvidia-tesla-a100": ("nvidia tesla a100 gpu",),
    "nvidia-a100-80gb": ("nvidia tesla a100 80gb gpu",),
    "nvidia-l4": ("nvidia l4 gpu",),
    "nvidia-h100-80gb": ("nvidia h100 80gb gpu",),
    "nvidia-h100-mega-80gb": ("nvidia h100 80gb mega gpu", "nvidia h100 mega 80gb gpu", "nvidia h100 80gb plus gpu"),
    "nvidia-h200-141gb": ("nvidia h200 141gb gpu",),
    "nvidia-b200": ("nvidia b200 (1 gpu slice)", "nvidia b200 gpu"),
    "nvidia-rtx-pro-6000": ("nvidia rtx pro 6000 gpu", "nvidia rtx 6000 96gb gpu"),
}
_LOCAL_DISK = "ssd backed local storage"
_LOCAL_DISK_GIB = 375
_HOURS_A_MONTH = 730
_UNITS = {"h", "GiBy.h", "GiBy.mo"}
_USAGE = {"OnDemand": False, "Preemptible": True}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is priced of a machine; memory in MiB."""

    machine: str
    vcpus: int
    memory_mib: int
    accelerator: str = ""
    gpu_count: int = 0
    local_disks: int = 0


Prices = Mapping[tuple[str, str, bool], Decimal]
"""USD per unit (core hour, GiB hour, GPU hour, GiB month) by what is priced, region and spot."""


def prices_of(skus: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, bool], Decimal]:
    """Of two SKUs for the same, the dearer counts.

    Raises:
        KeyError, TypeError, ValueError, IndexError, ArithmeticError: a SKU cannot be read.
    """
    prices: dict[tuple[str, str, bool], Decimal] = {}
    for sku in skus:
        category = sku["category"]
        spot = _USAGE.get(category["usageType"])
        if spot is None or category["resourceFamily"] not in ("Compute", "Storage"):
            continue
        name = _named(sku["description"])
        if not _is_wanted(name) or not sku["pricingInfo"]:
            continue
        price = _unit_price(sku["pricingInfo"][-1]["pricingExpression"])
        if not price:
            continue
        for region in sku["serviceRegions"]:
            key = (name, region, spot)
            prices[key] = max(price, prices.get(key, price))
    return prices


def price_of(shape: Shape, region: str, spot: bool, prices: Prices) -> Decimal | None:
    """USD an hour for the machine without its boot disk; None where a part of it has no price."""
    series = _series(shape.machine)
    core, ram = prices.get((f"{series} {_CORE}", region, spot)), prices.get((f"{series} {_RAM}", region, spot))
    if core is None or ram is None:
        return None
    total = core * shape.vcpus + ram * shape.memory_mib / 1024
    if shape.gpu_count:
        found = [prices[key] for name in GPU_SKUS.get(shape.accelerator, ()) if (key := (name, region, spot)) in prices]
        if not found:
            return None
        total += max(found) * shape.gpu_count
    disk = prices.get((_LOCAL_DISK, region, spot)) or prices.get((_LOCAL_DISK, region, False))
    if shape.local_disks and disk is not None:
        total += disk * _LOCAL_DISK_GIB * shape.local_disks / _HOURS_A_MONTH
    # Prices of parts are in nano-dollars; the share of a month would go on for ever.
    return total.quantize(Decimal("1e-9"))


def _named(description: str) -> str:
    """What a SKU prices, without where and how it is rented."""
    name = description.lower().removeprefix("spot preemptible ").removeprefix("preemptible ")
    name = name.replace(" attached to spot preemptible vms", "").replace(" attached to preemptible vms", "")
    return name.partition(" running in ")[0].partition(" in ")[0].strip()


def _is_wanted(name: str) -> bool:
    return name.endswith((_CORE, _RAM)) or name == _LOCAL_DISK or any(name in names for names in GPU_SKUS.values())


def _unit_price(expression: Mapping[str, Any]) -> Decimal:
    """The dearest tier."""
    if expression["usageUnit"] not in _UNITS:
        return Decimal(0)
    return max(_money(rate["unitPrice"]) for rate in expression["tieredRates"])


def _money(price: Mapping[str, Any]) -> Decimal:
    if price.get("currencyCode", "USD") != "USD":
        raise ValueError(f"a price in {price['currencyCode']}")
    amount = Decimal(str(price.get("units", "0"))) + Decimal(int(price.get("nanos", 0))) / 10**9
    if not amount.is_finite() or amount < 0:
        raise ValueError(str(amount))
    return amount


def _series(machine: str) -> str:
    for length in range(len(machine), 0, -1):
        if machine[:length] in SERIES and machine[length : length + 1] in ("-", ""):
            return SERIES[machine[:length]]
    return machine.partition("-")[0]
