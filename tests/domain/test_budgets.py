"""The windows of budgets, and the moments at which they speak, against oracles that count unit by unit."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.budgets import (
    BudgetPeriod,
    Draw,
    Window,
    attos_for,
    attos_within,
    crossing_moment,
    firing_moment,
    held,
    hold,
    rate_seconds_of,
    spent,
    window_at,
)
from domain.limits import MeteredInstance
from domain.money import PriceInterval, UsdPerHour, attos

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # summer time once began at midnight
    "America/Asuncion",  # and on the first of a month: October 2017
    "Asia/Kathmandu",
    "Pacific/Apia",  # it left out a day: 30 December 2011
    "Australia/Lord_Howe",
)
ALWAYS = Window(datetime(2026, 1, 1, tzinfo=UTC))
HOUR = 3600 * 10**18


def instance(
    usd_per_hour: str = "1",
    *,
    since: datetime = NOON,
    ended: datetime | None = None,
    unit: int = 1,
    teardown: float = 0,
    minimum: int = 0,
) -> MeteredInstance:
    prices = (PriceInterval(since, UsdPerHour(Decimal(usd_per_hour))),)
    return MeteredInstance(since, ended, prices, unit, teardown, minimum)


class TestWindows:
    @given(st.sampled_from(ZONES), st.datetimes(datetime(2005, 1, 1), datetime(2035, 12, 31)))
    def test_a_month_holds_its_moment_and_meets_its_neighbours(self, zone: str, naive: datetime) -> None:
        now = naive.replace(tzinfo=UTC)
        window = window_at(BudgetPeriod.MONTHLY, zone, now, now)
        assert window.end is not None
        assert window.start <= now < window.end
        assert window_at(BudgetPeriod.MONTHLY, zone, now, window.end).start == window.end
        before = window_at(BudgetPeriod.MONTHLY, zone, now, window.start - timedelta(microseconds=1))
        assert before.end == window.start

    @given(st.sampled_from(ZONES), st.datetimes(datetime(2005, 1, 1), datetime(2035, 12, 31)))
    def test_all_of_a_month_and_nothing_else_has_its_name_on_a_local_calendar(self, zone: str, naive: datetime) -> None:
        now = naive.replace(tzinfo=UTC)
        window = window_at(BudgetPeriod.MONTHLY, zone, now, now)
        assert window.end is not None
        here = ZoneInfo(zone)
        month = (now.astimezone(here).year, now.astimezone(here).month)
        first, last = window.start.astimezone(here), (window.end - timedelta(microseconds=1)).astimezone(here)
        assert (first.year, first.month) == (last.year, last.month) == month
        earlier = (window.start - timedelta(microseconds=1)).astimezone(here)
        assert (earlier.year, earlier.month) != month

    def test_a_total_budget_counts_from_its_making_without_an_end(self) -> None:
        assert window_at(BudgetPeriod.TOTAL, "Europe/Berlin", NOON, NOON + timedelta(days=400)) == Window(NOON)

    def test_a_unit_counts_in_the_window_in_which_it_begins(self) -> None:
        midnight = datetime(2026, 4, 1, tzinfo=UTC)
        # Minutes that begin at 23:58:30, 23:59:30, 00:00:30 and 00:01:30.
        over = instance("60", since=midnight - timedelta(seconds=90), ended=midnight + timedelta(seconds=150), unit=60)
        draws = [Draw(instances=(over,))]
        march = Window(datetime(2026, 3, 1, tzinfo=UTC), midnight)
        april = Window(midnight, datetime(2026, 5, 1, tzinfo=UTC))
        later = midnight + timedelta(days=1)
        assert spent(draws, march, later) == 2 * HOUR
        assert spent(draws, april, later) == 2 * HOUR


class TestHolds:
    def test_a_live_job_holds_what_it_reserved_until_it_costs_more(self) -> None:
        job = Draw(reserved=HOUR, instances=(instance("1", teardown=60),))
        assert hold(job, ALWAYS, NOON) == HOUR
        assert hold(job, ALWAYS, NOON + timedelta(seconds=3600)) == attos(Decimal(1)) * 3660

    def test_a_job_that_has_ended_holds_what_its_machines_cost(self) -> None:
        job = Draw(reserved=HOUR, instances=(instance("1", ended=NOON + timedelta(seconds=60)),), ended=True)
        assert hold(job, ALWAYS, NOON + timedelta(hours=1)) == attos(Decimal(1)) * 60

    def test_what_a_reservation_paid_for_last_month_is_not_held_again(self) -> None:
        april = Window(datetime(2026, 4, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC))
        job = Draw(reserved=10 * HOUR, instances=(instance("1", since=april.start - timedelta(hours=4)),))
        assert hold(job, april, april.start) == 6 * HOUR

    def test_an_attempt_whose_answer_is_awaited_counts_with_its_least_cost(self) -> None:
        job = Draw(reserved=5, pending=7)
        assert held([job, Draw(reserved=4)], ALWAYS, NOON) == 11
        assert firing_moment([job], 6, ALWAYS, NOON) == NOON


@st.composite
def fleets(draw: st.DrawFn) -> list[Draw]:
    """Machines of whole-second shapes: an oracle can look at every second."""
    jobs = []
    for _ in range(draw(st.integers(1, 3))):
        machines = []
        for _ in range(draw(st.integers(1, 2))):
            since = NOON - timedelta(seconds=draw(st.integers(0, 200)))
            ended = draw(st.none() | st.integers(0, 150).map(lambda s, since=since: since + timedelta(seconds=s)))
            changes = sorted(draw(st.lists(st.integers(1, 200), max_size=2, unique=True)))
            rates = draw(st.lists(st.integers(0, 50), min_size=len(changes) + 1, max_size=len(changes) + 1))
            moments = [since, *(since + timedelta(seconds=s) for s in changes)]
            known = [m for m in moments if m <= NOON]
            prices = tuple(
                PriceInterval(m, UsdPerHour(Decimal(r))) for m, r in zip(known, rates[: len(known)], strict=True)
            )
            ended = None if ended is not None and ended > NOON else ended
            unit = draw(st.sampled_from([1, 7, 60]))
            machines.append(
                MeteredInstance(since, ended, prices, unit, draw(st.integers(0, 90)), draw(st.sampled_from([0, 60])))
            )
        jobs.append(Draw(instances=tuple(machines)))
    return jobs


def slow_cost(machine: MeteredInstance, end: datetime, window: Window) -> int:
    """Every unit by itself."""
    total, begin, step = 0, machine.allocated_at, timedelta(seconds=machine.unit_seconds)
    if end <= begin:
        return 0
    least = begin + timedelta(seconds=machine.minimum_seconds)
    while begin < max(end, least):
        rate = [p.usd_per_hour for p in machine.prices if p.since <= begin][-1]
        if window.start <= begin and (window.end is None or begin < window.end):
            total += int(rate) * 10**18 * machine.unit_seconds
        begin += step
    return total


def slow_if_stopped(draws: list[Draw], moment: datetime, window: Window) -> int:
    return sum(
        slow_cost(m, m.ended_at or moment + timedelta(seconds=m.teardown_seconds), window)
        for d in draws
        for m in d.instances
    )


WINDOWS = st.sampled_from(
    [ALWAYS, Window(NOON - timedelta(seconds=60)), Window(NOON - timedelta(seconds=77), NOON + timedelta(seconds=123))]
)


class TestMoments:
    @given(fleets(), st.integers(0, 30_000), WINDOWS)
    def test_the_firing_moment_is_the_last_that_fits(
        self, draws: list[Draw], rate_seconds: int, window: Window
    ) -> None:
        amount = rate_seconds * 10**18
        seconds = [NOON + timedelta(seconds=s) for s in range(700)]
        if window.end is not None:
            seconds = [s for s in seconds if s <= window.end]
        fits = [s for s in seconds if slow_if_stopped(draws, s, window) <= amount]
        found = firing_moment(draws, amount, window, NOON)
        if not fits:
            assert found == NOON
        elif len(fits) < len(seconds):
            # Machines change their cost on whole seconds only.
            assert found == fits[-1]
        elif window.end is not None:
            assert found is None
        else:
            assert found is None or found > seconds[-1]

    @given(fleets(), st.integers(1, 30_000), WINDOWS)
    def test_the_crossing_moment_is_the_first_at_which_the_threshold_is_reached(
        self, draws: list[Draw], rate_seconds: int, window: Window
    ) -> None:
        threshold = rate_seconds * 10**18

        def reached(moment: datetime) -> bool:
            total = sum(slow_cost(m, min(moment, m.ended_at or moment), window) for d in draws for m in d.instances)
            return total >= threshold

        instant = timedelta(microseconds=1)
        moments = [NOON] + [NOON + timedelta(seconds=s) + instant for s in range(700)]
        if window.end is not None:
            moments = [m for m in moments if m <= window.end]
        first = next((m for m in moments if reached(m)), None)
        found = crossing_moment(draws, threshold, window, NOON)
        if first is None:
            assert found is None or found > moments[-1]
        else:
            assert found == first

    @given(fleets(), WINDOWS)
    def test_the_spend_is_that_of_the_units_that_have_begun(self, draws: list[Draw], window: Window) -> None:
        slow = sum(slow_cost(m, min(NOON, m.ended_at or NOON), window) for d in draws for m in d.instances)
        assert spent(draws, window, NOON) == slow

    def test_at_the_firing_moment_the_balance_is_what_the_ends_cost(self) -> None:
        draws = [Draw(instances=(instance("36", teardown=10), instance("72", teardown=5)))]
        at = firing_moment(draws, attos_within(Decimal("1.00")), ALWAYS, NOON)
        assert at is not None
        # 0.01 and 0.02 USD a second: 30 seconds cost 0.90, the ends 0.10 and 0.10.
        assert spent(draws, ALWAYS, at) <= attos_within(Decimal("1.00")) - attos_within(Decimal("0.20"))
        assert at == NOON + timedelta(seconds=26)

    def test_nothing_fires_while_nothing_costs(self) -> None:
        assert firing_moment([Draw(instances=(instance("0"),))], 1, ALWAYS, NOON) is None
        assert firing_moment([], 0, ALWAYS, NOON) is None


@dataclass
class Event:
    """After `pause` seconds a machine is rented, changes its price, or is gone."""

    kind: str
    pause: int
    which: int
    usd_per_hour: int
    unit: int
    teardown: int


EVENTS = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(["rent", "rent", "reprice", "gone"]),
        pause=st.integers(0, 120),
        which=st.integers(0, 5),
        usd_per_hour=st.integers(0, 400),
        unit=st.sampled_from([1, 60]),
        teardown=st.integers(0, 90),
    ),
    max_size=12,
)


@given(EVENTS, st.integers(1, 40_000))
def test_whatever_happens_the_spend_is_within_the_amount_when_the_budget_fires(
    events: list[Event], rate_seconds: int
) -> None:
    """A budget that is looked at after each change, and at the moment that it named. What is rented must fit first."""
    amount, now, machines = rate_seconds * 10**18, NOON, list[MeteredInstance]()

    def draws() -> list[Draw]:
        return [Draw(instances=(machine,)) for machine in machines]

    dearer = False
    for event in events:
        moment = now + timedelta(seconds=event.pause)
        fires = firing_moment(draws(), amount, ALWAYS, now)
        if fires is not None and machines and fires <= moment:
            now = fires
            break
        now = moment
        prices = (PriceInterval(now, UsdPerHour(Decimal(event.usd_per_hour))),)
        live = [i for i, m in enumerate(machines) if m.ended_at is None]
        if event.kind == "rent":
            new = MeteredInstance(now, None, prices, event.unit, event.teardown)
            if held([*draws(), Draw(instances=(new,))], ALWAYS, now) <= amount:
                machines.append(new)
        elif live:
            index = live[event.which % len(live)]
            old = machines[index]
            if event.kind == "gone":
                machines[index] = replace(old, ended_at=now)
            else:
                dearer |= event.usd_per_hour > old.prices[-1].usd_per_hour
                machines[index] = replace(old, prices=old.prices + prices)
        assert spent(draws(), ALWAYS, now) <= amount
    assert spent(draws(), ALWAYS, now) <= amount
    # All teardowns begin now. Only a price that rose may make them cost more than was kept for them.
    final = [replace(m, ended_at=m.ended_at or now + timedelta(seconds=m.teardown_seconds)) for m in machines]
    if not dearer:
        assert spent([Draw(instances=tuple(final))], ALWAYS, now + timedelta(days=1)) <= amount


class TestAmounts:
    @given(st.decimals("0", "1000000000", places=18))
    def test_amounts_survive_their_way_into_costs_and_back(self, usd: Decimal) -> None:
        assert attos_within(usd) == attos_for(usd)
        assert attos(rate_seconds_of(attos_for(usd))) == attos_for(usd)

    @pytest.mark.parametrize("usd", ["0.1234567890123456789012345", "1e-30"])
    def test_what_is_finer_than_a_cost_never_favours_the_spender(self, usd: str) -> None:
        assert attos_for(Decimal(usd)) == attos_within(Decimal(usd)) + 1
