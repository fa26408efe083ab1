"""Stretches of reachability: only proven time counts, and it counts once."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from sqlmodel import Session, select

from store import liveness
from store.db import Database
from store.liveness import API, WORKER
from store.tables import Liveness
from tests.support.clock import SettableClock


@pytest.fixture
def beats(database: Database, clock: SettableClock) -> Callable[..., None]:
    """Gives beats for `seconds`, one each `every` seconds, the first one at once; the clock stands at the last one."""

    def run(lease_id: str, seconds: float, kind: str = API, every: float = 5) -> None:
        for _ in range(int(seconds / every)):
            database.run_write(lambda s: liveness.beat(s, lease_id, kind, clock()))
            clock.advance(every)
        database.run_write(lambda s: liveness.beat(s, lease_id, kind, clock()))

    return run


def reachable(database: Database, clock: SettableClock, last_seconds: float, kind: str = API) -> float:
    since = clock() - timedelta(seconds=last_seconds)
    return database.run_read(lambda s: liveness.reachable_seconds(s, kind, since, clock()))


def test_steady_beats_are_one_stretch(database: Database, clock: SettableClock, beats: Callable[..., None]) -> None:
    beats("a", 60)
    assert len(database.run_read(lambda s: s.exec(select(Liveness)).all())) == 1
    assert reachable(database, clock, 60) == 60
    assert reachable(database, clock, 20) == 20
    assert reachable(database, clock, 600) == 60


def test_time_away_does_not_count(database: Database, clock: SettableClock, beats: Callable[..., None]) -> None:
    beats("a", 20)
    clock.advance(minutes=5)
    beats("a", 10)
    assert reachable(database, clock, 3600) == 30
    clock.advance(minutes=5)
    beats("b", 15)
    assert reachable(database, clock, 3600) == 45


def test_time_since_the_last_beat_does_not_count(
    database: Database, clock: SettableClock, beats: Callable[..., None]
) -> None:
    beats("a", 20)
    clock.advance(10)
    assert reachable(database, clock, 30) == 20


def test_two_replicas_at_once_count_once(database: Database, clock: SettableClock) -> None:
    for _ in range(7):
        database.run_write(lambda s: liveness.beat(s, "a", API, clock()))
        database.run_write(lambda s: liveness.beat(s, "b", API, clock()))
        clock.advance(10)
    assert reachable(database, clock, 600) == 60


def test_other_kinds_do_not_count(database: Database, clock: SettableClock, beats: Callable[..., None]) -> None:
    beats("a", 60, WORKER)
    assert reachable(database, clock, 600) == 0
    assert reachable(database, clock, 600, WORKER) == 60


def test_a_delayed_beat_shortens_nothing(database: Database, clock: SettableClock, beats: Callable[..., None]) -> None:
    beats("a", 30)
    late = clock() - timedelta(seconds=12)
    database.run_write(lambda s: liveness.beat(s, "a", API, late))
    assert reachable(database, clock, 600) == 30


def test_a_kind_is_alive_until_its_beats_stop(
    database: Database, clock: SettableClock, beats: Callable[..., None]
) -> None:
    assert not database.run_read(lambda s: liveness.alive(s, WORKER, clock()))
    beats("a", 60, WORKER)
    assert database.run_read(lambda s: liveness.alive(s, WORKER, clock()))
    assert not database.run_read(lambda s: liveness.alive(s, API, clock()))
    clock.advance(liveness.ALIVE_SECONDS)
    assert database.run_read(lambda s: liveness.alive(s, WORKER, clock()))
    clock.advance(0.001)
    assert not database.run_read(lambda s: liveness.alive(s, WORKER, clock()))


def test_lease_ids_that_look_like_patterns_are_told_apart(database: Database, clock: SettableClock) -> None:
    for lease_id in ("a_b", "axb", "a%", "a"):
        database.run_write(lambda s, lease_id=lease_id: liveness.beat(s, lease_id, API, clock()))
    assert len(database.run_read(lambda s: s.exec(select(Liveness)).all())) == 4


def test_pruning_keeps_what_is_not_over(database: Database, clock: SettableClock, beats: Callable[..., None]) -> None:
    beats("a", 10)
    clock.advance(minutes=5)
    beats("b", 10)
    assert database.run_write(lambda s: liveness.prune(s, clock() - timedelta(minutes=1))) == 1
    assert reachable(database, clock, 3600) == 10


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stretches=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8),
    since=st.integers(0, 60),
    length=st.integers(0, 40),
)
def test_the_union_is_the_number_of_covered_seconds(
    sqlite_database: Database, stretches: list[tuple[int, int]], since: int, length: int
) -> None:
    start = SettableClock()()

    def at(second: int) -> timedelta:
        return timedelta(seconds=second)

    def run(session: Session) -> float:
        session.exec(delete(Liveness))
        for number, (begin, duration) in enumerate(stretches):
            row = Liveness(id=str(number), kind=API, since=start + at(begin), until=start + at(begin + duration))
            session.add(row)
        session.flush()
        return liveness.reachable_seconds(session, API, start + at(since), start + at(since + length))

    covered = {second for begin, duration in stretches for second in range(begin, begin + duration)}
    assert sqlite_database.run_write(run) == len(covered & set(range(since, since + length)))
