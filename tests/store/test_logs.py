"""Ingest and pages of the log store, on both databases: every byte once, every line exactly once in every traversal."""

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from store.db import Database
from store.logs.store import LogLine, LogStore, open_blob_store
from store.tables import Instance, LogChunk
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.logs import LogWriter, everything, texts


@pytest.fixture
def logs(database: Database, clock: SettableClock, tmp_path: Path) -> LogStore:
    return LogStore(database, open_blob_store(f"file://{tmp_path}/logs"), clock)


@pytest.fixture
def instance(factory: Factory) -> Instance:
    return factory.instance(factory.job())


@pytest.fixture
def writer(database: Database, logs: LogStore, instance: Instance, clock: SettableClock) -> LogWriter:
    return LogWriter(database, logs, instance, clock)


class TestIngest:
    async def test_a_line_says_all_about_itself(self, writer: LogWriter, logs: LogStore) -> None:
        writer.send(b"out\n")
        writer.clock.advance(1)
        writer.send(b"err\n", "stderr")
        writer.system("pulled the image", rank=None)
        page = await logs.page(writer.instance.job_id, limit=10)
        start = writer.clock() - timedelta(seconds=1)
        assert page.lines == [
            LogLine(1, start, "user", "stdout", "out", 0, False),
            LogLine(2, writer.clock(), "user", "stderr", "err", 0, False),
            LogLine(3, writer.clock(), "system", "stdout", "pulled the image", None, False),
        ]
        assert (page.next_after, page.total) == (None, 3)

    async def test_an_overlap_is_skipped_and_a_gap_refused(self, writer: LogWriter, logs: LogStore) -> None:
        writer.send(b"one\ntwo\n")
        assert not writer.send_at(4, b"two\nthree\n")
        assert not writer.send_at(0, b"one\n")
        assert writer.send_at(15, b"lost\n")
        assert writer.acked() == {"stdout": 14, "stderr": 0}
        assert await texts(logs, writer.instance.job_id) == ["one", "two", "three"]

    async def test_any_cuts_and_repeats_store_each_byte_once(self, writer: LogWriter, logs: LogStore) -> None:
        rng = random.Random(17)
        data = b"".join(b"line %d %s\n" % (i, b"x" * rng.randrange(40)) for i in range(400))
        while (acked := writer.acked()["stdout"]) < len(data):
            start = max(0, acked - rng.randrange(300))
            writer.send_at(start, data[start : start + rng.randrange(1, 700)])
            assert writer.acked()["stdout"] >= acked
        assert await texts(logs, writer.instance.job_id) == data.decode().splitlines()

    async def test_two_appends_in_one_transaction_are_both_kept(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        now = writer.clock()

        def both(session: object) -> None:
            logs.append_chunk(session, writer.instance, "stdout", 0, b"a\nb", now)
            logs.append_chunk(session, writer.instance, "stdout", 3, b"c\n", now)
            logs.append_system(session, writer.instance.job_id, ["s"], now)
            logs.append_chunk(session, writer.instance, "stderr", 0, b"e", now)
            logs.finish_streams(session, writer.instance, now)

        database.run_write(both)
        assert await texts(logs, writer.instance.job_id) == ["a", "bc", "s", "e"]

    async def test_a_transaction_that_fails_stores_nothing(
        self, writer: LogWriter, logs: LogStore, database: Database
    ) -> None:
        def fails(session: object) -> None:
            logs.append_chunk(session, writer.instance, "stdout", 0, b"a\n", writer.clock())
            raise RuntimeError("the caller's own failure")

        with pytest.raises(RuntimeError):
            database.run_write(fails)
        assert writer.acked() == {"stdout": 0, "stderr": 0}
        assert await texts(logs, writer.instance.job_id) == []

    async def test_unfinished_lines_of_both_streams_are_kept(self, writer: LogWriter, logs: LogStore) -> None:
        writer.send(b"a\nb")
        writer.send(b"x", "stderr")
        writer.finish()
        writer.finish()
        assert await texts(logs, writer.instance.job_id) == ["a", "x", "b"]

    async def test_bytes_that_come_after_the_end_are_kept(self, writer: LogWriter, logs: LogStore) -> None:
        writer.send(b"first ha")
        writer.finish()
        writer.send(b"lf\nlate\n")
        assert await texts(logs, writer.instance.job_id) == ["first ha", "lf", "late"]

    async def test_a_nul_among_a_thousand_lines_loses_nothing_else(self, writer: LogWriter, logs: LogStore) -> None:
        lines = [b"line %d" % i for i in range(1000)]
        lines[500] = b"a\0b"
        writer.send(b"\n".join(lines) + b"\n")
        expected = [line.decode() for line in lines]
        expected[500] = "a\ufffdb"
        assert await texts(logs, writer.instance.job_id) == expected

    async def test_a_mebibyte_of_random_bytes_comes_back_as_text(self, writer: LogWriter, logs: LogStore) -> None:
        data = random.Random(15).randbytes(1 << 20).replace(b"\r", b" ")
        writer.send(data)
        writer.finish()
        expected = data.decode("utf-8", "replace").replace("\0", "\ufffd").split("\n")
        assert await texts(logs, writer.instance.job_id) == expected

    async def test_a_long_line_says_that_it_goes_on(self, writer: LogWriter, logs: LogStore) -> None:
        for _ in range(10):
            writer.send(b"y" * (1 << 20))
        writer.send(b"\nafter\n")
        lines = await everything(logs, writer.instance.job_id)
        assert lines[-1].message == "after"
        assert "".join(line.message for line in lines[:-1]) == "y" * (10 << 20)
        assert [line.continued for line in lines] == [True] * (len(lines) - 2) + [False, False]

    async def test_system_text_of_any_kind_becomes_lines(self, writer: LogWriter, logs: LogStore) -> None:
        writer.system("two\nlines", "nul \0 and \ud800", "", "z" * 70_000)
        lines = await everything(logs, writer.instance.job_id, source="system")
        assert [line.message for line in lines[:3]] == ["two", "lines", "nul \ufffd and \ufffd\ufffd\ufffd"]
        assert [(len(line.message), line.continued) for line in lines[3:]] == [(65_536, True), (4_464, False)]

    @pytest.mark.parametrize(("stream", "offset"), [("stdin", 0), ("stdout", -1)])
    async def test_what_is_no_position_is_refused(self, writer: LogWriter, stream: str, offset: int) -> None:
        with pytest.raises(ValueError, match=r"std"):
            writer.send_at(offset, b"x", stream)

    async def test_who_waits_is_woken_by_new_lines_only(self, writer: LogWriter, database: Database) -> None:
        wakeup = database.subscribe(f"logs:{writer.instance.job_id}")
        writer.send(b"no line yet")
        await asyncio.sleep(0)
        assert not wakeup.is_set()
        writer.send(b"\n")
        await asyncio.wait_for(wakeup.wait(), 5)

    async def test_writers_of_one_job_at_once_share_its_numbers(
        self, logs: LogStore, database: Database, factory: Factory, clock: SettableClock
    ) -> None:
        job = factory.job()
        writers = [LogWriter(database, logs, factory.instance(job, number=n, rank=n), clock) for n in range(1, 5)]

        def ship(writer: LogWriter) -> None:
            for i in range(25):
                writer.send(b"%d\n" % i)

        await asyncio.gather(*(asyncio.to_thread(ship, writer) for writer in writers))
        lines = await everything(logs, job.id)
        assert [line.seq for line in lines] == list(range(1, 101))
        for writer in writers:
            own = [line.message for line in lines if line.instance_rank == writer.instance.rank]
            assert own == [str(i) for i in range(25)]


class TestProgress:
    async def test_a_state_without_successor_is_shown_by_the_upkeep(self, writer: LogWriter, logs: LogStore) -> None:
        writer.send(b"37%\r")
        await logs.upkeep(writer.clock())
        assert await texts(logs, writer.instance.job_id) == []
        await logs.upkeep(writer.clock.advance(1.5))
        assert await texts(logs, writer.instance.job_id) == ["37%"]
        await logs.upkeep(writer.clock.advance(60))
        writer.send(b"\n")
        assert await texts(logs, writer.instance.job_id) == ["37%"]

    async def test_many_due_streams_are_all_shown(
        self, logs: LogStore, database: Database, factory: Factory, clock: SettableClock
    ) -> None:
        writers = [LogWriter(database, logs, factory.instance(factory.job()), clock) for _ in range(120)]
        for writer in writers:
            writer.send(b"\r5%")
        await logs.upkeep(clock.advance(2))
        for writer in writers:
            assert await texts(logs, writer.instance.job_id) == ["5%"]


@pytest.fixture
def filled(writer: LogWriter) -> LogWriter:
    """A log of 10,000 user lines with one timestamp, 20 system lines between them."""
    for start in range(0, 10_000, 500):
        writer.send(b"".join(b"line %d\n" % i for i in range(start, start + 500)))
        writer.system(f"note {start}")
    return writer


class TestPages:
    @pytest.mark.parametrize("sealed", [False, True], ids=["hot", "sealed"])
    @pytest.mark.parametrize("limit", [999, 1000])
    async def test_each_line_is_there_exactly_once_in_both_orders(
        self, filled: LogWriter, logs: LogStore, limit: int, sealed: bool
    ) -> None:
        job_id = filled.instance.job_id
        if sealed:
            assert await logs.seal(job_id) >= 1
        up = await everything(logs, job_id, limit=limit)
        down = await everything(logs, job_id, limit=limit, ascending=False)
        assert [line.seq for line in up] == list(range(1, 10_021))
        assert down == up[::-1]
        user = await everything(logs, job_id, limit=limit, source="user")
        assert [line.message for line in user] == [f"line {i}" for i in range(10_000)]
        assert await everything(logs, job_id, limit=limit, source="user", ascending=False) == user[::-1]

    @pytest.mark.parametrize("limit", [1, 2])
    async def test_small_pages_of_a_rare_source(self, filled: LogWriter, logs: LogStore, limit: int) -> None:
        await logs.seal(filled.instance.job_id)
        filled.system("note last")
        for ascending in (True, False):
            lines = await everything(logs, filled.instance.job_id, source="system", limit=limit, ascending=ascending)
            notes = [f"note {start}" for start in range(0, 10_000, 500)] + ["note last"]
            assert [line.message for line in lines] == (notes if ascending else notes[::-1])

    @pytest.mark.parametrize("limit", [1, 2])
    @pytest.mark.parametrize("ascending", [True, False])
    async def test_small_pages_over_hot_and_sealed_chunks(
        self, writer: LogWriter, logs: LogStore, limit: int, ascending: bool
    ) -> None:
        for i in range(30):
            writer.send(b"%d\n" % i)
            if i in (9, 10, 24):
                await logs.seal(writer.instance.job_id)
        lines = await everything(logs, writer.instance.job_id, limit=limit, ascending=ascending)
        assert [int(line.message) for line in lines] == list(range(30))[:: 1 if ascending else -1]

    @pytest.mark.parametrize("ascending", [True, False])
    @pytest.mark.parametrize("limit", [7, 100])
    async def test_appending_and_sealing_between_pages_disturbs_no_traversal(
        self, writer: LogWriter, logs: LogStore, limit: int, ascending: bool
    ) -> None:
        job_id = writer.instance.job_id
        writer.send(b"".join(b"%d\n" % i for i in range(300)))
        sent, seen, after, pages = 300, [], None, 0
        while True:
            page = await logs.page(job_id, source="user", ascending=ascending, after=after, limit=limit)
            seen += [int(line.message) for line in page.lines]
            after = page.next_after
            if after is None:
                break
            pages += 1
            if pages <= 20:
                writer.send(b"%d\n" % sent)
                sent += 1
                writer.system("between")
            if pages % 5 == 0:
                await logs.seal(job_id)
        assert seen == (list(range(sent)) if ascending else list(range(299, -1, -1)))

    @pytest.mark.parametrize("sealed", [False, True], ids=["hot", "sealed"])
    @pytest.mark.parametrize("ascending", [True, False])
    async def test_a_page_of_very_long_lines_is_cut_short_and_no_line_is_lost(
        self, writer: LogWriter, logs: LogStore, ascending: bool, sealed: bool
    ) -> None:
        numbers = range(90)
        for i in numbers:
            writer.send(b"%d " % i + b"x" * 60_000 + b"\n")
        if sealed:
            await logs.seal(writer.instance.job_id)
        page = await logs.page(writer.instance.job_id, ascending=ascending, limit=1000)
        assert 1 < len(page.lines) < 90
        assert sum(len(line.message) for line in page.lines) <= 2 << 20
        lines = await everything(logs, writer.instance.job_id, ascending=ascending)
        assert [int(line.message.split()[0]) for line in lines] == list(numbers)[:: 1 if ascending else -1]

    async def test_following_continues_after_the_last_line_seen(self, writer: LogWriter, logs: LogStore) -> None:
        writer.send(b"a\n")
        page = await logs.page(writer.instance.job_id, limit=10)
        last = page.lines[-1].seq
        assert (await logs.page(writer.instance.job_id, after=last, limit=10)).lines == []
        writer.send(b"b\n")
        page = await logs.page(writer.instance.job_id, after=last, limit=10)
        assert [line.message for line in page.lines] == ["b"]

    @pytest.mark.parametrize("ascending", [True, False])
    async def test_a_job_without_lines_has_an_empty_page(self, logs: LogStore, ascending: bool) -> None:
        page = await logs.page("job_unknown", ascending=ascending, limit=5)
        assert (page.lines, page.next_after, page.total) == ([], None, 0)

    @pytest.mark.parametrize("after", [0, 10_020, 10_021, 1 << 62])
    @pytest.mark.parametrize("ascending", [True, False])
    async def test_a_cursor_beyond_the_lines_gives_what_lies_after_it(
        self, filled: LogWriter, logs: LogStore, after: int, ascending: bool
    ) -> None:
        page = await logs.page(filled.instance.job_id, ascending=ascending, after=after, limit=3)
        first = {(0, True): 1, (10_020, False): 10_019}.get((after, ascending), None if ascending else 10_020)
        assert (page.lines[0].seq if page.lines else None) == (None if (after, ascending) == (0, False) else first)

    async def test_a_page_of_nothing_is_refused(self, logs: LogStore) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            await logs.page("job_x", limit=0)

    async def test_other_jobs_lines_are_not_seen(
        self, writer: LogWriter, logs: LogStore, database: Database, factory: Factory, clock: SettableClock
    ) -> None:
        other = LogWriter(database, logs, factory.instance(factory.job()), clock)
        writer.send(b"mine\n")
        other.send(b"theirs\n")
        assert await texts(logs, writer.instance.job_id) == ["mine"]
        assert await texts(logs, other.instance.job_id) == ["theirs"]

    async def test_chunks_are_few(self, filled: LogWriter, database: Database) -> None:
        rows = database.run_read(lambda s: s.exec(select(LogChunk.id)).all())
        assert len(rows) == 40
