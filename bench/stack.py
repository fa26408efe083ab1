"""A running embedded stack of one's own: started as people start it, in a directory of its own, ended by its pid."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_READY_SECONDS = 90
_STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Stack:
    """Where it is, and the processes that it is made of: temporal, worker, api."""

    api_url: str
    api_key: str
    temporal_address: str
    data_dir: Path
    processes: dict[str, psutil.Process]

    @property
    def port(self) -> int:
        return int(self.api_url.rpartition(":")[2])


@contextmanager
def running_stack(**environment: str) -> Iterator[Stack]:
    """`headrace up` in a new directory with these variables set; stopped and removed afterwards."""
    data_dir = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    # What is measured is how fast it can be, not how fast one key may be.
    clean["HEADRACE_RATE_LIMIT_PER_SECOND"] = "0"
    argv = [sys.executable, "-P", "-m", "cli", "up", "--json", "--no-ui", "--data-dir", str(data_dir)]
    with (data_dir.parent / f"{data_dir.name}.log").open("w+") as log:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=log, text=True, env={**clean, **environment}, start_new_session=True
        )
        try:
            yield _await_ready(process, data_dir, Path(log.name))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_SECONDS)
            shutil.rmtree(data_dir, ignore_errors=True)
            Path(log.name).unlink(missing_ok=True)


@contextmanager
def fake_cloud() -> Iterator[str]:
    """The scripted cloud as a process of its own; its address."""
    process = subprocess.Popen([sys.executable, "-m", "providers.fake.server"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().removeprefix("listening on ")
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)


def _await_ready(process: "subprocess.Popen[str]", data_dir: Path, log: Path) -> Stack:
    credentials, deadline = data_dir / "credentials.json", time.monotonic() + _READY_SECONDS
    assert process.stdout is not None
    # It says where it is once it is ready.
    if not process.stdout.readline() or time.monotonic() > deadline:
        raise RuntimeError(f"the stack did not start: {log.read_text()[-2000:]}")
    said = json.loads(credentials.read_text())
    pids = json.loads((data_dir / "stack.json").read_text())["processes"]
    return Stack(
        said["api_url"],
        said["api_key"],
        said["temporal_address"],
        data_dir,
        {name: psutil.Process(pid) for name, pid in pids.items()},
    )
