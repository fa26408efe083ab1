"""How long a stack takes from the command to the first job that it would run."""

import statistics
import time

from bench.report import Row
from bench.stack import running_stack
from bench.usage import cpu_seconds

_FLOOR_SECONDS = 3.0


def start(runs: int) -> Row:
    """`headrace up` in a new directory until it says that it is ready: Temporal, worker and API started, with every
    extra installed and no cloud connected."""
    seconds, cpu = [], []
    for _ in range(runs):
        began = time.monotonic()
        with running_stack() as stack:
            seconds.append(time.monotonic() - began)
            cpu.append(sum(map(cpu_seconds, stack.processes.values())))
    median = statistics.median(seconds)
    return Row(
        "`headrace up` in a new directory until ready, no cloud connected",
        f"{_FLOOR_SECONDS:g} s",
        f"p50 {median:.2f} s, at most {max(seconds):.2f} s (n={runs}); {statistics.median(cpu):.1f} s of CPU",
        median <= _FLOOR_SECONDS,
    )
