"""Deadlines are the latest instants at which a limit still holds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from domain.limits import MeteredInstance, accrued, affordable, cost_deadline, runtime_deadline
from domain.money import PriceInterval, UsdPerHour, billable_units

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(**units: float) -> datetime:
    return START + timedelta(**units)


def metered(
    rate: str | Decimal,
    *,
    begin: float = 0,
    end: float | None = None,
    unit: int = 60,
    teardown: float = 0,
    changes: tuple[tuple[float, str], ...] = (),
    minimum: int = 0,
) -> MeteredInstance:
    """An instance that was allocated `begin` seconds after the start."""
    prices = [PriceInterval(after(seconds=begin), UsdPerHour(Decimal(rate)))]
    prices += [PriceInterval(after(seconds=since), UsdPerHour(Decimal(price))) for since, price in changes]
    ended_at = None if end is None else after(seconds=end)
    return MeteredInstance(after(seconds=begin), ended_at, tuple(prices), unit, teardown, minimum)


class TestAccrued:
    def test_all_attempts_count_each_to_its_end(self) -> None:
        instances = [metered("60", end=60), metered("60", begin=120)]
        assert accrued(instances, after(seconds=180)) == 2
        assert accrued(instances, after(seconds=181)) == 3

    def test_an_ended_attempt_costs_no_more(self) -> None:
        assert accrued([metered("60", end=61)], after(days=30)) == 2

    def test_sums_are_divided_once(self) -> None:
        assert accrued([metered("0.1", end=60)] * 3, after(hours=1)) == Decimal("0.005")

    def test_nothing_is_owed_for_nothing(self) -> None:
        assert accrued([], START) == 0


class TestCostDeadline:
    def test_a_dollar_at_sixty_an_hour_lasts_a_minute(self) -> None:
        assert cost_deadline([metered("60")], Decimal(1), START) == after(seconds=60)

    def test_the_teardown_is_paid_for(self) -> None:
        instance = metered("60", teardown=90)
        assert cost_deadline([instance], Decimal(10), START) == after(seconds=600 - 90)

    def test_earlier_attempts_count(self) -> None:
        instances = [metered("60", end=240), metered("60", begin=300)]
        assert cost_deadline(instances, Decimal(10), after(seconds=300)) == after(seconds=300 + 360)

    def test_a_price_change_moves_it(self) -> None:
        assert cost_deadline([metered("60", changes=((300, "120"),))], Decimal(15), after(seconds=300)) == after(
            seconds=600
        )

    def test_the_least_charge_is_spent_from_the_beginning(self) -> None:
        instance = metered("60", unit=1, minimum=120)
        assert accrued([instance], after(seconds=1)) == 2
        assert cost_deadline([instance], Decimal("1.99"), after(seconds=1)) == after(seconds=1)
        assert cost_deadline([instance], Decimal(2), after(seconds=1)) == after(seconds=120)

    def test_what_is_not_charged_yet_counts_as_if_it_were_from_its_allocation(self) -> None:
        waiting = replace(metered("60"), begun=False)
        assert accrued([waiting], after(hours=1)) == 0
        assert cost_deadline([waiting], Decimal(2), START) == after(seconds=120)
        assert cost_deadline([replace(waiting, ended_at=after(hours=1)), metered("60")], Decimal(2), START) == after(
            seconds=120
        )

    def test_a_limit_that_is_already_broken_means_now(self) -> None:
        now = after(hours=1)
        assert cost_deadline([metered("60")], Decimal(10), now) == now

    def test_a_free_instance_has_none(self) -> None:
        assert cost_deadline([metered("0")], Decimal(1), START) is None

    def test_ended_attempts_alone_have_none(self) -> None:
        assert cost_deadline([metered("60", end=60)], Decimal(10), after(seconds=60)) is None

    def test_one_beyond_a_century_is_none(self) -> None:
        assert cost_deadline([metered("0.000001")], Decimal(1_000_000), START) is None

    def test_three_instances_at_an_indivisible_price_are_exact(self) -> None:
        assert cost_deadline([metered("0.1")] * 3, Decimal("0.005"), START) == after(seconds=60)

    @given(
        st.lists(
            st.tuples(
                st.decimals("0.01", 50, places=2),
                st.integers(0, 3000),
                st.sampled_from([1, 60]),
                st.floats(0, 200),
                st.integers(1, 3000) | st.none(),
                st.sampled_from([0, 0, 60, 90, 4000]),
            ),
            min_size=1,
            max_size=4,
        ),
        st.decimals("0.01", 40, places=2),
        st.integers(0, 600_000_000),
    )
    def test_it_is_the_latest_instant_that_keeps_the_limit(
        self, shapes: list[tuple[Decimal, int, int, float, int | None, int]], limit: Decimal, later: int
    ) -> None:
        instances = [
            metered(
                rate,
                begin=begin,
                unit=unit,
                teardown=teardown,
                end=None if length is None else begin + length,
                minimum=minimum,
            )
            for rate, begin, unit, teardown, length, minimum in shapes
        ]
        assume(any(i.ended_at is None for i in instances))
        now = after(seconds=3000, microseconds=later)

        def spend(stopped_at: datetime) -> Fraction:
            total = Fraction(0)
            for i in instances:
                end = i.ended_at or stopped_at + timedelta(seconds=i.teardown_seconds)
                rate = Fraction(i.prices[0].usd_per_hour)
                units = billable_units(i.allocated_at, end, i.unit_seconds)
                if units:
                    units = max(units, -(-i.minimum_seconds // i.unit_seconds))
                total += rate * i.unit_seconds * units
            return total / 3600

        deadline = cost_deadline(instances, limit, now)
        assert deadline is not None
        if spend(now) > limit:
            assert deadline == now
        else:
            assert spend(deadline) <= limit
            assert spend(deadline + timedelta(microseconds=1)) > limit


class TestRuntimeDeadline:
    @pytest.mark.parametrize(
        ("hours", "seconds"), [("1", 3600.0), ("0.5", 1800.0), ("0.0001", 0.36), ("1e-12", 0.000001)]
    )
    def test_it_runs_from_the_first_allocation(self, hours: str, seconds: float) -> None:
        assert runtime_deadline(START, Decimal(hours)) == after(seconds=seconds)

    @pytest.mark.parametrize("hours", ["1e6", "1e12", "1e300"])
    def test_more_than_a_century_is_one(self, hours: str) -> None:
        assert runtime_deadline(START, Decimal(hours)) == after(days=36_500)


class TestAffordable:
    def test_without_a_limit_all_is(self) -> None:
        assert affordable(UsdPerHour(Decimal(10_000)), 60, 600, Decimal(99), None)

    @pytest.mark.parametrize(
        ("spent", "limit", "expected"),
        [("0", "2", True), ("0", "1.99", False), ("8", "10", True), ("8.01", "10", False), ("10", "10", False)],
    )
    def test_one_unit_and_the_teardown_must_fit(self, spent: str, limit: str, expected: bool) -> None:
        # 60 USD/h in minutes: one for the first unit, one for a teardown of 30 s.
        assert affordable(UsdPerHour(Decimal(60)), 60, 30, Decimal(spent), Decimal(limit)) is expected

    @pytest.mark.parametrize(("limit", "expected"), [("2", True), ("1.99", False)])
    def test_the_least_charge_must_fit(self, limit: str, expected: bool) -> None:
        assert affordable(UsdPerHour(Decimal(60)), 1, 30, Decimal(0), Decimal(limit), 120) is expected
        assert affordable(UsdPerHour(Decimal(60)), 60, 0, Decimal(0), Decimal(limit), 61) is expected

    def test_what_just_fits_is_not_refused_for_a_division(self) -> None:
        spent = accrued([metered("0.1", end=60), metered("0.1", end=60)], after(hours=1))
        assert affordable(UsdPerHour(Decimal("0.1")), 60, 0, spent, Decimal("0.005"))

    @given(
        st.decimals("0.01", 100, places=2),
        st.sampled_from([1, 60]),
        st.floats(0, 300),
        st.decimals("0.01", 20, places=2),
    )
    def test_what_is_affordable_has_a_deadline_ahead(
        self, rate: Decimal, unit: int, teardown: float, limit: Decimal
    ) -> None:
        assume(affordable(UsdPerHour(rate), unit, teardown, Decimal(0), limit))
        deadline = cost_deadline([metered(rate, unit=unit, teardown=teardown)], limit, START)
        assert deadline is not None
        assert deadline > START
