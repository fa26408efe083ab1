"""What the log store does alone: ingest with line making, and pages out of a large log. No HTTP, no agent."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import SQLModel

from bench.report import Row
from domain.clock import utc_now
from domain.states import InstanceState
from store.db import Database
from store.logs.store import LogStore, open_blob_store
from store.tables import Instance

INGEST_LINES = 200_000
PAGED_LINES = 1_000_000
PAGE_LINES = 1_000
CHUNK_BYTES = 1 << 20
LINE = b"{'loss': 2.31415926, 'grad_norm': 1.04, 'learning_rate': 0.000198, 'epoch': 0.25, 'step': %08d}"

UNTRIMMED_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Ingest:
    """`ingest_seconds`: until all is committed and readable; `seal_seconds`: for the upkeep that follows."""

    lines: int
    ingest_seconds: float
    seal_seconds: float


@dataclass(frozen=True, slots=True)
class Pages:
    lines: int
    p50_milliseconds: float
    p99_milliseconds: float


class Bench:
    """A log store on a new SQLite file and a directory of segments."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(f"sqlite:///{folder}/bench.db")
        SQLModel.metadata.create_all(self.database.engine)
        self.logs = LogStore(
            self.database, open_blob_store(f"file://{folder}/logs"), utc_now, max_bytes=UNTRIMMED_BYTES
        )
        self.instance = Instance(
            id="inst-bench",
            job_id="job_bench",
            org_id="org_bench",
            number=1,
            connection_id="local",
            provider="local",
            state=InstanceState.RUNNING,
        )

    async def ingest(self, lines: int) -> Ingest:
        """Lines of 100 bytes, shipped in chunks of 1 MiB one after the other, as an agent does."""
        data = b"".join((LINE % number)[:99].ljust(99, b".") + b"\n" for number in range(lines))
        began = time.perf_counter()
        for offset in range(0, len(data), CHUNK_BYTES):
            chunk = data[offset : offset + CHUNK_BYTES]
            await self.database.write(
                lambda session, offset=offset, chunk=chunk: self.logs.append_chunk(  # type: ignore[misc]
                    session, self.instance, "stdout", offset, chunk, utc_now()
                )
            )
        page = await self.logs.page(self.instance.job_id, ascending=False, limit=1)
        assert page.total == lines
        committed = time.perf_counter()
        await self.logs.seal(self.instance.job_id)
        return Ingest(lines, committed - began, time.perf_counter() - committed)

    async def pages(self, rounds: int) -> Pages:
        """Pages spread over the whole log, in both orders."""
        total = (await self.logs.page(self.instance.job_id, limit=1)).total
        durations = []
        for number in range(rounds):
            after = (number * 7_919_777) % (total - 2 * PAGE_LINES) + PAGE_LINES
            began = time.perf_counter()
            page = await self.logs.page(self.instance.job_id, ascending=number % 2 == 0, after=after, limit=PAGE_LINES)
            durations.append((time.perf_counter() - began) * 1000)
            assert len(page.lines) == PAGE_LINES
            assert page.lines[0].seq == (after + 1 if number % 2 == 0 else after - 1)
        durations.sort()
        return Pages(total, statistics.median(durations), durations[int(len(durations) * 0.99) - 1])

    def close(self) -> None:
        self.database.close()


async def measure_ingest(lines: int = INGEST_LINES, repeats: int = 5) -> Ingest:
    """The median of `repeats` runs, each on a new store."""
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder))
            runs.append(await bench.ingest(lines))
            bench.close()
    return Ingest(
        lines,
        statistics.median(run.ingest_seconds for run in runs),
        statistics.median(run.seal_seconds for run in runs),
    )


async def measure_pages(lines: int = PAGED_LINES, rounds: int = 500) -> Pages:
    """Pages out of one log, sealed."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        await bench.ingest(lines)
        pages = await bench.pages(rounds)
        bench.close()
        return pages


async def rows() -> list[Row]:
    """Both measurements, for the table."""
    ingest, pages = await measure_ingest(), await measure_pages()
    return [
        Row(f"ingest of {ingest.lines:,} lines in the log store alone", "",
            f"{ingest.ingest_seconds:.2f} s until readable; sealing them {ingest.seal_seconds:.2f} s", None),
        Row(f"a page of {PAGE_LINES:,} lines of {pages.lines:,}, in the log store alone", "p99 <= 30 ms",
            f"p50 {pages.p50_milliseconds:.1f} ms, p99 {pages.p99_milliseconds:.1f} ms",
            pages.p99_milliseconds <= 30),
    ]  # fmt: skip
