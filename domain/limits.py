"""When a limit must end a job: the latest instant at which its spend still stays within what was allowed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal

from domain.money import PriceInterval, Usd, UsdPerHour, cost


@dataclass(frozen=True, slots=True)
class MeteredInstance:
    """What the limit needs of one instance, live or past. `ended_at` is None while it may still be billed."""

    allocated_at: datetime
    ended_at: datetime | None
    prices: tuple[PriceInterval, ...]
    unit_seconds: int
    teardown_seconds: float

    def cost_at(self, now: datetime) -> Usd:
        """What it has cost by `now`, in whole units rounded up."""
        return cost(self.prices, self.allocated_at, min(now, self.ended_at or now), self.unit_seconds)


def accrued(instances: Sequence[MeteredInstance], now: datetime) -> Usd:
    """The exact spend of all attempts by `now`."""
    return Usd(sum((i.cost_at(now) for i in instances), Decimal(0)))


def runtime_deadline(first_allocated_at: datetime, max_runtime_hours: Decimal) -> datetime:
    """`max_runtime_hours` runs from the first allocation, over all attempts."""
    microseconds = (max_runtime_hours * 3_600_000_000).to_integral_value(rounding=ROUND_CEILING)
    return first_allocated_at + timedelta(microseconds=int(microseconds))


def cost_deadline(instances: Sequence[MeteredInstance], max_cost_usd: Decimal, now: datetime) -> datetime | None:
    """The latest instant to begin the teardown so that the spend through its expected end stays within the limit.

    None when no live instance costs anything. An instant in the past means: at once. Exact, by search over the unit
    boundaries of the live instances, since the spend only steps there.
    """
    live = [i for i in instances if i.ended_at is None]
    if not any(p.usd_per_hour for i in live for p in i.prices[-1:]):
        return None

    def spend_if_stopped_at(moment: datetime) -> Decimal:
        total = Decimal(0)
        for i in instances:
            end = i.ended_at or moment + timedelta(seconds=i.teardown_seconds)
            total += cost(i.prices, i.allocated_at, end, i.unit_seconds)
        return total

    if spend_if_stopped_at(now) > max_cost_usd:
        return now
    # Exponential, then binary search on whole milliseconds: the spend never falls with time.
    low, step = 0, 1_000
    while spend_if_stopped_at(now + timedelta(milliseconds=low + step)) <= max_cost_usd:
        low += step
        step *= 2
        if step > 1 << 42:  # over a hundred years: no limit that a timer could hold
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if spend_if_stopped_at(now + timedelta(milliseconds=middle)) <= max_cost_usd:
            low = middle
        else:
            high = middle
    return now + timedelta(milliseconds=low)


def affordable(
    price: UsdPerHour, unit_seconds: int, teardown_seconds: float, spent: Decimal, max_cost_usd: Decimal | None
) -> bool:
    """Whether an offer's first unit and its teardown fit into what is left of the limit."""
    if max_cost_usd is None:
        return True
    units = 1 + -(-int(teardown_seconds * 1000) // (unit_seconds * 1000))
    return spent + units * price * unit_seconds / Decimal(3600) <= max_cost_usd
