"""Masks a workload's output before it is stored. What may begin a secret waits in the stream's row for what follows:
sealed, if it is long enough to be worth something."""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from sqlmodel import Session

from domain.masking import MASK, MIN_MASKED_CHARACTERS, StreamMask
from store.launch_secrets import known
from store.tables import Instance
from store.vault import Vault, VaultError

_CLEAR, _SEALED = b"c", b"s"


class OutputMask:
    """Of one attempt."""

    def __init__(self, mask: StreamMask, vault: Vault, instance_id: str) -> None:
        self._mask, self._vault, self._instance_id = mask, vault, instance_id
        self.size = mask.size

    def feed(self, stream: str, held: bytes | None, fresh: bytes) -> tuple[bytes, bytes | None]:
        """What may be shown of a stream, and what its row holds until more comes."""
        shown, rest = self._mask.feed(self._open(stream, held) + fresh)
        return shown, self._keep(stream, rest)

    def text(self, text: str) -> str:
        """A whole text, masked."""
        return self._mask.mask(text)

    def _open(self, stream: str, held: bytes | None) -> bytes:
        if held is None or not held.startswith(_SEALED):
            return ending(held)
        try:
            return self._vault.open(held[1:], self._context(stream))
        except VaultError:
            # Its master key was taken away meanwhile.
            return ending(held)

    def _keep(self, stream: str, rest: bytes) -> bytes | None:
        if len(rest) < MIN_MASKED_CHARACTERS:
            return _CLEAR + rest if rest else None
        return _SEALED + self._vault.seal(rest, self._context(stream))

    def _context(self, stream: str) -> str:
        return f"held:{self._instance_id}:{stream}"


def ending(held: bytes | None) -> bytes:
    """What to show of what a row holds once nothing follows: a secret that was cut off is one."""
    if held is None:
        return b""
    return held[1:] if held.startswith(_CLEAR) else MASK.encode()


class OutputMasks:
    """Those of the attempts whose output this process has stored lately; `most_bytes` bounds what they hold, and
    `idle_seconds` how long it is held after the last output."""

    def __init__(
        self,
        most_bytes: int = 32 * 1024 * 1024,
        idle_seconds: float = 600,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._idle_seconds, self._seconds = idle_seconds, seconds
        self._masks: OrderedDict[str, OutputMask | None] = OrderedDict()
        """The one that was used last is last."""
        self._used: dict[str, float] = {}
        self._lock = Lock()

    def of(self, session: Session, vault: Vault, instance: Instance) -> OutputMask | None:
        """None for an attempt whose workload knows no secret.

        Raises:
            VaultError: the master key of its secrets is not configured.
        """
        with self._lock:
            self._forget_idle()
            if instance.id in self._masks:
                self._masks.move_to_end(instance.id)
                self._used[instance.id] = self._seconds()
                return self._masks[instance.id]
        secrets = StreamMask(known(session, vault, instance))
        mask = OutputMask(secrets, vault, instance.id) if secrets else None
        with self._lock:
            self._forget(instance.id)
            self._masks[instance.id], self._used[instance.id] = mask, self._seconds()
            self._bytes += _size(mask)
            while self._bytes > self._most_bytes and len(self._masks) > 1:
                self._forget(next(iter(self._masks)))
        return mask

    def forget(self, instance_id: str) -> None:
        """Once its output is complete."""
        with self._lock:
            self._forget(instance_id)

    def _forget_idle(self) -> None:
        since = self._seconds() - self._idle_seconds
        while self._masks and self._used[oldest := next(iter(self._masks))] < since:
            self._forget(oldest)

    def _forget(self, instance_id: str) -> None:
        if instance_id in self._masks:
            del self._used[instance_id]
            self._bytes -= _size(self._masks.pop(instance_id))


def _size(mask: OutputMask | None) -> int:
    # What an entry takes besides.
    return 1024 + (0 if mask is None else mask.size)
