"""Columns give back exactly what they were given, on both databases, and refuse what they could not."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import StatementError

from store.columns import ExactDecimal, Json, Prose, UtcDateTime
from store.db import Database

VALUES = Table(
    "values_under_test",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("at", UtcDateTime),
    Column("amount", ExactDecimal),
    Column("json", Json),
    Column("prose", Prose),
)


@pytest.fixture
def typed(database: Database) -> Iterator[Database]:
    VALUES.create(database.engine)
    yield database
    VALUES.drop(database.engine)


def round_trip(database: Database, column: str, value: object) -> Any:
    def run(session: Any) -> Any:
        connection = session.connection()
        row_id = connection.execute(insert(VALUES).values({column: value})).inserted_primary_key[0]
        return connection.execute(select(VALUES.c[column]).where(VALUES.c.id == row_id)).scalar_one()

    return database.run_write(run)


many = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(at=st.datetimes(datetime(1900, 1, 1), datetime(2400, 1, 1), timezones=st.timezones()))
def test_an_instant_keeps_its_microseconds_whatever_its_zone(typed: Database, at: datetime) -> None:
    stored = round_trip(typed, "at", at)
    assert stored == at.astimezone(UTC)
    assert stored.tzinfo is UTC


def test_the_repeated_hour_of_autumn_is_two_instants(typed: Database) -> None:
    summer, winter = timezone(timedelta(hours=2)), timezone(timedelta(hours=1))
    first = round_trip(typed, "at", datetime(2026, 10, 25, 2, 30, tzinfo=summer))
    second = round_trip(typed, "at", datetime(2026, 10, 25, 2, 30, tzinfo=winter))
    assert second - first == timedelta(hours=1)


def test_a_naive_datetime_is_refused(typed: Database) -> None:
    with pytest.raises(StatementError, match="naive datetime"):
        round_trip(typed, "at", datetime(2026, 1, 1))


@many
@given(amount=st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_keeps_every_digit(typed: Database, amount: Decimal) -> None:
    stored = round_trip(typed, "amount", amount)
    assert isinstance(stored, Decimal)
    assert str(stored) == str(amount)


def test_a_float_is_refused(typed: Database) -> None:
    with pytest.raises(StatementError, match="use a Decimal"):
        round_trip(typed, "amount", 0.44)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc\0é"), inner, max_size=3),
    max_leaves=8,
)


@many
@given(value=json_values)
def test_json_keeps_nul_and_any_script(typed: Database, value: Any) -> None:
    assert round_trip(typed, "json", value) == value


@many
@given(text=st.text(st.characters()))
def test_prose_takes_any_text_and_shows_what_cannot_be_stored(typed: Database, text: str) -> None:
    stored = round_trip(typed, "prose", text)
    assert "\0" not in stored
    stored.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert stored == text.replace("\0", "\ufffd")


@pytest.mark.parametrize("column", ["at", "amount", "json", "prose"])
def test_none_stays_none(typed: Database, column: str) -> None:
    assert round_trip(typed, column, None) is None
