"""Choosing TCP ports on 127.0.0.1 that stay the same over restarts and differ between stacks on one machine."""

import fcntl
import os
import socket
import stat
import tempfile
from pathlib import Path

from commands.data_dir import stack_failed

LOOPBACK = "127.0.0.1"


class PortBook:
    """Reservations among the supervisors of one user.

    A port that is free when it is chosen is bound by a child a second later: a lock file keeps two supervisors that
    start together from choosing the same one. The locks are gone with the process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"headrace-ports-{os.getuid()}"
        self._held: dict[int, int] = {}

    def claim(self, port: int) -> bool:
        """Reserves `port`; says no when another stack or any other program has it."""
        if port in self._held:
            return False
        self._open_folder()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder / str(port), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        if not _can_bind(port):
            os.close(descriptor)
            return False
        self._held[port] = descriptor
        return True

    def choose(self, *preferred: int | None) -> int:
        """The first of `preferred` that is free, else any free port; reserved."""
        for port in preferred:
            if port is not None and self.claim(port):
                return port
        for _ in range(100):
            port = _any_free()
            if self.claim(port):
                return port
        raise stack_failed("no free port was found on 127.0.0.1")

    def release(self) -> None:
        """Gives all reservations back."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _open_folder(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        # In a directory that all may write to, somebody else could have made it first.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise stack_failed(f"{self._folder} belongs to another user", "remove it, or set TMPDIR")


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except (OSError, OverflowError):
            return False
        return True


def _any_free() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
