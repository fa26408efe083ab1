"""Money: exact decimals in USD, billable units, and the cost of an interval under changing prices.

Billing (seed): starts at allocation, whole minutes per resource, rounded up. 1,560 s at 0.44/h is 0.19.

A cost is first an exact number of (USD per hour) x seconds, `rate_seconds`: an hour has no finite decimal reciprocal,
so what is to be added up is added before it is divided. A unit belongs to the moment in which it begins: it has the
price in force then, and counts into the window that holds that moment. So the costs of all parts of a window add up to
its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from typing import NewType

Usd = NewType("Usd", Decimal)
UsdPerHour = NewType("UsdPerHour", Decimal)

RATE_PLACES = 18
"""The decimal places of a rate; attos are units of the last one."""

_CENT = Decimal("0.01")
_HOUR = Decimal(3600)
_ATTOS = 10**RATE_PLACES
_EXACT = Context(prec=100)


class PricingModel(StrEnum):
    """The billable unit of an instance."""

    INSTANCE_MINUTES = "instance_minutes"
    INSTANCE_SECONDS = "instance_seconds"

    @property
    def unit_seconds(self) -> int:
        return 60 if self is PricingModel.INSTANCE_MINUTES else 1


LONGEST_UNIT = timedelta(seconds=max(model.unit_seconds for model in PricingModel))


@dataclass(frozen=True, slots=True)
class PriceInterval:
    """From `since` on, until the next interval, the instance costs `usd_per_hour`."""

    since: datetime
    usd_per_hour: UsdPerHour


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive billable units at one price; there is at least one. Times are in UTC."""

    begins_at: datetime
    units: int
    unit_seconds: int
    usd_per_hour: UsdPerHour

    @property
    def last_at(self) -> datetime:
        """When the last unit begins."""
        return self.begins_at + (self.units - 1) * timedelta(seconds=self.unit_seconds)

    @property
    def ends_at(self) -> datetime:
        return self.begins_at + self.units * timedelta(seconds=self.unit_seconds)

    @property
    def seconds(self) -> int:
        return self.units * self.unit_seconds

    @property
    def attos(self) -> int:
        """Its exact cost in (10^-18 USD per hour) x seconds."""
        return attos(self.usd_per_hour) * self.seconds

    def within(self, begin: datetime, end: datetime) -> "Run | None":
        """The units that begin in [begin, end); None when none does."""
        first = min(self.units, billable_units(self.begins_at, begin, self.unit_seconds))
        after = min(self.units, billable_units(self.begins_at, end, self.unit_seconds))
        if after <= first:
            return None
        begins_at = self.begins_at + first * timedelta(seconds=self.unit_seconds)
        return Run(begins_at, after - first, self.unit_seconds, self.usd_per_hour)

    def by_day(self) -> "Iterator[Run]":
        """The same units, those of each UTC day by themselves."""
        rest: Run | None = self
        while rest is not None:
            midnight = rest.begins_at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
            midnight += timedelta(days=1)
            part = rest.within(rest.begins_at, midnight)
            assert part is not None
            yield part
            rest = rest.within(midnight, rest.ends_at)


def cents(amount: Decimal) -> Decimal:
    """Rounded half-up to cents, as answers show amounts. Rates and ledgers stay exact."""
    return amount.quantize(_CENT, rounding=ROUND_HALF_UP)


def cents_of(cost_attos: int) -> Decimal:
    """The USD of an exact cost in (10^-18 USD per hour) x seconds, rounded half-up to cents by integers alone."""
    hundred, hour = 100 * cost_attos, 3600 * _ATTOS
    return _EXACT.scaleb(Decimal((2 * hundred + hour) // (2 * hour)), -2)


def usd_of(cost_attos: int) -> Usd:
    """The USD of an exact cost in (10^-18 USD per hour) x seconds, to 100 digits."""
    return Usd(_EXACT.divide(Decimal(cost_attos), Decimal(3600 * _ATTOS)))


def attos(rate: Decimal) -> int:
    """A recorded rate as a whole number of 10^-18 USD per hour."""
    return int(_EXACT.scaleb(rate, RATE_PLACES))


def recorded(rate: Decimal) -> UsdPerHour:
    """A rate as it is put on record: at most 18 decimal places, half-up. What a backend says beyond that is noise."""
    exponent = rate.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -RATE_PLACES:
        return UsdPerHour(rate)
    return UsdPerHour(rate.quantize(Decimal(1).scaleb(-RATE_PLACES), rounding=ROUND_HALF_UP, context=_EXACT))


def billable_units(start: datetime, end: datetime, unit_seconds: int) -> int:
    """Whole units from `start` to `end`, rounded up, which is how many begin before `end`; none for an interval that
    has not begun."""
    elapsed = end - start
    if elapsed <= timedelta(0):
        return 0
    return -(-elapsed // timedelta(seconds=unit_seconds))


def charged_units(start: datetime, end: datetime, unit_seconds: int, minimum_seconds: int = 0) -> int:
    """`billable_units`, where whoever begins pays for `minimum_seconds` at least."""
    units = billable_units(start, end, unit_seconds)
    return units and max(units, -(-minimum_seconds // unit_seconds))


def runs(prices: Sequence[PriceInterval], start: datetime, units: int, unit_seconds: int) -> Iterator[Run]:
    """The first `units` units from `start` on, in order: each at the price in force at its beginning.

    `prices` is in order of `since`; the first one also holds before its own `since`. Empty means free.
    """
    step = timedelta(seconds=unit_seconds)
    first = 0
    for index, price in enumerate(prices or (PriceInterval(start, UsdPerHour(Decimal(0))),)):
        following = prices[index + 1].since if index + 1 < len(prices) else None
        # The units that begin before the next price takes over.
        last = units if following is None else min(units, max(first, billable_units(start, following, unit_seconds)))
        if last > first:
            yield Run(start + first * step, last - first, unit_seconds, price.usd_per_hour)
        first = last
    assert first == units, (first, units)


def cost(prices: Sequence[PriceInterval], start: datetime, end: datetime, unit_seconds: int) -> Usd:
    """The cost of [start, end). To add several up, sum their `rate_seconds` and divide once: that is exact."""
    return usd(rate_seconds(prices, start, end, unit_seconds))


def usd(rate_seconds: Decimal) -> Usd:
    """Dollars from (USD per hour) x seconds. An hour has no finite decimal reciprocal: divide last."""
    return Usd(rate_seconds / _HOUR)


def rate_seconds(
    prices: Sequence[PriceInterval], start: datetime, end: datetime, unit_seconds: int, minimum_seconds: int = 0
) -> Decimal:
    """The exact cost of [start, end) in (USD per hour) x seconds; `prices` as for `runs`."""
    units = charged_units(start, end, unit_seconds, minimum_seconds)
    return sum((run.usd_per_hour * run.seconds for run in runs(prices, start, units, unit_seconds)), Decimal(0))
