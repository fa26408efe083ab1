"""Costs are exact, in whole units rounded up, at the price in force when a unit begins."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.money import PriceInterval, PricingModel, UsdPerHour, billable_units, cents, cost, rate_seconds, usd

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(**units: float) -> datetime:
    return START + timedelta(**units)


def price(rate: str, since: datetime = START) -> PriceInterval:
    return PriceInterval(since, UsdPerHour(Decimal(rate)))


def test_1560_seconds_at_44_cents_an_hour_are_19_cents() -> None:
    assert cents(cost([price("0.44")], START, after(seconds=1560), 60)) == Decimal("0.19")


def test_a_price_that_rises_at_half_time_counts_from_then_on() -> None:
    """Case 9: the offer's later disappearance, and any later price, change nothing."""
    prices = [price("2.00"), price("3.00", after(minutes=30))]
    assert cost(prices, START, after(minutes=60), 60) == Decimal("2.50")
    later = [*prices, price("9.00", after(minutes=60))]
    assert cost(later, START, after(minutes=60), 60) == Decimal("2.50")


@pytest.mark.parametrize(
    ("seconds", "unit", "units"),
    [(0, 60, 0), (-5, 60, 0), (0.000001, 60, 1), (59.999999, 60, 1), (60, 60, 1), (60.000001, 60, 2), (3, 1, 3)],
)
def test_a_begun_unit_is_a_whole_one(seconds: float, unit: int, units: int) -> None:
    assert billable_units(START, after(seconds=seconds), unit) == units


def test_a_unit_that_began_at_the_old_price_keeps_it() -> None:
    prices = [price("60"), price("120", after(seconds=90))]
    # Units begin at 0, 60 (both at 60/h = 1 a minute) and 120 (2 a minute).
    assert cost(prices, START, after(seconds=180), 60) == Decimal(4)


def test_two_price_changes_within_one_unit_leave_the_last() -> None:
    prices = [price("60"), price("600", after(seconds=61)), price("120", after(seconds=119))]
    assert cost(prices, START, after(seconds=180), 60) == Decimal(1 + 1 + 2)


def test_the_first_price_also_holds_before_itself() -> None:
    assert cost([price("60", after(minutes=5))], START, after(minutes=10), 60) == Decimal(10)


def test_without_prices_or_time_nothing_is_owed() -> None:
    assert cost([], START, after(hours=1), 60) == 0
    assert cost([price("5")], START, START, 60) == 0
    assert cost([price("5")], START, after(seconds=-1), 60) == 0


def test_a_change_to_summer_time_costs_no_hour() -> None:
    """Case 10: 10,800 s are billed for three hours, whichever zone the instants are written in."""
    berlin = ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    end = begin + timedelta(hours=3)
    for zone in (UTC, berlin, timezone(timedelta(hours=-11))):
        assert billable_units(begin.astimezone(zone).astimezone(UTC), end.astimezone(zone).astimezone(UTC), 1) == 10_800


def test_amounts_round_half_up() -> None:
    assert [str(cents(Decimal(x))) for x in ("0.005", "0.004999", "0.015", "2.5", "0")] == [
        "0.01", "0.00", "0.02", "2.50", "0.00",
    ]  # fmt: skip


def test_three_thirds_of_half_a_cent_are_half_a_cent() -> None:
    """An hour has no finite reciprocal: parts are added before they are divided."""
    part = rate_seconds([price("0.1")], START, after(minutes=1), 60)
    assert usd(part * 3) == Decimal("0.005")
    assert cents(usd(part * 3)) == Decimal("0.01")


def test_the_units_of_the_pricing_models() -> None:
    assert [model.unit_seconds for model in PricingModel] == [60, 1]


rates = st.decimals(0, 1000, places=6)
steps = st.lists(st.tuples(st.integers(0, 7200), rates), min_size=1, max_size=5, unique_by=lambda step: step[0])


@given(steps, st.lists(st.integers(0, 120), min_size=2, max_size=8), st.sampled_from([1, 60]))
def test_any_split_at_unit_boundaries_sums_to_the_whole(
    changes: list[tuple[int, Decimal]], cuts: list[int], unit: int
) -> None:
    prices = [PriceInterval(after(seconds=s), UsdPerHour(rate)) for s, rate in sorted(changes)]
    moments = [after(seconds=cut * unit) for cut in sorted(cuts)]
    whole = rate_seconds(prices, moments[0], moments[-1], unit)
    assert sum(rate_seconds(prices, begin, end, unit) for begin, end in pairwise(moments)) == whole


@given(steps, st.integers(0, 10_000_000_000), st.sampled_from([1, 60]))
def test_the_cost_is_that_of_every_unit_by_itself(
    changes: list[tuple[int, Decimal]], microseconds: int, unit: int
) -> None:
    if unit == 1:
        microseconds //= 60
    prices = [PriceInterval(after(seconds=s), UsdPerHour(rate)) for s, rate in sorted(changes)]
    end = START + timedelta(microseconds=microseconds)
    expected = Fraction(0)
    begin = START
    while begin < end:
        in_force = [p for p in prices if p.since <= begin] or prices[:1]
        expected += Fraction(in_force[-1].usd_per_hour) * unit
        begin += timedelta(seconds=unit)
    assert Fraction(rate_seconds(prices, START, end, unit)) == expected
