"""Transactions: whole or not at all, repeated when a race was lost, followed by their wake-ups."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from sqlalchemy import func, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from store.db import Database, in_transaction, insert_once, publish, woken
from store.tables import JobEvent, Organization
from tests.support.clock import SettableClock


def add(session: Session, name: str, now: datetime) -> None:
    session.add(Organization(id=name, name=name, created_at=now, updated_at=now))


def names(database: Database) -> list[str]:
    return sorted(database.run_read(lambda s: s.exec(select(Organization.name)).all()))


class TestWrite:
    async def test_what_is_written_is_kept_and_its_result_returned(
        self, database: Database, clock: SettableClock
    ) -> None:
        def change(session: Session) -> int:
            add(session, "a", clock())
            return 7

        assert await database.write(change) == 7
        assert names(database) == ["a"]

    async def test_an_error_undoes_all_of_it(self, database: Database, clock: SettableClock) -> None:
        def change(session: Session) -> None:
            add(session, "a", clock())
            session.flush()
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await database.write(change)
        assert names(database) == []

    async def test_a_cancelled_caller_does_not_tear_it(self, database: Database, clock: SettableClock) -> None:
        entered, go_on = threading.Event(), threading.Event()

        def change(session: Session) -> None:
            add(session, "a", clock())
            entered.set()
            assert go_on.wait(10)

        caller = asyncio.create_task(database.write(change))
        await asyncio.to_thread(entered.wait)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        await database.write(lambda _: None)
        database.close()
        assert names(database) == ["a"]

    async def test_reads_keep_nothing(self, database: Database, clock: SettableClock) -> None:
        def change(session: Session) -> None:
            add(session, "a", clock())
            session.flush()

        await database.read(change)
        assert names(database) == []

    async def test_a_read_sees_one_moment(self, database: Database, clock: SettableClock) -> None:
        """Even while others write between its queries."""

        def query(session: Session) -> tuple[int, int]:
            count = select(func.count()).select_from(Organization)
            before = session.exec(count).one()
            with ThreadPoolExecutor(1) as other:
                other.submit(database.run_write, lambda s: add(s, "a", clock())).result()
            return before, session.exec(count).one()

        assert await database.read(query) == (0, 0)
        assert names(database) == ["a"]

    async def test_concurrent_increments_are_all_kept(self, database: Database) -> None:
        """Read, then write: what a lost update would break. The row is locked as all our code does."""
        database.run_write(lambda s: s.connection().execute(text("CREATE TABLE counter (n INTEGER)")))
        database.run_write(lambda s: s.connection().execute(text("INSERT INTO counter VALUES (0)")))
        lock = "" if database.sqlite else " FOR UPDATE"

        def increment(session: Session) -> None:
            value = session.connection().execute(text(f"SELECT n FROM counter{lock}")).scalar_one()
            session.connection().execute(text("UPDATE counter SET n = :n"), {"n": value + 1})

        await asyncio.gather(*(database.write(increment) for _ in range(40)))
        assert database.run_read(lambda s: s.connection().execute(text("SELECT n FROM counter")).scalar_one()) == 40

    @pytest.mark.postgres
    async def test_a_deadlock_is_run_again(self, postgres_database: Database, clock: SettableClock) -> None:
        for name in "ab":
            postgres_database.run_write(lambda s, name=name: add(s, name, clock()))
        together, runs = threading.Barrier(2), []

        def lock_both(session: Session, order: str) -> None:
            runs.append(order)
            session.get(Organization, order[0], with_for_update=True)
            if len(runs) <= 2:
                together.wait(10)
            session.get(Organization, order[1], with_for_update=True)

        await asyncio.gather(*(postgres_database.write(lambda s, o=o: lock_both(s, o)) for o in ("ab", "ba")))
        # What is run again may meet the other one once more.
        assert len(runs) > 2

    def test_other_database_errors_are_not_repeated(self, database: Database, clock: SettableClock) -> None:
        runs = []

        def change(session: Session) -> None:
            runs.append(1)
            add(session, "a", clock())
            session.flush()
            session.connection().execute(text("INSERT INTO organization SELECT * FROM organization"))

        with pytest.raises(IntegrityError):
            database.run_write(change)
        assert len(runs) == 1

    def test_code_inside_knows_that_it_is(self, database: Database) -> None:
        assert not in_transaction()
        assert database.run_read(lambda _: in_transaction())
        assert database.run_write(lambda _: in_transaction())
        assert not in_transaction()


class TestInsertOnce:
    def test_the_second_one_is_not_stored(self, database: Database, clock: SettableClock) -> None:
        def insert(event_id: str) -> bool:
            values = {"id": event_id, "job_id": "j", "transition_id": "t", "type": "x", "data": {}, "at": clock()}
            return database.run_write(lambda s: insert_once(s, JobEvent, ("job_id", "transition_id"), **values))

        assert insert("first")
        assert not insert("second")
        assert database.run_read(lambda s: s.exec(select(JobEvent.id)).all()) == ["first"]

    @pytest.mark.postgres
    def test_one_that_is_being_inserted_is_waited_for(self, postgres_database: Database, clock: SettableClock) -> None:
        inserted, commit = threading.Event(), threading.Event()
        values = {"job_id": "j", "transition_id": "t", "type": "x", "data": {}, "at": clock()}

        def first(session: Session) -> bool:
            stored = insert_once(session, JobEvent, ("job_id", "transition_id"), id="first", **values)
            inserted.set()
            assert commit.wait(10)
            return stored

        def second(session: Session) -> bool:
            commit.set()
            return insert_once(session, JobEvent, ("job_id", "transition_id"), id="second", **values)

        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(postgres_database.run_write, first)
            assert inserted.wait(10)
            two = pool.submit(postgres_database.run_write, second)
            assert (one.result(), two.result()) == (True, False)


class TestSubscriptions:
    async def test_a_commit_wakes_its_topic_only(self, database: Database) -> None:
        mine, other = database.subscribe("mine"), database.subscribe("other")
        await database.write(lambda s: publish(s, "mine"))
        await asyncio.wait_for(mine.wait(), 10)
        assert not other.is_set()

    async def test_nothing_is_woken_before_the_commit_or_without_one(self, database: Database) -> None:
        wakeup = database.subscribe("t")

        def change(session: Session) -> None:
            publish(session, "t")
            raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            await database.write(change)
        await asyncio.sleep(0)
        assert not wakeup.is_set()

    async def test_an_unsubscribed_one_is_not_woken_and_leaves_nothing(self, database: Database) -> None:
        kept, gone = database.subscribe("t"), database.subscribe("t")
        database.unsubscribe("t", gone)
        await database.write(lambda s: publish(s, "t"))
        await asyncio.wait_for(kept.wait(), 10)
        assert not gone.is_set()
        database.unsubscribe("t", kept)
        database.unsubscribe("t", kept)
        assert database._subscribers == {}

    def test_a_closed_loop_does_not_fail_the_writer(self, database: Database) -> None:
        async def subscribe() -> None:
            database.subscribe("t")

        asyncio.run(subscribe())
        database.run_write(lambda s: publish(s, "t"))


def test_a_durable_write_alone_waits_for_the_disk(sqlite_database: Database) -> None:
    """PostgreSQL's all do."""

    def synchronous(session: Session) -> int:
        return int(session.connection().exec_driver_sql("PRAGMA synchronous").scalar_one())

    found = [sqlite_database.run_write(synchronous, durable=durable) for durable in (False, True, False)]
    normal, full = 1, 2
    assert found == [normal, full, normal]


def test_an_unreachable_database_fails_the_check(tmp_path: object) -> None:
    database = Database(f"sqlite:///{tmp_path}/no/such/folder/t.db")
    with pytest.raises(Exception, match="unable to open"):
        database.check()
    database.close()


def test_a_reachable_database_passes_the_check(database: Database) -> None:
    database.check()


async def test_a_wait_that_is_cancelled_as_its_event_is_set_still_ends_the_loop_around_it() -> None:
    wakeup = asyncio.Event()

    async def loop() -> None:
        while True:
            wakeup.clear()
            await woken(wakeup, 60)

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    wakeup.set()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done
    assert task.cancelled()
