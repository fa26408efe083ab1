"""What processes use: CPU over a stretch of time, and memory at its end."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu` in cores (1.0 is one core, all the time), `memory_mb` in 10^6 bytes resident now, `peak_mb` the most."""

    cpu: float
    memory_mb: float
    peak_mb: float


class Meter:
    """Measures from its creation on."""

    def __init__(self, processes: Mapping[str, psutil.Process]) -> None:
        self._processes = processes
        self._began = time.perf_counter()
        self._before = {name: cpu_seconds(process) for name, process in processes.items()}

    def read(self) -> dict[str, Usage]:
        elapsed = time.perf_counter() - self._began
        return {
            name: Usage(
                (cpu_seconds(process) - self._before[name]) / elapsed,
                process.memory_info().rss / 1e6,
                _peak_bytes(process) / 1e6,
            )
            for name, process in self._processes.items()
        }


def cpu_seconds(process: psutil.Process) -> float:
    """Since it began, of its own."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak_bytes(process: psutil.Process) -> int:
    with open(f"/proc/{process.pid}/status") as stream:
        kilobytes = next(line.split()[1] for line in stream if line.startswith("VmHWM"))
    return int(kilobytes) * 1024
