"""The GPUs that this machine proves to have, by asking its driver."""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from domain.catalog import Gpu, match_nvidia_smi
from providers.local.process import clean_environment, run_blocking

_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits"]


@dataclass(frozen=True, slots=True)
class HostGpu:
    """One device. `id` is the driver's UUID, which stays the same over restarts."""

    id: str
    model: Gpu


def discover() -> list[HostGpu]:
    """What `nvidia-smi` names and the catalog knows; nothing where there is no driver. Blocks: call it in a thread."""
    answer = run_blocking(_QUERY, environment=clean_environment({}), timeout=30)
    return list(parse(answer.stdout)) if answer.returncode == 0 else []


def parse(text: str) -> Iterable[HostGpu]:
    """Reads the driver's answer; a line that is not understood is no GPU, so that it is never promised."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) == 3 and parts[1].isdecimal() and parts[2]:
            model = match_nvidia_smi(parts[0], int(parts[1]))
            if model is not None:
                yield HostGpu(parts[2], model)


def choose(gpus: Iterable[HostGpu], accelerator: str, count: int, held: set[str]) -> tuple[str, ...] | None:
    """The ids of `count` devices of that model which nobody holds; None when there are not so many."""
    free = [gpu.id for gpu in gpus if gpu.model.name == accelerator and gpu.id not in held]
    return tuple(free[:count]) if len(free) >= count else None


@contextlib.asynccontextmanager
async def assignment_lock() -> AsyncIterator[None]:
    """Held from looking which GPUs are free until the workload holds its own, between all processes of this user."""
    path = os.path.join(tempfile.gettempdir(), f"headrace-{os.geteuid()}-gpus.lock")
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
