"""What a measurement says, and under which conditions it was taken."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met` is None where there is no floor to compare with."""

    what: str
    floor: str
    measured: str
    met: bool | None

    def markdown(self) -> str:
        verdict = {True: "yes", False: "**no**", None: ""}[self.met]
        return f"| {self.what} | {self.floor} | {self.measured} | {verdict} |"


HEADER = "| what | floor | measured | met |\n|---|---|---|---|"


def percentile(values: Sequence[float], percent: float) -> float:
    """Of the values in any order; the nearest one that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def milliseconds(values: Sequence[float]) -> str:
    """Median and 99th percentile of seconds, for people."""
    return f"p50 {statistics.median(values) * 1000:.0f} ms, p99 {percentile(values, 99) * 1000:.0f} ms"


def conditions() -> str:
    """What else this machine was doing: a figure without it says little."""
    one, five, _ = os.getloadavg()
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {psutil.cpu_count()} cores,"
        f" load average {one:.1f} (1 min) {five:.1f} (5 min)"
    )
