"""The pure ledger against an oracle that knows nothing of it: unit by unit, in whole numbers."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ledger import day_of, unwritten
from domain.limits import MeteredInstance, accrued
from domain.money import PriceInterval, Run, UsdPerHour, attos, cents, cents_of, usd_of

START = datetime(2026, 3, 28, 21, 13, 7, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ATTOS = 10**18


@dataclass
class Timeline:
    """An instance as its provider knows it. Times are microseconds after the start, rates attos of USD an hour."""

    unit: int
    minimum: int
    end: int
    prices: list[tuple[int, int]]
    closings: list[int] = field(default_factory=list)
    """When the ledger wrote what it could."""

    def meter(self, known_by: int) -> MeteredInstance:
        """What the rows say at that time: neither a later price nor a later end."""
        prices = [(since, rate) for since, rate in self.prices if since <= known_by]
        return MeteredInstance(
            allocated_at=START,
            ended_at=at(self.end) if self.end <= known_by else None,
            prices=tuple(PriceInterval(at(since), rate_of(rate)) for since, rate in prices),
            unit_seconds=self.unit,
            teardown_seconds=0,
            minimum_seconds=self.minimum,
        )


def at(microseconds: int) -> datetime:
    return START + timedelta(microseconds=microseconds)


def rate_of(rate_attos: int) -> UsdPerHour:
    return UsdPerHour(Decimal(rate_attos).scaleb(-18))


def timeline(rng: random.Random) -> Timeline:
    """A random life: prices that change, twice in one unit or on its edge too, while days and months end."""
    unit = rng.choice([1, 60])
    longest = 50_000 if unit == 60 else 4_000
    end = rng.choice([0, 1, unit * 10**6, rng.randrange(longest * 10**6)])
    prices = [(0, rng.randrange(10 * ATTOS))]
    for _ in range(rng.randrange(6)):
        moment = rng.randrange(max(1, end))
        moment = rng.choice([moment, moment // (unit * 10**6) * unit * 10**6])
        prices.append((moment, rng.choice([0, rng.randrange(10**22), rng.randrange(100) * 10**16])))
    prices = sorted(dict(prices).items())
    closings = sorted({since for since, _ in prices[1:]} | {rng.randrange(max(1, end)) for _ in range(3)})
    return Timeline(unit, rng.choice([0, 0, unit, 90, 600]), end, prices, closings)


def oracle(life: Timeline, begin: int | None = None, end: int | None = None) -> tuple[int, int]:
    """Units and (attos of USD an hour) x seconds of the units that begin in [begin, end): one after the other."""
    units = total = number = 0
    step = life.unit * 10**6
    while life.end and (number * step < life.end or number * life.unit < life.minimum):
        moment = number * step
        if (begin is None or begin <= moment) and (end is None or moment < end):
            rate = life.prices[0][1]
            for since, changed in life.prices:
                if since <= moment:
                    rate = changed
            units += 1
            total += rate * life.unit
        number += 1
    return units, total


def ledger(life: Timeline) -> list[Run]:
    """The entries as the store writes them: at each closing what has begun, after the end all the rest."""
    entries: list[Run] = []
    for moment in life.closings:
        entries += unwritten(life.meter(moment), at(moment), entries[-1].ends_at if entries else None, at(moment))
    return entries + list(unwritten(life.meter(life.end), at(life.end), entries[-1].ends_at if entries else None))


def test_a_thousand_timelines_cost_what_their_provider_says() -> None:
    rng = random.Random(20_261_130)
    for number in range(1_000):
        life = timeline(rng)
        entries, (units, total) = ledger(life), oracle(life)
        assert (sum(e.units for e in entries), sum(e.attos for e in entries)) == (units, total), (number, life)
        # `accrued_usd` of the finished instance is the same, to the cent.
        assert cents(accrued([life.meter(life.end)], at(life.end))) == cents_of(total), (number, life)


def test_entries_follow_each_other_without_gaps_each_on_one_day() -> None:
    rng = random.Random(1)
    for _ in range(300):
        entries = ledger(timeline(rng))
        assert all(earlier.ends_at == later.begins_at for earlier, later in pairwise(entries))
        assert all(day_of(entry.begins_at) == day_of(entry.last_at) for entry in entries)


def test_windows_that_follow_each_other_add_up_exactly() -> None:
    rng = random.Random(2)
    for _ in range(300):
        life = timeline(rng)
        entries = ledger(life)
        cuts = sorted(rng.randrange(life.end + 10**7) for _ in range(4))
        for begin, end in pairwise([-1, *cuts, life.end + 10**10]):
            parts = [part for e in entries if (part := e.within(at(begin), at(end)))]
            assert (sum(p.units for p in parts), sum(p.attos for p in parts)) == oracle(life, begin, end)


def test_what_was_written_before_stays_what_a_later_look_would_write() -> None:
    """A report of days that are over is the same for ever: prices that come later reach none of their units."""
    rng = random.Random(3)
    for _ in range(300):
        life = timeline(rng)
        moment = rng.randrange(life.end + 1)
        until = at(moment)
        early = list(unwritten(life.meter(moment), until, None, until))
        late = list(unwritten(life.meter(life.end), at(life.end), None, until))
        assert sum(e.attos for e in early) == sum(e.attos for e in late)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_a_month_with_a_clock_change_is_the_sum_of_its_days(zone: str) -> None:
    """Case 10: local days have 23 to 25 hours, and the month still costs what its days do."""
    local = ZoneInfo(zone)
    begin = datetime(2026, 3, 1, tzinfo=local)
    days = [datetime(2026, 3, day, tzinfo=local) for day in range(1, 32)] + [datetime(2026, 4, 1, tzinfo=local)]
    utc = [day.astimezone(UTC) for day in days]
    meter = MeteredInstance(
        begin.astimezone(UTC) - timedelta(hours=3, seconds=17),
        utc[-1] + timedelta(hours=5),
        (PriceInterval(utc[0], UsdPerHour(Decimal("0.44"))), PriceInterval(utc[9], UsdPerHour(Decimal("1.37")))),
        60,
        0,
    )
    entries = list(unwritten(meter, utc[-1] + timedelta(days=1), None))

    def cost(since: datetime, until: datetime) -> int:
        return sum(part.attos for entry in entries if (part := entry.within(since, until)))

    assert sum(cost(a, b) for a, b in pairwise(utc)) == cost(utc[0], utc[-1]) > 0
    far = timedelta(days=9)
    edges = [utc[0] - far, utc[0], utc[-1], utc[-1] + far]
    assert sum(cost(a, b) for a, b in pairwise(edges)) == sum(entry.attos for entry in entries)


def test_three_hours_over_a_clock_change_are_10800_seconds() -> None:
    begin = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    meter = MeteredInstance(begin, begin + timedelta(hours=3), (), 1, 0)
    assert sum(entry.seconds for entry in unwritten(meter, begin + timedelta(days=1), None)) == 10_800


def test_a_price_that_rises_at_half_time_leaves_an_old_report_as_it_was() -> None:
    """Case 9: 2.00 an hour, 3.00 after half an hour; ended after an hour: 2.50."""
    prices = [(0, 2 * ATTOS), (30 * 60 * 10**6, 3 * ATTOS)]
    life = Timeline(60, 0, 60 * 60 * 10**6, prices, [30 * 60 * 10**6])
    early = list(unwritten(life.meter(30 * 60 * 10**6), at(30 * 60 * 10**6), None, at(30 * 60 * 10**6)))
    assert cents_of(sum(e.attos for e in early)) == Decimal("1.00")
    assert cents_of(sum(e.attos for e in ledger(life))) == Decimal("2.50")
    assert ledger(life)[: len(early)] == early


def test_the_least_charge_is_paid_also_by_what_ends_at_once() -> None:
    life = Timeline(1, 60, 1, [(0, 36 * ATTOS)])
    assert [(e.units, e.attos) for e in ledger(life)] == [(60, 36 * 60 * ATTOS)]
    assert ledger(Timeline(1, 60, 0, [(0, 36 * ATTOS)])) == []


def test_what_has_not_begun_to_be_charged_costs_nothing() -> None:
    meter = MeteredInstance(START, None, (PriceInterval(START, UsdPerHour(Decimal(9))),), 60, 0, begun=False)
    assert list(unwritten(meter, START + timedelta(hours=1), None)) == []
    assert accrued([meter], START + timedelta(hours=1)) == 0


@given(st.integers(0, 10**40))
def test_cents_are_rounded_half_up_by_whole_numbers(cost_attos: int) -> None:
    exact = usd_of(cost_attos)
    shown = cents_of(cost_attos)
    assert shown == shown.quantize(Decimal("0.01"))
    assert -Decimal("0.005") < exact - shown < Decimal("0.005") or exact - shown == Decimal("-0.005")


@given(st.decimals(0, 10**6, places=18))
def test_a_rate_is_kept_exactly(rate: Decimal) -> None:
    assert Decimal(attos(rate)) == rate * 10**18
