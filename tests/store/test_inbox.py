"""Inputs to workflows: stored once, claimed by one dispatcher at a time, due again when it dies."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import Session, col, select

from store import inbox
from store.db import Database
from store.tables import InboxRow
from tests.support.clock import SettableClock


@pytest.fixture
def put(database: Database, clock: SettableClock) -> Any:
    """`inbox.put`, in a transaction of its own, at the clock's time."""

    def run(job_id: str, kind: str, payload: dict[str, Any] | None = None, *, key: str | None = None) -> bool:
        return database.run_write(lambda s: inbox.put(s, job_id, kind, clock(), payload, key=key))

    return run


@pytest.fixture
def claim(database: Database, clock: SettableClock) -> Any:
    """`inbox.claim_due`, in a transaction of its own, at the clock's time, with a lease of 30 s."""

    def run(limit: int = 100) -> list[InboxRow]:
        return database.run_write(lambda s: inbox.claim_due(s, clock(), limit=limit, lease_seconds=30))

    return run


def all_rows(database: Database) -> list[InboxRow]:
    return list(database.run_read(lambda s: s.exec(select(InboxRow).order_by(col(InboxRow.id))).all()))


def test_an_input_is_stored_once_and_keeps_its_first_payload(database: Database, put: Any) -> None:
    assert put("j", inbox.TERMINATE, {"n": 1})
    assert not put("j", inbox.TERMINATE, {"n": 2})
    assert put("other", inbox.TERMINATE)
    assert put("j", inbox.EXIT, key="exit-1")
    assert put("j", inbox.EXIT, key="exit-2")
    assert [(r.job_id, r.dedupe_key, r.payload) for r in all_rows(database)] == [
        ("j", "terminate", {"n": 1}),
        ("other", "terminate", {}),
        ("j", "exit-1", {}),
        ("j", "exit-2", {}),
    ]


def test_a_delivered_input_is_not_stored_again(database: Database, put: Any, claim: Any, clock: SettableClock) -> None:
    put("j", inbox.START)
    (row,) = claim()
    database.run_write(lambda s: inbox.mark_delivered(s, [row.id], clock()))
    assert not put("j", inbox.START)


def test_sixteen_at_once_store_one(database: Database, put: Any) -> None:
    together = threading.Barrier(16)

    def store(_: int) -> bool:
        together.wait(10)
        return bool(put("j", inbox.TERMINATE))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(store, range(16))) == 1
    assert len(all_rows(database)) == 1


async def test_an_input_wakes_the_dispatcher(database: Database, put: Any) -> None:
    wakeup = database.subscribe(inbox.TOPIC)
    put("j", inbox.START)
    await wakeup.wait()


def test_claims_come_oldest_first_and_bounded(put: Any, claim: Any) -> None:
    for number in range(5):
        put(f"j{number}", inbox.START)
    assert [row.job_id for row in claim(limit=3)] == ["j0", "j1", "j2"]
    assert [row.job_id for row in claim(limit=3)] == ["j3", "j4"]
    assert claim() == []


def test_a_claimed_row_can_be_read_after_the_transaction(put: Any, claim: Any, clock: SettableClock) -> None:
    put("j", inbox.EXIT, {"attempt_id": "a"}, key="exit-a")
    (row,) = claim()
    assert (row.kind, row.payload, row.created_at) == ("exit", {"attempt_id": "a"}, clock())
    assert row.id is not None


def test_a_claim_that_is_not_finished_comes_back_after_its_lease(put: Any, claim: Any, clock: SettableClock) -> None:
    put("j", inbox.START)
    assert len(claim()) == 1
    clock.advance(29.999)
    assert claim() == []
    clock.advance(0.001)
    assert [row.job_id for row in claim()] == ["j"]


def test_the_tries_are_counted(database: Database, put: Any, claim: Any, clock: SettableClock) -> None:
    put("j", inbox.START)
    for _ in range(3):
        claim()
        clock.advance(30)
    assert all_rows(database)[0].tries == 3


def test_a_delivered_row_never_comes_back(database: Database, put: Any, claim: Any, clock: SettableClock) -> None:
    put("j", inbox.START)
    (row,) = claim()
    database.run_write(lambda s: inbox.mark_delivered(s, [row.id], clock()))
    clock.advance(days=1)
    assert claim() == []


def test_a_failed_delivery_is_due_when_it_says(database: Database, put: Any, claim: Any, clock: SettableClock) -> None:
    put("j", inbox.START)
    (row,) = claim()
    retry_at = clock() + timedelta(seconds=5)
    database.run_write(lambda s: inbox.mark_failed(s, row.id, "no\0 connection " + "x" * 10_000, retry_at))
    stored = all_rows(database)[0]
    assert stored.last_error is not None
    assert stored.last_error.startswith("no\ufffd connection x")
    assert len(stored.last_error) == 500
    assert claim() == []
    clock.advance(5)
    (row,) = claim()
    database.run_write(lambda s: inbox.mark_delivered(s, [row.id], clock()))
    assert all_rows(database)[0].last_error is None


def test_dispatchers_at_once_share_the_rows_and_none_gets_one_twice(database: Database, put: Any, claim: Any) -> None:
    for number in range(60):
        put(f"j{number}", inbox.START)
    together = threading.Barrier(4)

    def dispatch(_: int) -> list[int]:
        together.wait(10)
        got: list[int] = []
        while rows := claim(limit=4):
            got += [row.id for row in rows]
        return got

    with ThreadPoolExecutor(4) as pool:
        ids = [row_id for got in pool.map(dispatch, range(4)) for row_id in got]
    assert len(ids) == len(set(ids)) == 60


@pytest.mark.postgres
def test_rows_that_another_dispatcher_is_claiming_are_skipped_without_waiting(
    postgres_database: Database, clock: SettableClock
) -> None:
    for number in range(2):
        postgres_database.run_write(lambda s, n=number: inbox.put(s, f"j{n}", inbox.START, clock()))
    claimed, finish = threading.Event(), threading.Event()

    def slowly(session: Session) -> list[str]:
        rows = inbox.claim_due(session, clock(), limit=1, lease_seconds=30)
        claimed.set()
        assert finish.wait(10)
        return [row.job_id for row in rows]

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(postgres_database.run_write, slowly)
        assert claimed.wait(10)
        mine = postgres_database.run_write(lambda s: inbox.claim_due(s, clock(), limit=9, lease_seconds=30))
        assert [row.job_id for row in mine] == ["j1"]
        finish.set()
        assert other.result() == ["j0"]
