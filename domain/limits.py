"""When a limit must end a job: the latest instant at which its spend still stays within what was allowed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal

from domain.money import PriceInterval, Run, Usd, UsdPerHour, charged_units, rate_seconds, runs, usd

_LONGEST_HOURS = Decimal(24 * 365 * 100)
_LONGEST = timedelta(hours=int(_LONGEST_HOURS))
"""No timer is set further ahead."""
_ATTO_USD = Decimal("1e-18")


@dataclass(frozen=True, slots=True)
class MeteredInstance:
    """What the limit needs of one instance, live or past. `ended_at` is None while it may still be billed.

    `allocated_at` is when its charge begins (`domain.billing.metered`).
    """

    allocated_at: datetime
    ended_at: datetime | None
    prices: tuple[PriceInterval, ...]
    unit_seconds: int
    teardown_seconds: float
    minimum_seconds: int = 0
    """Once it is charged at all, for so long at least."""
    begun: bool = True
    """False where its backend charges from the workload's start, and that has not come: it costs nothing so far."""

    def rate_seconds_at(self, now: datetime) -> Decimal:
        """What it has cost by `now`, in whole units rounded up, as (USD per hour) x seconds."""
        return self._rate_seconds_until(min(now, self.ended_at or now)) if self.begun else Decimal(0)

    def rate_seconds_if_stopped_at(self, moment: datetime) -> Decimal:
        """What it will have cost in the end, if its teardown begins at `moment`. One that lives may begin to cost any
        moment, so it counts from its allocation."""
        if self.ended_at is not None:
            return self.rate_seconds_at(self.ended_at)
        return self._rate_seconds_until(moment + timedelta(seconds=self.teardown_seconds))

    def runs(self, now: datetime) -> Iterator[Run]:
        """The units that it has cost by `now`, those of the least charge that are still to come among them."""
        if self.begun:
            end = min(now, self.ended_at or now)
            units = charged_units(self.allocated_at, end, self.unit_seconds, self.minimum_seconds)
            yield from runs(self.prices, self.allocated_at, units, self.unit_seconds)

    def _rate_seconds_until(self, end: datetime) -> Decimal:
        return rate_seconds(self.prices, self.allocated_at, end, self.unit_seconds, self.minimum_seconds)


def accrued(instances: Sequence[MeteredInstance], now: datetime) -> Usd:
    """The exact spend of all attempts by `now`."""
    return usd(sum((i.rate_seconds_at(now) for i in instances), Decimal(0)))


def runtime_deadline(first_allocated_at: datetime, max_runtime_hours: Decimal) -> datetime:
    """`max_runtime_hours` runs from the first allocation, over all attempts; more than a century counts as one."""
    microseconds = (min(max_runtime_hours, _LONGEST_HOURS) * 3_600_000_000).to_integral_value(rounding=ROUND_CEILING)
    return first_allocated_at + timedelta(microseconds=int(microseconds))


def cost_deadline(instances: Sequence[MeteredInstance], max_cost_usd: Decimal, now: datetime) -> datetime | None:
    """The latest instant to begin the teardown so that the spend through its expected end stays within the limit.

    None when no live instance costs anything, or the limit lies more than a century ahead. `now` means: at once.
    Exact to the microsecond, found by search: the spend never falls with time.
    """
    live = [i for i in instances if i.ended_at is None]
    if not any(p.usd_per_hour for i in live for p in i.prices[-1:]):
        return None

    def affordable_until(moment: datetime) -> bool:
        return usd(sum((i.rate_seconds_if_stopped_at(moment) for i in instances), Decimal(0))) <= max_cost_usd

    if not affordable_until(now):
        return now
    low, step = now, timedelta(seconds=1)
    while affordable_until(low + step):
        low += step
        step *= 2
        if low > now + _LONGEST:
            return None
    high = low + step
    while high - low > timedelta(microseconds=1):
        middle = low + (high - low) // 2
        if affordable_until(middle):
            low = middle
        else:
            high = middle
    return low


def affordable(
    price: UsdPerHour,
    unit_seconds: int,
    teardown_seconds: float,
    spent: Decimal,
    max_cost_usd: Decimal | None,
    minimum_seconds: int = 0,
) -> bool:
    """Whether an offer's first unit and its teardown fit into what is left of the limit."""
    if max_cost_usd is None:
        return True
    # `spent` was divided already: what that cut off must not decide.
    least = least_cost(price, unit_seconds, teardown_seconds, minimum_seconds)
    return spent + least <= max_cost_usd + _ATTO_USD


def least_cost(price: UsdPerHour, unit_seconds: int, teardown_seconds: float, minimum_seconds: int = 0) -> Usd:
    """What an offer's first unit and its teardown cost, or its least charge: nothing on it costs less."""
    units = 1 + -(-timedelta(seconds=teardown_seconds) // timedelta(seconds=unit_seconds))
    return usd(max(units, -(-minimum_seconds // unit_seconds)) * price * unit_seconds)
