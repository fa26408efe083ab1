"""The first page of a report of usage over 100,000 ledger entries, by HTTP."""

import sqlite3
import time

from bench.client import TERMINAL, Client, job_request
from bench.report import Row, milliseconds, percentile
from bench.stack import Stack, running_stack

ENTRIES = 100_000
REQUESTS = 500
_FLOOR_SECONDS = 0.050
_APART_SECONDS = 20
"""100,000 times that is 23 days: all of it lies in the window that is reported when none is asked for."""


async def report() -> list[Row]:
    """One after the other: the default window, one that cuts entries on both sides, and a next page."""
    with running_stack(HEADRACE_LOCAL_ENGINE="sandbox") as stack:
        await _fill(stack)
        durations = []
        async with Client(stack) as client:
            first = await client.get("/usage")
            assert first["total"] >= ENTRIES, first["total"]
            window = first["window"]
            paths = ["/usage", f"/usage?to={window['to']}", f"/usage?cursor={first['next_cursor']}"]
            for number in range(REQUESTS + 10):
                began = time.perf_counter()
                await client.get_raw(paths[number % len(paths)])
                if number >= 10:
                    durations.append(time.perf_counter() - began)
    worst = percentile(durations, 99)
    return [
        Row(f"get_compute_usage(50) of {ENTRIES:,} ledger entries", "p99 <= 50 ms",
            f"{milliseconds(durations)} (n={REQUESTS})", worst <= _FLOOR_SECONDS),
    ]  # fmt: skip


async def _fill(stack: Stack) -> None:
    """Entries of as many jobs, copied from the one that a real job left; and a few of the minute that is not over."""
    async with Client(stack) as client:
        job_id = await client.create(job_request("echo", "hi"))
        await client.until(job_id, TERMINAL)
        await client.poll(f"/jobs/{job_id}/instances", lambda page: "confirmed_absent_at" in page["data"][0], 0.2)
    moments = {"begins_at", "last_at", "written_at", "resource_at"}
    with sqlite3.connect(stack.data_dir / "headrace.db") as database:
        for table, names in (("ledger_entry", ("resource_id", "instance_id")), ("billed_resource", ("resource_id",))):
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
            shown = [
                f"substr({name}, 1, length({name}) - 6) || printf('%06d', n.value)" if name in names
                else f"{name} - n.value * {_APART_SECONDS * 1_000_000}" if name in moments else name
                for name in columns
            ]  # fmt: skip
            database.execute(
                f"WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {ENTRIES} + 10) "
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(shown)} FROM {table}, n WHERE 1"
            )
        day = 86_400_000_000
        database.execute(
            "INSERT OR REPLACE INTO billed_day (org_id, resource_type, day, project_id, whole, nano, atto) SELECT "
            f"org_id, resource_type, begins_at / {day} * {day}, project_id, sum(whole), sum(nano), sum(atto) "
            "FROM ledger_entry GROUP BY 1, 2, 3, 4"
        )
