"""Much output: 200,000 lines by one job until all can be read, and pages out of a million lines."""

import asyncio
import time

from bench.client import TERMINAL, Client, job_request
from bench.engines import Engine
from bench.report import Row, percentile
from bench.stack import Stack, running_stack
from bench.usage import Meter

LINES = 200_000
PAGED_LINES = 1_000_000
PAGE = 1_000
MEMORY_MB = 350
ROUNDS = 5
PAGES = 999


def _writer(lines: int) -> bytes:
    """A job that writes lines of 100 bytes as fast as a program can: one `yes`, cut short."""
    line = "x" * 99
    return job_request("bash", "-c", f"yes {line} | head -n {lines}")


async def flood(engine: Engine) -> list[Row]:
    """From the workload's start until the last of 200,000 lines can be read, and from the POST."""
    from_start, whole = [], []
    with running_stack(**engine.environment) as stack:
        async with Client(stack) as client:
            for number in range(ROUNDS + 1):
                began = time.perf_counter()
                job_id = await client.create(_writer(LINES))
                await client.until(job_id, frozenset({"running", "finalizing", "succeeded"}))
                started = time.perf_counter()
                await _until_lines(client, job_id, LINES)
                if number:
                    from_start.append(time.perf_counter() - started)
                    whole.append(time.perf_counter() - began)
                await client.until(job_id, TERMINAL)
            # The upkeep that follows counts: memory is read when it is over.
            await asyncio.sleep(3)
        usage = Meter(stack.processes).read()
    seconds, peak = percentile(whole, 50), {name: usage[name].peak_mb for name in ("worker", "api")}
    measured = (
        f"{seconds:.2f} s from the POST, {percentile(from_start, 50):.2f} s from the start (n={ROUNDS});"
        f" peak memory: worker {peak['worker']:.0f} MB, API {peak['api']:.0f} MB"
    )
    met = seconds <= 2.5 and max(peak.values()) < MEMORY_MB
    what = f"{LINES:,} lines of 100 bytes until readable, {engine.title}"
    return [Row(what, f"<= 2.5 s, worker and API < {MEMORY_MB} MB", measured, met)]


async def _until_lines(client: Client, job_id: str, lines: int) -> None:
    path = f"/jobs/{job_id}/logs?source=user&limit=1&order=desc"
    await client.poll(path, lambda page: page["total"] >= lines)


async def pages(engine: Engine) -> list[Row]:
    """Pages of 1,000 lines out of 1,000,000, by cursors from the start to the end and back."""
    # Beyond the bounds of what is kept of one job's log, and of what an agent keeps while it waits for the API.
    bounds = {"HEADRACE_LOG_MAX_BYTES": str(1 << 32), "HEADRACE_AGENT_SPOOL_BYTES": str(1 << 28)}
    with running_stack(**engine.environment, **bounds) as stack:
        async with Client(stack) as client:
            job_id = await client.create(_writer(PAGED_LINES))
            await client.until(job_id, frozenset({"succeeded"}), 0.1)
            await _until_lines(client, job_id, PAGED_LINES)
            durations = await _walk(client, job_id)
        memory = _memory(stack)
    p99 = percentile(durations, 99)
    measured = f"p50 {percentile(durations, 50) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms (n={len(durations)}); {memory}"
    what = f"a page of {PAGE:,} lines of {PAGED_LINES:,}, anywhere, by HTTP"
    return [Row(what, "p99 <= 30 ms", measured, p99 <= 0.03)]


def _memory(stack: Stack) -> str:
    usage = Meter(stack.processes).read()
    return f"peak memory: worker {usage['worker'].peak_mb:.0f} MB, API {usage['api'].peak_mb:.0f} MB"


async def _walk(client: Client, job_id: str) -> list[float]:
    durations = []
    for order in ("asc", "desc"):
        cursor = ""
        for _ in range(PAGES):
            began = time.perf_counter()
            reply = await client.get_raw(f"/jobs/{job_id}/logs?limit={PAGE}&order={order}{cursor}")
            durations.append(time.perf_counter() - began)
            page = reply.json()
            assert len(page["data"]) == PAGE
            cursor = f"&cursor={page['next_cursor']}"
    return durations
