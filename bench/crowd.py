"""A thousand jobs that run on and on: what they cost the control plane while nothing happens to them."""

import asyncio
import time
from collections.abc import Mapping

from bench.client import Client, job_request
from bench.report import Row
from bench.stack import Stack, fake_cloud, running_stack
from bench.usage import Meter, Usage

JOBS = 1_000
STEADY_SECONDS = 60
SETTLING_SECONDS = 45
_CLIENTS = 8

_LONG = job_request("fake", '{"run_seconds": 86400}', accelerator="nvidia-h100-80gb")


async def crowd(jobs: int = JOBS) -> list[Row]:
    """Their agents are simulated in a process of their own, which is not counted: each holds its poll for orders."""
    with fake_cloud() as url, running_stack(HEADRACE_FAKE_PROVIDER_URL=url, HEADRACE_LOCAL_ENABLED="false") as stack:
        began = time.perf_counter()
        await _create(stack, jobs)
        await _until_running(stack, jobs)
        took = time.perf_counter() - began
        await asyncio.sleep(SETTLING_SECONDS)
        meter = Meter(stack.processes)
        await asyncio.sleep(STEADY_SECONDS)
        usage = meter.read()
        # Still all of them, which no answer in between has told: the wait is the measurement.
        await _until_running(stack, jobs)
    return _rows(jobs, took, usage)


async def _until_running(stack: Stack, jobs: int) -> None:
    async with Client(stack) as client:
        await client.until_total("running", jobs, 0.5)


async def _create(stack: Stack, jobs: int) -> None:
    async def work(first: int) -> None:
        async with Client(stack) as client:
            for _ in range(first, jobs, _CLIENTS):
                await client.create(_LONG)

    await asyncio.gather(*(work(first) for first in range(_CLIENTS)))


def _rows(jobs: int, took: float, usage: Mapping[str, Usage]) -> list[Row]:
    what = f"{jobs:,} running jobs, {STEADY_SECONDS} s"
    worker, api, temporal = usage["worker"], usage["api"], usage["temporal"]
    own = worker.cpu + api.cpu
    return [
        Row(f"{what}: memory of the worker", "<= 250 MB",
            f"{worker.memory_mb:.0f} MB (API {api.memory_mb:.0f} MB, Temporal {temporal.memory_mb:.0f} MB)",
            worker.memory_mb <= 250),
        Row(f"{what}: CPU of API and worker", "<= 15 % of a core",
            f"{own:.1%} (API {api.cpu:.1%}, worker {worker.cpu:.1%})", own <= 0.15),
        Row(f"{what}: CPU of Temporal", "<= 15 % of a core", f"{temporal.cpu:.1%}", temporal.cpu <= 0.15),
        Row(f"{jobs:,} jobs from the first POST until all run", "", f"{took:.0f} s, {jobs / took:.0f}/s", None),
    ]  # fmt: skip
