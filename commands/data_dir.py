"""The data directory of an embedded stack: who may use it, what it remembers between starts."""

import fcntl
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands.exits import CommandError, ExitCode

STACK_FILE = "stack.json"
CREDENTIALS_FILE = "credentials.json"
PROCESS_LOGS = "logs-of-processes"
# One of these says that a directory is ours; without any, a directory with files in it is somebody else's.
_OURS = (STACK_FILE, "supervisor.lock", "headrace.db", "master.key")
# A Unix socket's path has 108 bytes, the last one a zero.
_SOCKET_PATH_BYTES = 107


def stack_failed(message: str, *hints: str, excerpt: Sequence[str] = ()) -> CommandError:
    """The stack cannot start."""
    return CommandError(message, code=ExitCode.STACK_FAILED, hints=hints, excerpt=tuple(excerpt))


class DataDirectory:
    """Held by one supervisor at a time. Everything in it is for its owner alone (0700, 0600)."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock: int | None = None

    @property
    def logs(self) -> Path:
        """The logs of the stack's own processes."""
        return self.path / PROCESS_LOGS

    def create(self) -> None:
        """Makes the directory, or takes an empty one or one of an earlier stack.

        Raises:
            CommandError: it holds other things, cannot be written, or its path is too long for a socket in it.
        """
        if len(os.fsencode(self.path / "agent" / "agent.sock")) > _SOCKET_PATH_BYTES:
            raise stack_failed(
                f"the path {self.path} is too long: {_SOCKET_PATH_BYTES} bytes with /agent/agent.sock is the limit",
                "choose a shorter --data-dir",
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = {entry.name for entry in self.path.iterdir()}
            if names and not names.intersection(_OURS):
                raise stack_failed(
                    f"{self.path} holds other files, and no stack", "give --data-dir an empty or a new directory"
                )
            self.path.chmod(0o700)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise stack_failed(f"{self.path} cannot be used: {error.strerror}") from None

    def lock(self) -> None:
        """Takes the directory for this process, until the process ends in whatever way.

        Raises:
            CommandError: another supervisor has it.
        """
        descriptor = os.open(self.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise stack_failed(
                f"another `headrace up` (process {holder}) uses {self.path}",
                "use that stack, or give this one another --data-dir",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Gives the directory back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in a file of the directory; empty when it is missing or damaged, for it can be made anew."""
        try:
            content = json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replaces a JSON file whole, readable by its owner only: a reader sees the old or the new one."""
        target = self.path / name
        temporary = target.with_name(f".{name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
