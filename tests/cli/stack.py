"""A running `headrace up`, as people start it: a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil


class RunningStack:
    """The process of `headrace up`, and what it wrote about itself."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path, said: dict[str, Any]) -> None:
        self.process, self.data_dir, self.said = process, data_dir, said

    @property
    def credentials(self) -> dict[str, Any]:
        return json.loads((self.data_dir / "credentials.json").read_text())

    @property
    def processes(self) -> dict[str, int]:
        return json.loads((self.data_dir / "stack.json").read_text())["processes"]

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.said['api_url']}/readyz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """The exit code, and what was said on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def launch(data_dir: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `headrace up` in the sandbox engine, which every machine has."""
    argv = [sys.executable, "-P", "-m", "cli", "up", "--json", "--data-dir", str(data_dir), *words]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, "HEADRACE_LOCAL_ENGINE": "sandbox", **environment},
    )


def ready(process: subprocess.Popen[str], data_dir: Path) -> RunningStack:
    """Waits until it says that it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=60)[1]
    return RunningStack(process, data_dir, json.loads(line))


@contextmanager
def stack(data_dir: Path, *words: str, **environment: str) -> Iterator[RunningStack]:
    """A stack that is ready; stopped afterwards if the test did not."""
    process = launch(data_dir, *words, **environment)
    try:
        yield ready(process, data_dir)
    finally:
        family = _family(process)
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=90)
        for left in psutil.wait_procs(family, timeout=10)[1]:
            left.kill()


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
