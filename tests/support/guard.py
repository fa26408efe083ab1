"""Proof that nothing leaves the process inside a database transaction.

An audit hook sees every socket connection and every process that Python code starts. A driver that talks to its
database from C (libpq, SQLite) is not seen, which is right: that is the transaction itself.
"""

import sys
import traceback
from typing import Any

from store.db import in_transaction

_WATCHED = frozenset(
    {"socket.connect", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"}
)


class TransactionGuard:
    """Collects violations; `check` raises for them. One per process, since an audit hook cannot be taken back."""

    def __init__(self) -> None:
        self._violations: list[str] = []
        self._installed = False

    def install(self) -> None:
        if not self._installed:
            sys.addaudithook(self._audit)
            self._installed = True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _WATCHED and in_transaction():
            stack = "".join(traceback.format_stack(limit=8)[:-1])
            self._violations.append(f"{event} inside a database transaction:\n{stack}")

    def take(self) -> list[str]:
        """What was seen since the last call."""
        seen, self._violations = self._violations, []
        return seen

    def check(self) -> None:
        """Raises AssertionError for what was seen since the last call."""
        violations = self.take()
        assert not violations, "\n".join(violations)


GUARD = TransactionGuard()
