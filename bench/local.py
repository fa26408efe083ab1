"""Jobs on this machine: one after the other, many at once, and terminated."""

import asyncio
import statistics
import time
from typing import Any

from temporalio.client import Client as TemporalClient

from bench.client import TERMINAL, Client, job_request
from bench.engines import Engine
from bench.report import Row, milliseconds
from bench.stack import Stack, running_stack
from bench.usage import Meter

ECHO_FLOOR = {True: 0.25, False: 0.5}
BURST_FLOOR = {True: 8.0, False: 4.0}
TERMINATE_FLOOR = {True: 0.5, False: 1.0}
HISTORY_FLOOR = 45
BURST_JOBS = 40
WARM_UPS = 3


async def echo(engine: Engine, runs: int) -> list[Row]:
    """`echo hi` from the POST until the job is terminal and its log can be read; also the length of a history."""
    with running_stack(**engine.environment) as stack:
        async with Client(stack) as client:
            for _ in range(WARM_UPS):
                job_id, _ = await _echo_once(client)
            meter = Meter(stack.processes)
            alone = engine.alone(max(5, runs // 3)) if engine.setup else []
            meter, began = Meter(stack.processes), time.perf_counter()
            durations = [(await _echo_once(client))[1] for _ in range(runs)]
            usage, elapsed = meter.read(), time.perf_counter() - began
        events = await _history_length(stack, job_id)
    floor = ECHO_FLOOR[engine.is_sandbox]
    measured = f"{milliseconds(durations)} (n={runs})"
    if alone:
        own = statistics.median(alone)
        measured += f"; `podman run` alone {own * 1000:.0f} ms, ratio {statistics.median(durations) / own:.1f}"
    spent = ", ".join(f"{name} {usage[name].cpu * elapsed / runs * 1000:.0f}" for name in ("temporal", "worker", "api"))
    return [
        Row(f"`echo hi`, {engine.title}", f"p50 <= {floor} s", f"{measured}; CPU ms a job: {spent}",
            statistics.median(durations) <= floor),
        Row(f"history of a successful job, {engine.title}", f"<= {HISTORY_FLOOR} events", f"{events} events",
            events <= HISTORY_FLOOR),
    ]  # fmt: skip


async def _echo_once(client: Client) -> tuple[str, float]:
    began = time.perf_counter()
    job_id = await client.create(job_request("echo", "hi"))
    job = await client.until(job_id, TERMINAL)
    await client.poll(f"/jobs/{job_id}/logs?source=user", lambda page: [li["message"] for li in page["data"]] == ["hi"])
    elapsed = time.perf_counter() - began
    assert job["state"] == "succeeded", job
    return job_id, elapsed


async def _history_length(stack: Stack, job_id: str) -> int:
    temporal = await TemporalClient.connect(stack.temporal_address)
    return len((await temporal.get_workflow_handle(job_id).fetch_history()).events)


async def burst(engine: Engine, rounds: int) -> list[Row]:
    """40 echo jobs sent at once until all are terminal; the median of some rounds."""
    rates = []
    with running_stack(**engine.environment) as stack:
        async with Client(stack) as client:
            for _ in range(WARM_UPS):
                await _echo_once(client)
            meter, began = Meter(stack.processes), time.perf_counter()
            for _ in range(rounds):
                rates.append(await _burst_once(stack, client))
            usage, elapsed = meter.read(), time.perf_counter() - began
    floor = BURST_FLOOR[engine.is_sandbox]
    rate = statistics.median(rates)
    spent = ", ".join(
        f"{name} {usage[name].cpu * elapsed / rounds / BURST_JOBS * 1000:.0f}" for name in ("temporal", "worker", "api")
    )
    shown = " ".join(f"{value:.1f}" for value in rates)
    return [
        Row(f"{BURST_JOBS} echo jobs at once, {engine.title}", f">= {floor:g} jobs/s",
            f"{rate:.1f} jobs/s (rounds: {shown}); CPU ms a job: {spent}", rate >= floor)
    ]  # fmt: skip


async def _burst_once(stack: Stack, client: Client) -> float:
    before = (await client.get("/jobs?limit=1&state=succeeded"))["total"]
    began = time.perf_counter()

    async def send(number: int) -> None:
        async with Client(stack) as own:
            for _ in range(number, BURST_JOBS, 8):
                await own.create(job_request("echo", "hi"))

    await asyncio.gather(*(send(number) for number in range(8)))
    await client.until_total("succeeded", before + BURST_JOBS)
    return BURST_JOBS / (time.perf_counter() - began)


async def terminate(engine: Engine, runs: int) -> list[Row]:
    """From the terminate request until the provider's list has no such container, which an event tells right after."""
    durations = []
    with running_stack(**engine.environment) as stack:
        async with Client(stack) as client:
            for number in range(runs + WARM_UPS):
                job_id = await client.create(job_request("sleep", "86400"))
                await client.until(job_id, frozenset({"running"}))
                began = time.perf_counter()
                await client.terminate(job_id)
                await _gone(client, job_id)
                if number >= WARM_UPS:
                    durations.append(time.perf_counter() - began)
                await client.until(job_id, TERMINAL)
    floor = TERMINATE_FLOOR[engine.is_sandbox]
    return [
        Row(f"terminate until the container is gone, {engine.title}", f"p50 <= {floor} s",
            f"{milliseconds(durations)} (n={runs})", statistics.median(durations) <= floor)
    ]  # fmt: skip


async def _gone(client: Client, job_id: str) -> None:
    def is_gone(page: dict[str, Any]) -> bool:
        return any(event["type"] == "instance_gone" for event in page["data"])

    await client.poll(f"/jobs/{job_id}/events", is_gone)
