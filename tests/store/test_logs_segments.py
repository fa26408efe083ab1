"""Sealing and retention, with stores that fail and rivals that come at the worst moment."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from store.db import Database
from store.logs.blobs import BlobError, BlobMissing, FileBlobStore
from store.logs.retention import ABANDONED_AFTER
from store.logs.store import LogStore
from store.tables import Instance, LogBlob, LogChunk, LogState
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.logs import LogWriter, everything, texts

MAX_BYTES = 100_000
LINE = 100
"""Text of a test line; it counts 500."""


class TroubledStore(FileBlobStore):
    """A file store with a fault schedule: `before_put` and `before_get` run once, `down` makes every call fail."""

    before_put: Callable[[], None] | None = None
    after_put: Callable[[], None] | None = None
    before_get: Callable[[], None] | None = None
    down = False

    def put(self, name: str, data: bytes) -> None:
        self._happen("before_put")
        super().put(name, data)
        self._happen("after_put")

    def get(self, name: str, offset: int, length: int) -> bytes:
        self._happen("before_get")
        return super().get(name, offset, length)

    def delete(self, name: str) -> None:
        self._happen("")
        super().delete(name)

    def names(self) -> list[str]:
        return sorted(str(p.relative_to(self._root)) for p in self._root.rglob("*") if p.is_file())

    def _happen(self, fault: str) -> None:
        if self.down:
            raise BlobError("the store is down")
        happens = getattr(self, fault, None)
        if happens is not None:
            setattr(self, fault, None)
            happens()


@pytest.fixture
def blobs(tmp_path: Path) -> TroubledStore:
    return TroubledStore(tmp_path / "logs")


@pytest.fixture
def logs(database: Database, clock: SettableClock, blobs: TroubledStore) -> LogStore:
    return LogStore(database, blobs, clock, max_bytes=MAX_BYTES, retention_days=7)


@pytest.fixture
def instance(factory: Factory) -> Instance:
    return factory.instance(factory.job())


@pytest.fixture
def writer(database: Database, logs: LogStore, instance: Instance, clock: SettableClock) -> LogWriter:
    return LogWriter(database, logs, instance, clock)


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"%d" % i + b"." * (LINE - len(str(i))) + b"\n" for i in range(start, end))


def numbers(lines: list[str]) -> list[int]:
    return [int(line.rstrip(".")) for line in lines if line.endswith(".")]


def chunks(database: Database) -> list[LogChunk]:
    return list(database.run_read(lambda s: s.exec(select(LogChunk).order_by(LogChunk.first_seq)).all()))


def counters(database: Database, job_id: str) -> LogState:
    return database.run_read(lambda s: s.get_one(LogState, job_id))


def check_counters(database: Database, job_id: str) -> None:
    """The counters say what the chunks hold, and the chunks lie side by side."""
    rows = [row for row in chunks(database) if row.job_id == job_id]
    state = counters(database, job_id)
    assert state.user_lines == sum(row.user_lines for row in rows)
    assert state.system_lines == sum(row.line_count - row.user_lines for row in rows)
    assert state.stored_bytes == sum(row.byte_count for row in rows)
    hot = [row for row in rows if row.segment is None]
    assert (state.hot_rows, state.hot_bytes) == (len(hot), sum(row.byte_count for row in hot))
    assert (state.hot_since is None) == (not hot)
    assert not hot or state.hot_since <= hot[0].first_at
    assert state.next_seq == 1 + state.trimmed_lines + sum(row.line_count for row in rows)
    position = state.trimmed_lines + 1
    for row in rows:
        assert row.first_seq == position
        position += row.line_count


def announced(database: Database) -> list[tuple[str, bool]]:
    return list(database.run_read(lambda s: s.exec(select(LogBlob.segment, LogBlob.doomed)).all()))


class TestSealing:
    async def test_sealed_lines_are_the_same_lines(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        for start in range(0, 150, 3):
            writer.send(numbered(start, start + 3))
            writer.system(f"at {start}")
            writer.clock.advance(0.25)
        job_id = writer.instance.job_id
        before = await everything(logs, job_id)
        made = await logs.seal(job_id)
        assert await everything(logs, job_id) == before
        rows = chunks(database)
        assert all(row.data is None for row in rows)
        assert sorted(row.segment for row in rows) == blobs.names()
        assert len(rows) == made > 1
        assert announced(database) == []
        check_counters(database, job_id)

    async def test_small_chunks_become_few_blocks(self, writer: LogWriter, logs: LogStore, database: Database) -> None:
        for i in range(10):
            writer.send(b"%d\n" % i)
        await logs.seal(writer.instance.job_id)
        (row,) = chunks(database)
        assert row.blocks is not None
        assert [block[:2] for block in row.blocks] == [[6, 6], [4, 4]]

    async def test_there_is_nothing_to_seal_twice(
        self, writer: LogWriter, logs: LogStore, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        assert await logs.seal(writer.instance.job_id) == 1
        assert await logs.seal(writer.instance.job_id) == 0
        assert await logs.seal("job_unknown") == 0
        assert len(blobs.names()) == 1

    async def test_lines_that_come_while_it_seals_stay_hot(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        blobs.before_put = lambda: writer.send(b"b\n")
        assert await logs.seal(writer.instance.job_id) == 1
        assert [row.segment is None for row in chunks(database)] == [False, True]
        assert await texts(logs, writer.instance.job_id) == ["a", "b"]
        check_counters(database, writer.instance.job_id)

    @pytest.mark.parametrize("moment", ["before_put", "after_put"])
    async def test_of_two_sealers_one_wins_and_the_other_leaves_nothing(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore, moment: str
    ) -> None:
        for i in range(5):
            writer.send(b"%d\n" % i)
        loop = asyncio.get_running_loop()
        rival = LogStore(database, FileBlobStore(blobs._root), writer.clock, max_bytes=MAX_BYTES)

        def overtake() -> None:
            assert asyncio.run_coroutine_threadsafe(rival.seal(writer.instance.job_id), loop).result(30) == 1

        setattr(blobs, moment, overtake)
        assert await logs.seal(writer.instance.job_id) == 0
        assert await texts(logs, writer.instance.job_id) == list("01234")
        await logs.enforce_retention(writer.clock())
        assert blobs.names() == [chunks(database)[0].segment]
        assert announced(database) == []
        check_counters(database, writer.instance.job_id)

    async def test_a_store_that_is_down_leaves_the_lines_hot(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        blobs.down = True
        with pytest.raises(BlobError):
            await logs.seal(writer.instance.job_id)
        assert await texts(logs, writer.instance.job_id) == ["a"]
        blobs.down = False
        assert await logs.seal(writer.instance.job_id) == 1
        await logs.enforce_retention(writer.clock.advance(ABANDONED_AFTER.total_seconds()))
        assert announced(database) == []
        assert len(blobs.names()) == 1

    async def test_what_a_killed_sealer_left_is_swept_but_not_before_its_time(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")

        def die() -> None:
            raise KeyboardInterrupt

        blobs.after_put = die
        with pytest.raises(KeyboardInterrupt):
            await logs.seal(writer.instance.job_id)
        await logs.enforce_retention(writer.clock.advance(ABANDONED_AFTER.total_seconds() - 1))
        assert len(blobs.names()) == 1
        await logs.enforce_retention(writer.clock.advance(1))
        assert blobs.names() == []
        assert await texts(logs, writer.instance.job_id) == ["a"]

    async def test_a_sealer_that_took_too_long_cannot_name_a_swept_object(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        loop = asyncio.get_running_loop()

        def sweep() -> None:
            now = writer.clock.advance(ABANDONED_AFTER.total_seconds())
            asyncio.run_coroutine_threadsafe(logs.enforce_retention(now), loop).result(30)

        blobs.after_put = sweep
        await logs.seal(writer.instance.job_id)
        assert await texts(logs, writer.instance.job_id) == ["a"]
        (row,) = chunks(database)
        assert blobs.names() == [row.segment]

    async def test_segments_hold_no_lines_far_apart(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        for i in range(20):
            writer.send(b"%d\n" % i)
            writer.clock.advance(hours=1)
        await logs.seal(writer.instance.job_id)
        assert all(row.last_at - row.first_at <= timedelta(hours=6) for row in chunks(database))
        assert len(chunks(database)) == 3


class TestUpkeep:
    async def test_a_crowded_log_is_sealed(self, writer: LogWriter, logs: LogStore, database: Database) -> None:
        writer.send(b"a\n")
        await logs.upkeep(writer.clock())
        assert counters(database, writer.instance.job_id).hot_rows == 1
        writer.send(numbered(0, 20))
        await logs.upkeep(writer.clock())
        assert counters(database, writer.instance.job_id).hot_rows == 0

    async def test_old_hot_lines_are_sealed_in_whatever_process(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        other = LogStore(database, blobs, writer.clock)
        await other.upkeep(writer.clock.advance(hours=5))
        assert blobs.names() == []
        await other.upkeep(writer.clock.advance(hours=1))
        assert len(blobs.names()) == 1
        check_counters(database, writer.instance.job_id)

    async def test_it_outlives_failures(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        blobs.down = True
        writer.send(numbered(0, 20))
        wakeup = database.subscribe(f"logs:{writer.instance.job_id}")
        running = asyncio.create_task(logs.run_upkeep())
        writer.send(b"\r50%")
        writer.clock.advance(5)
        await asyncio.wait_for(wakeup.wait(), 20)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


class TestSize:
    @pytest.mark.parametrize("sealed", [False, True], ids=["hot", "sealed"])
    async def test_the_newest_bytes_stay_and_a_counting_line_comes_first(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore, sealed: bool
    ) -> None:
        job_id = writer.instance.job_id
        keeps = MAX_BYTES // (LINE + 400)
        for start in range(0, 1_000, 5):
            writer.send(numbered(start, start + 5))
            writer.clock.advance(1)
            if sealed and start % 20 == 0:
                await logs.seal(job_id)
            assert counters(database, job_id).stored_bytes <= MAX_BYTES * 1.1
        check_counters(database, job_id)
        lines = await everything(logs, job_id)
        kept = numbers([line.message for line in lines])
        assert kept == list(range(1_000 - len(kept), 1_000))
        assert keeps <= len(kept) <= keeps * 1.1
        first = lines[0]
        assert (first.seq, first.source, first.instance_rank) == (0, "system", None)
        assert str(1_000 - len(kept)) in first.message
        assert first.timestamp <= lines[1].timestamp
        assert await everything(logs, job_id, ascending=False) == lines[::-1]
        assert await everything(logs, job_id, source="system") == [first]
        assert await everything(logs, job_id, source="system", ascending=False) == [first]
        assert (await everything(logs, job_id, source="user")) == lines[1:]
        for limit in (17, len(kept), len(kept) + 1):
            assert await everything(logs, job_id, limit=limit) == lines
            assert await everything(logs, job_id, limit=limit, ascending=False) == lines[::-1]
        await logs.enforce_retention(writer.clock())
        assert blobs.names() == sorted(row.segment for row in chunks(database) if row.segment)

    async def test_up_to_a_tenth_more_nothing_is_trimmed(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        writer.send(numbered(0, 220))
        assert counters(database, writer.instance.job_id).stored_bytes == 110_000
        assert numbers(await texts(logs, writer.instance.job_id)) == list(range(220))
        writer.send(b"\n")
        assert counters(database, writer.instance.job_id).trimmed_lines > 0

    async def test_one_deleted_line_is_one(self, database: Database, blobs: TroubledStore, writer: LogWriter) -> None:
        tiny = LogStore(database, blobs, writer.clock, max_bytes=400)
        writer.logs = tiny
        writer.send(b"\n\n")
        assert (await texts(tiny, writer.instance.job_id))[0].startswith("1 earlier line was deleted")

    async def test_a_flood_of_empty_lines_is_bounded_within_its_transaction(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        writer.send(b"\n" * (1 << 13))
        state = counters(database, writer.instance.job_id)
        assert MAX_BYTES <= state.stored_bytes <= MAX_BYTES * 1.1
        assert state.user_lines + state.trimmed_lines == 1 << 13
        check_counters(database, writer.instance.job_id)

    async def test_a_lower_limit_takes_hold_without_new_lines(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(numbered(0, 200))
        await logs.seal(writer.instance.job_id)
        smaller = LogStore(database, blobs, writer.clock, max_bytes=20_000)
        deleted = await smaller.enforce_retention(writer.clock())
        assert 156 <= deleted <= 160
        check_counters(database, writer.instance.job_id)
        assert numbers(await texts(smaller, writer.instance.job_id)) == list(range(deleted, 200))

    async def test_trimming_between_pages_leaves_the_traversal_going(self, writer: LogWriter, logs: LogStore) -> None:
        job_id = writer.instance.job_id
        writer.send(numbered(0, 200))
        page = await logs.page(job_id, limit=10)
        writer.send(numbered(200, 400))
        seen, after = numbers([line.message for line in page.lines]), page.next_after
        while after is not None:
            page = await logs.page(job_id, after=after, limit=10)
            seen += numbers([line.message for line in page.lines])
            after = page.next_after
        assert seen[:10] == list(range(10))
        assert seen[10:] == list(range(seen[10], 400))
        assert seen[10] > 100


class TestAge:
    async def test_lines_end_after_their_time_and_not_before(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        job_id = writer.instance.job_id
        writer.send(numbered(0, 5))
        await logs.seal(job_id)
        writer.clock.advance(days=1)
        writer.send(numbered(5, 8))
        writer.clock.advance(days=6, seconds=-1)
        assert await logs.enforce_retention(writer.clock()) == 0
        assert await logs.enforce_retention(writer.clock.advance(1)) == 5
        assert blobs.names() == []
        check_counters(database, job_id)
        lines = await everything(logs, job_id)
        assert "5 earlier lines were deleted" in lines[0].message
        assert numbers([line.message for line in lines]) == [5, 6, 7]
        assert await logs.enforce_retention(writer.clock.advance(days=1)) == 3
        check_counters(database, job_id)
        assert [line.seq for line in await everything(logs, job_id)] == [0]
        writer.send(numbered(8, 9))
        assert numbers(await texts(logs, job_id)) == [8]

    async def test_a_sealed_line_outlives_its_time_by_hours_at_most(self, writer: LogWriter, logs: LogStore) -> None:
        for i in range(48):
            writer.send(numbered(i, i + 1))
            writer.clock.advance(hours=1)
        await logs.seal(writer.instance.job_id)
        writer.clock.advance(days=6)
        await logs.enforce_retention(writer.clock())
        kept = numbers(await texts(logs, writer.instance.job_id))
        assert 24 - 6 <= kept[0] <= 25
        assert kept == list(range(kept[0], 48))

    async def test_clocks_of_two_servers_that_differ_stop_no_retention(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        writer.clock.advance(minutes=5)
        writer.send(b"ahead\n")
        writer.clock.advance(minutes=-5)
        writer.send(b"behind\n")
        assert await logs.enforce_retention(writer.clock.advance(days=7)) == 0
        assert await logs.enforce_retention(writer.clock.advance(minutes=5)) == 2
        check_counters(database, writer.instance.job_id)

    async def test_an_object_that_cannot_be_deleted_is_deleted_later(
        self, writer: LogWriter, logs: LogStore, database: Database, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        await logs.seal(writer.instance.job_id)
        blobs.down = True
        assert await logs.enforce_retention(writer.clock.advance(days=8)) == 1
        assert await texts(logs, writer.instance.job_id) == [
            "1 earlier line was deleted: a log keeps a limited size for a limited time"
        ]
        blobs.down = False
        assert len(blobs.names()) == 1
        await logs.enforce_retention(writer.clock())
        assert blobs.names() == []
        assert announced(database) == []


class TestReadingMeanwhile:
    async def test_a_page_whose_segment_was_trimmed_meanwhile_is_read_anew(
        self, writer: LogWriter, logs: LogStore, blobs: TroubledStore
    ) -> None:
        job_id = writer.instance.job_id
        writer.send(numbered(0, 100))
        await logs.seal(job_id)
        loop = asyncio.get_running_loop()

        def expire() -> None:
            now = writer.clock.advance(days=8)
            asyncio.run_coroutine_threadsafe(logs.enforce_retention(now), loop).result(30)

        blobs.before_get = expire
        page = await logs.page(job_id, limit=5)
        assert [line.seq for line in page.lines] == [0]

    async def test_an_object_that_is_gone_for_good_is_an_error_and_not_an_empty_page(
        self, writer: LogWriter, logs: LogStore, blobs: TroubledStore
    ) -> None:
        writer.send(b"a\n")
        await logs.seal(writer.instance.job_id)
        for name in blobs.names():
            blobs.delete(name)
        with pytest.raises(BlobMissing):
            await logs.page(writer.instance.job_id, limit=5)

    async def test_readers_sealers_and_writers_at_once_see_each_line_once(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        job_id = writer.instance.job_id
        done = asyncio.Event()

        def write() -> None:
            for start in range(150):
                writer.send(numbered(start, start + 1))

        async def seal() -> None:
            while not done.is_set():
                await logs.seal(job_id)
                await asyncio.sleep(0)

        async def read() -> list[int]:
            seen: list[int] = []
            after: int | None = None
            while len(seen) < 150:
                page = await logs.page(job_id, after=after, limit=7)
                seen += numbers([line.message for line in page.lines])
                after = page.lines[-1].seq if page.lines else after
            return seen

        sealers = [asyncio.create_task(seal()) for _ in range(2)]
        try:
            seen, _ = await asyncio.gather(asyncio.wait_for(read(), 60), asyncio.to_thread(write))
        finally:
            done.set()
            await asyncio.gather(*sealers)
        assert seen == list(range(150))
        check_counters(database, job_id)
