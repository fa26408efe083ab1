"""The public API under load: creating jobs, and listing them. The load comes from this process, not from the API's."""

import asyncio
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable

import psutil

from bench.client import Client, job_request
from bench.report import Row, milliseconds
from bench.stack import Stack, fake_cloud, running_stack
from bench.usage import Meter

CLIENTS = 16
SEQUENTIAL_CREATES = 200
CONCURRENT_CREATES = 1_600
STARTS_PER_SECOND = 50
LISTED_JOBS = 10_000
PAGE = 50
LISTS = 3_000

_ECHO = job_request("fake", "{}", accelerator="nvidia-h100-80gb")


async def create() -> list[Row]:
    """create_job by one client, then by 16, and until all of them run as workflows.

    The jobs go to the fake cloud. Creates compete with the workflows that they start: that is what a client sees.
    """
    rows = []
    with fake_cloud() as url, running_stack(HEADRACE_FAKE_PROVIDER_URL=url, HEADRACE_LOCAL_ENABLED="false") as stack:
        durations = []
        async with Client(stack) as client:
            for number in range(SEQUENTIAL_CREATES + 10):
                began = time.perf_counter()
                await client.create(_ECHO)
                if number >= 10:
                    durations.append(time.perf_counter() - began)
        p50 = statistics.median(durations)
        rows.append(Row("create_job, 1 client", "p50 <= 8 ms", f"{milliseconds(durations)}", p50 <= 0.008))
        await _until_started(stack)
        own, meter, began = psutil.Process().cpu_times(), Meter(stack.processes), time.perf_counter()
        rate = await _rate(stack, CONCURRENT_CREATES, lambda client, _: client.create(_ECHO))
        usage, now = meter.read(), psutil.Process().cpu_times()
        load = (now.user + now.system - own.user - own.system) / (CONCURRENT_CREATES / rate)
        measured = f"{rate:.0f}/s; API {usage['api'].cpu:.2f} cores, load generator {load:.2f}"
        rows.append(Row(f"create_job, {CLIENTS} clients", ">= 200/s", measured, rate >= 200))
        await _until_started(stack)
        took = time.perf_counter() - began
        limit = CONCURRENT_CREATES / STARTS_PER_SECOND
        rows.append(Row(f"{CONCURRENT_CREATES} created jobs until all are started", f"<= {limit:.0f} s",
                        f"{took:.1f} s, {CONCURRENT_CREATES / took:.0f}/s", took <= limit))  # fmt: skip
    return rows


async def listing() -> list[Row]:
    """Pages of 50 out of 10,000 finished jobs, by 16 clients, each the first page or the one after it."""
    with running_stack(HEADRACE_LOCAL_ENGINE="sandbox") as stack:
        await _fill(stack, LISTED_JOBS)
        async with Client(stack) as client:
            first = await client.get(f"/jobs?limit={PAGE}")
            assert first["total"] >= LISTED_JOBS, first["total"]
            assert len(first["data"]) == PAGE
        paths = [f"/jobs?limit={PAGE}", f"/jobs?limit={PAGE}&cursor={first['next_cursor']}"]
        meter = Meter(stack.processes)
        rate = await _rate(stack, LISTS, lambda client, number: client.get_raw(paths[number % 2]))
        usage = meter.read()
    measured = f"{rate:.0f}/s; API {usage['api'].cpu:.2f} cores"
    return [Row(f"list_jobs({PAGE}), {LISTED_JOBS:,} jobs, {CLIENTS} clients", ">= 300/s", measured, rate >= 300)]


async def _rate(stack: Stack, count: int, call: Callable[[Client, int], Awaitable[object]]) -> float:
    """Calls per second by 16 clients, each on a connection of its own."""

    async def work(first: int) -> None:
        async with Client(stack) as client:
            for number in range(first, count, CLIENTS):
                await call(client, number)

    began = time.perf_counter()
    await asyncio.gather(*(work(first) for first in range(CLIENTS)))
    return count / (time.perf_counter() - began)


async def _until_started(stack: Stack) -> None:
    """Until Temporal has acknowledged the start of every job's workflow."""
    waiting = "SELECT count(*) FROM job WHERE workflow_started_at IS NULL"
    with sqlite3.connect(f"file:{stack.data_dir}/headrace.db?mode=ro", uri=True) as database:
        while database.execute(waiting).fetchone()[0]:  # noqa: ASYNC110 - of another process: there is no event
            await asyncio.sleep(0.05)


async def _fill(stack: Stack, count: int) -> None:
    """Finished jobs with an instance each, as rows: running ten thousand jobs would measure something else."""
    async with Client(stack) as client:
        job_id = await client.create(job_request("echo", "hi"))
        await client.until(job_id, frozenset({"succeeded"}))
    with sqlite3.connect(stack.data_dir / "headrace.db") as database:
        for table, own in (("job", ("id",)), ("instance", ("id", "job_id")), ("pricerecord", ("instance_id",))):
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] != "seq"]
            columns = [name for name in columns if not (table == "pricerecord" and name == "id")]
            shown = [f"substr({name}, 1, length({name}) - 5) || printf('%05d', n.value)" if name in own else name
                     for name in columns]  # fmt: skip
            database.execute(
                f"WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {count}) "
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(shown)} FROM {table}, n WHERE 1"
            )
