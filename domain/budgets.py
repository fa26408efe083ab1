"""Budgets: the window that one counts in, what draws on it, and the moment at which it has to stop what runs.

A unit of billing belongs to the window in which it begins, so the spend of adjoining windows adds up exactly. Amounts
inside are (USD per hour) x seconds, as in `domain.money`: dividing by an hour comes last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from domain.limits import MeteredInstance
from domain.money import Usd, rate_seconds, usd

DEFAULT_ALERT_PERCENTS = (50, 80, 100)
EXHAUSTED_PERCENT = 100
_HOUR = Decimal(3600)
_LONGEST = timedelta(days=365 * 100)
_RESOLUTION = timedelta(microseconds=1)


class BudgetPeriod(StrEnum):
    """`monthly`: calendar months in the organization's time zone. `total`: everything since the budget was made."""

    MONTHLY = "monthly"
    TOTAL = "total"


class AlertKind(StrEnum):
    """`threshold`: the spend reached a percentage. `exhausted`: the budget stopped its jobs. `overspent`: the spend is
    over the amount all the same, as while a provider does not confirm a deletion."""

    THRESHOLD = "threshold"
    EXHAUSTED = "exhausted"
    OVERSPENT = "overspent"


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a budget counts: [start, end), in UTC. `end` is None for a budget that never begins anew."""

    start: datetime
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """What one job draws on its budgets.

    `instances` are all that were ever billed for it; `pending_usd` is the least cost of attempts that a provider was
    asked for and has not confirmed. `ended` jobs ask for nothing new: they hold no more than their machines cost.
    """

    reserved_usd: Decimal
    instances: tuple[MeteredInstance, ...] = ()
    pending_usd: Decimal = Decimal(0)
    ended: bool = False


def window_at(period: BudgetPeriod, zone: str, created_at: datetime, now: datetime) -> Window:
    """The window of a budget that `now` lies in. A month begins with its first local instant, whatever summer time
    does to midnight, so that months meet without a gap."""
    if period is BudgetPeriod.TOTAL:
        return Window(created_at)
    local = now.astimezone(ZoneInfo(zone))
    year, month = local.year, local.month
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return Window(_first_instant(year, month, zone), _first_instant(*following, zone))


def spent(draws: Sequence[Draw], window: Window, now: datetime, settled: Decimal = Decimal(0)) -> Usd:
    """The exact spend of the window by `now`. `settled` is what is not among the draws, in rate-seconds."""
    return usd(settled + _sum(draws, lambda i: _within(i, window, i.ended_at or now, by=now)))


def held(draws: Sequence[Draw], window: Window, now: datetime, settled: Decimal = Decimal(0)) -> Usd:
    """What is not free any more: spend, the margins of what runs, and what live jobs have reserved beyond that."""
    return usd(settled + sum((_hold(draw, window, now) for draw in draws), Decimal(0)))


def hold(draw: Draw, window: Window, now: datetime) -> Usd:
    """What one job keeps others from spending: the larger of what it reserved and what it costs if stopped now."""
    return usd(_hold(draw, window, now))


def burn_usd_hr(draws: Sequence[Draw]) -> Decimal:
    """USD per hour of all that is billed now."""
    live = [i for draw in draws for i in draw.instances if i.ended_at is None]
    return sum((i.prices[-1].usd_per_hour for i in live if i.prices), Decimal(0))


def firing_moment(
    draws: Sequence[Draw], amount_usd: Decimal, window: Window, now: datetime, settled: Decimal = Decimal(0)
) -> datetime | None:
    """The latest instant to begin all teardowns so that the spend of the window stays within the amount: there the
    balance equals the margins of what runs. `now` means: at once. None: not in this window, at today's prices."""
    pending = sum((draw.pending_usd for draw in draws), Decimal(0)) * _HOUR

    def fits(moment: datetime) -> bool:
        return settled + pending + _sum(draws, lambda i: _stopped_at(i, window, moment)) <= amount_usd * _HOUR

    return _latest(fits, draws, window, now)


def crossing_moment(
    draws: Sequence[Draw], threshold_usd: Decimal, window: Window, now: datetime, settled: Decimal = Decimal(0)
) -> datetime | None:
    """The first instant at which the spend of the window is `threshold_usd` or more; `now` when it is already."""

    def below(moment: datetime) -> bool:
        return (
            settled + _sum(draws, lambda i: _within(i, window, i.ended_at or moment, by=moment)) < threshold_usd * _HOUR
        )

    last = _latest(below, draws, window, now)
    return last if last is None or not below(now) else last + _RESOLUTION


def _first_instant(year: int, month: int, zone: str) -> datetime:
    return datetime(year, month, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def _sum(draws: Sequence[Draw], cost: Callable[[MeteredInstance], Decimal]) -> Decimal:
    return sum((cost(i) for draw in draws for i in draw.instances), Decimal(0))


def _hold(draw: Draw, window: Window, now: datetime) -> Decimal:
    cost = sum((_stopped_at(i, window, now) for i in draw.instances), draw.pending_usd * _HOUR)
    if draw.ended:
        return cost
    # What it reserved pays for all its windows: what earlier ones have cost is used up.
    before = sum((_until(i, min(window.start, i.ended_at or window.start)) for i in draw.instances), Decimal(0))
    return max(cost, draw.reserved_usd * _HOUR - before)


def _until(instance: MeteredInstance, moment: datetime) -> Decimal:
    """The cost of the units that begin before `moment`."""
    return rate_seconds(instance.prices, instance.allocated_at, moment, instance.unit_seconds)


def _within(instance: MeteredInstance, window: Window, end: datetime, *, by: datetime | None = None) -> Decimal:
    """The cost of the units that begin in the window, before the instance's `end`, and by `by`."""
    last = min(end, by or end, window.end or end)
    return max(Decimal(0), _until(instance, last) - _until(instance, min(last, window.start)))


def _stopped_at(instance: MeteredInstance, window: Window, moment: datetime) -> Decimal:
    """The cost within the window in the end, if the instance's teardown begins at `moment`."""
    return _within(instance, window, instance.ended_at or moment + timedelta(seconds=instance.teardown_seconds))


def _latest(holds: Callable[[datetime], bool], draws: Sequence[Draw], window: Window, now: datetime) -> datetime | None:
    """The latest instant of the window at which `holds`, which is true first and false from then on; exact to the
    microsecond. `now` when it does not hold; None when it does to the end of the window, or for a century."""
    if not holds(now):
        return now
    if not burn_usd_hr(draws):
        return None
    end = now + _LONGEST if window.end is None else max(now, window.end)
    if holds(end):
        return None
    low, step = now, timedelta(seconds=1)
    while low + step < end and holds(low + step):
        low += step
        step *= 2
    high = min(low + step, end)
    while high - low > _RESOLUTION:
        middle = low + (high - low) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
