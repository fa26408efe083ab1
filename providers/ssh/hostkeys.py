"""Host keys: the first one that a host shows is pinned; another one later is refused."""

import contextlib
import os
from pathlib import Path
from typing import Protocol


class HostKeys(Protocol):
    """Where pins are kept, by `host:port`; keys in OpenSSH's public form, without a comment."""

    def pinned(self, address: str) -> str | None:
        """The key, or None where none was seen yet."""
        ...

    def pin(self, address: str, key: str) -> None:
        """Keeps a key that a host showed at its first connection."""
        ...


class HostKeyFile:
    """Pins in a file of the data directory, one `host:port key` on each line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pinned(self, address: str) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_text().splitlines():
                name, _, key = line.partition(" ")
                if name == address:
                    return key
        return None

    def pin(self, address: str, key: str) -> None:
        if self.pinned(address) is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # One write of a short line: other processes of this data directory append too.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{address} {key}\n".encode())
        finally:
            os.close(descriptor)


class HostKeysInMemory:
    """Pins of a process, for those who keep them elsewhere: `known` is what to keep."""

    def __init__(self, known: dict[str, str] | None = None) -> None:
        self.known = dict(known or {})

    def pinned(self, address: str) -> str | None:
        return self.known.get(address)

    def pin(self, address: str, key: str) -> None:
        self.known.setdefault(address, key)
