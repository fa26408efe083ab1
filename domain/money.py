"""Money: exact decimals in USD, billable units, and the cost of an interval under changing prices.

Billing (seed): starts at allocation, whole minutes per resource, rounded up. 1,560 s at 0.44/h is 0.19.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import NewType

Usd = NewType("Usd", Decimal)
UsdPerHour = NewType("UsdPerHour", Decimal)

_CENT = Decimal("0.01")
_HOUR = Decimal(3600)


class PricingModel(StrEnum):
    """The billable unit of an instance."""

    INSTANCE_MINUTES = "instance_minutes"
    INSTANCE_SECONDS = "instance_seconds"

    @property
    def unit_seconds(self) -> int:
        return 60 if self is PricingModel.INSTANCE_MINUTES else 1


@dataclass(frozen=True, slots=True)
class PriceInterval:
    """From `since` on, until the next interval, the instance costs `usd_per_hour`."""

    since: datetime
    usd_per_hour: UsdPerHour


def cents(amount: Decimal) -> Decimal:
    """Rounded half-up to cents, as answers show amounts. Rates and ledgers stay exact."""
    return amount.quantize(_CENT, rounding=ROUND_HALF_UP)


def billable_units(start: datetime, end: datetime, unit_seconds: int) -> int:
    """Whole units from `start` to `end`, rounded up; nothing for an interval that has not begun."""
    elapsed = end - start
    if elapsed <= timedelta(0):
        return 0
    return -(-elapsed // timedelta(seconds=unit_seconds))


def cost(prices: Sequence[PriceInterval], start: datetime, end: datetime, unit_seconds: int) -> Usd:
    """The cost of [start, end). To add several up, sum their `rate_seconds` and divide once: that is exact."""
    return usd(rate_seconds(prices, start, end, unit_seconds))


def usd(rate_seconds: Decimal) -> Usd:
    """Dollars from (USD per hour) x seconds. An hour has no finite decimal reciprocal: divide last."""
    return Usd(rate_seconds / _HOUR)


def rate_seconds(prices: Sequence[PriceInterval], start: datetime, end: datetime, unit_seconds: int) -> Decimal:
    """The exact cost of [start, end) in (USD per hour) x seconds: each unit at the price in force at its beginning.

    `prices` is in order of `since`; the first one also holds before its own `since`. Empty means free.
    """
    units = billable_units(start, end, unit_seconds)
    total = Decimal(0)
    if units == 0 or not prices:
        return total
    first = 0
    for index, price in enumerate(prices):
        following = prices[index + 1].since if index + 1 < len(prices) else None
        # The units that begin before the next price takes over.
        last = units if following is None else min(units, max(first, billable_units(start, following, unit_seconds)))
        total += (last - first) * price.usd_per_hour * unit_seconds
        first = last
    assert first == units, (first, units)
    return total
