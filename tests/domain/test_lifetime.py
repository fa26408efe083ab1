"""The kill timer of a machine never fires before a limit would, and always fires where there is one."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from domain.lifetime import GRACE_SECONDS, LONGEST_SECONDS, SPOT_FALL, lifetime_seconds
from domain.limits import MeteredInstance, cost_deadline, runtime_deadline
from domain.money import PriceInterval
from domain.spec import Limits

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
prices = st.decimals(Decimal("0.0001"), Decimal(400), places=4)
amounts = st.decimals(Decimal("0.01"), Decimal(10_000), places=2)


def test_the_earlier_limit_counts() -> None:
    limits = Limits(max_runtime_hours=Decimal(2), max_cost_usd=Decimal(3))
    assert lifetime_seconds(limits, Decimal(1)) == 2 * 3600 + GRACE_SECONDS
    assert lifetime_seconds(limits, Decimal(3)) == 1 * 3600 + GRACE_SECONDS


def test_without_a_limit_that_binds_it_is_not_said() -> None:
    assert lifetime_seconds(Limits(), Decimal(1)) is None
    assert lifetime_seconds(Limits(max_cost_usd=Decimal(3)), Decimal(0)) is None


def test_no_timer_is_set_for_longer_than_a_machine_can_count() -> None:
    assert lifetime_seconds(Limits(max_runtime_hours=Decimal(10**12)), Decimal(1)) == LONGEST_SECONDS


@given(amounts, prices, st.booleans())
def test_what_the_money_allows_is_never_cut_short(amount: Decimal, price: Decimal, spot: bool) -> None:
    falls_to = price / SPOT_FALL if spot else price
    instance = MeteredInstance(START, None, (PriceInterval(START, falls_to),), 60, 0)
    deadline = cost_deadline([instance], amount, START)
    seconds = lifetime_seconds(Limits(max_cost_usd=amount), price, spot=spot)
    assert seconds is not None
    assert deadline is None or seconds == LONGEST_SECONDS or START + timedelta(seconds=seconds) > deadline


@given(st.decimals(Decimal("0.001"), Decimal(10_000), places=3))
def test_the_runtime_is_never_cut_short(hours: Decimal) -> None:
    seconds = lifetime_seconds(Limits(max_runtime_hours=hours), Decimal(1))
    assert seconds is not None
    assert START + timedelta(seconds=seconds) > runtime_deadline(START, hours)
