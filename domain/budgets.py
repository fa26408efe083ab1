"""Budgets: the window that one counts in, what draws on it, and the moment at which it has to stop what runs.

Costs are exact integers here: attos, which are 10^-18 (USD per hour) x seconds, as in `domain.money`. A unit of billing
belongs to the window in which it begins, so the spend of adjoining windows adds up.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from domain.limits import MeteredInstance
from domain.money import RATE_PLACES, Run, charged_units, runs

DEFAULT_ALERT_PERCENTS = (50, 80, 100)
EXHAUSTED_PERCENT = 100
_USD = Decimal(3600 * 10**RATE_PLACES)
_EXACT = Context(prec=100)
_LONGEST = timedelta(days=365 * 100)
_RESOLUTION = timedelta(microseconds=1)
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


class BudgetPeriod(StrEnum):
    """`monthly`: calendar months in the organization's time zone. `total`: everything since the budget was made."""

    MONTHLY = "monthly"
    TOTAL = "total"


class AlertKind(StrEnum):
    """`threshold`: the spend reached a percentage. `exhausted`: the budget stopped its jobs, or is spent. `overspent`:
    the spend is over the amount, as while a provider does not confirm a deletion."""

    THRESHOLD = "threshold"
    EXHAUSTED = "exhausted"
    OVERSPENT = "overspent"


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a budget counts: [start, end), in UTC. `end` is None for a budget that never begins anew."""

    start: datetime
    end: datetime | None = None

    def cost(self, billed: Iterable[Run]) -> int:
        """What the units cost that begin in the window, in attos."""
        parts = (run.within(self.start, self.end or _NEVER) for run in billed)
        return sum(part.attos for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Draw:
    """What one job draws on its budgets.

    `instances` are all that were ever billed for it; `pending` is the least cost of attempts that a provider was asked
    for and has not confirmed; both it and what the job has `reserved` are in attos. A job that has `ended` asks for
    nothing new: it holds no more than its machines cost.
    """

    reserved: int = 0
    instances: tuple[MeteredInstance, ...] = ()
    pending: int = 0
    ended: bool = False


def attos_within(usd: Decimal) -> int:
    """The attos that an amount allows: what is finer than they are is left out."""
    return int(_EXACT.multiply(usd, _USD).to_integral_value(rounding=ROUND_FLOOR))


def attos_for(usd: Decimal) -> int:
    """The attos that a cost takes: what is finer than they are is counted as one."""
    return int(_EXACT.multiply(usd, _USD).to_integral_value(rounding=ROUND_CEILING))


def rate_seconds_of(attos: int) -> Decimal:
    """(USD per hour) x seconds, exactly: the form in which attos are stored."""
    return _EXACT.scaleb(Decimal(attos), -RATE_PLACES)


def window_at(period: BudgetPeriod, zone: str, created_at: datetime, now: datetime) -> Window:
    """The window of a budget that `now` lies in. A month begins with its first local instant, whatever summer time
    does to midnight, so that months meet without a gap."""
    if period is BudgetPeriod.TOTAL:
        return Window(created_at)
    local = now.astimezone(ZoneInfo(zone))
    year, month = local.year, local.month
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return Window(_first_instant(year, month, zone), _first_instant(*following, zone))


def spent(draws: Sequence[Draw], window: Window, now: datetime, settled: int = 0) -> int:
    """The spend of the window by `now`, in attos. `settled` is the part that is not among the draws."""
    return settled + sum(window.cost(i.runs(now)) for i in _instances(draws))


def held(draws: Sequence[Draw], window: Window, now: datetime, settled: int = 0) -> int:
    """What is not free any more, in attos: spend, the margins of what runs, and what live jobs reserved beyond that."""
    return settled + sum(hold(draw, window, now) for draw in draws)


def hold(draw: Draw, window: Window, now: datetime) -> int:
    """What one job keeps others from spending: the larger of what it reserved and what it costs if stopped now."""
    cost = draw.pending + sum(_if_stopped_at(i, window, now) for i in draw.instances)
    if draw.ended:
        return cost
    # What it reserved is for all its windows: what the earlier ones have cost is used up.
    before = Window(datetime.min.replace(tzinfo=UTC), window.start)
    return max(cost, draw.reserved - sum(before.cost(i.runs(now)) for i in draw.instances))


def burn_usd_hr(draws: Sequence[Draw]) -> Decimal:
    """USD per hour of all that is billed now."""
    live = [i for i in _instances(draws) if i.ended_at is None]
    return sum((i.prices[-1].usd_per_hour for i in live if i.prices), Decimal(0))


def firing_moment(
    draws: Sequence[Draw], amount: int, window: Window, now: datetime, settled: int = 0
) -> datetime | None:
    """The latest instant to begin all teardowns so that the spend of the window stays within the amount (attos): there
    the balance equals the margins of what runs. `now` means: at once. None: not in this window, at today's prices."""
    fixed = settled + sum(draw.pending for draw in draws)

    def fits(moment: datetime) -> bool:
        return fixed + sum(_if_stopped_at(i, window, moment) for i in _instances(draws)) <= amount

    return _latest(fits, draws, window, now)


def crossing_moment(
    draws: Sequence[Draw], threshold: int, window: Window, now: datetime, settled: int = 0
) -> datetime | None:
    """The first instant at which the spend of the window is `threshold` (attos) or more; `now` when it is already."""

    def below(moment: datetime) -> bool:
        return spent(draws, window, moment, settled) < threshold

    last = _latest(below, draws, window, now)
    return last if last is None or not below(now) else last + _RESOLUTION


def _first_instant(year: int, month: int, zone: str) -> datetime:
    return datetime(year, month, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def _instances(draws: Sequence[Draw]) -> Iterable[MeteredInstance]:
    return (instance for draw in draws for instance in draw.instances)


def _if_stopped_at(instance: MeteredInstance, window: Window, moment: datetime) -> int:
    """The cost within the window in the end, if the instance's teardown begins at `moment`. One that lives may begin to
    cost any moment, so it counts from its allocation."""
    if instance.ended_at is not None:
        return window.cost(instance.runs(instance.ended_at))
    end = moment + timedelta(seconds=instance.teardown_seconds)
    units = charged_units(instance.allocated_at, end, instance.unit_seconds, instance.minimum_seconds)
    return window.cost(runs(instance.prices, instance.allocated_at, units, instance.unit_seconds))


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
