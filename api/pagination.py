"""Cursors: opaque, authenticated, and valid only within the traversal that issued them."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import orjson
from fastapi import Query

from domain.errors import InvalidCursor
from store.vault import Vault, VaultError

Position = int | str | list[int | str]
"""What a traversal needs to go on after an item: its sort key."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LENGTH = 1024
_DESCRIPTION = "`next_cursor` of the page before; valid only with the same path, filters and order."

CursorParameter = Annotated[str | None, Query(description=_DESCRIPTION)]


class Traversal:
    """One way through one list. `parts` are all that it depends on: resource, owner, filters, order."""

    def __init__(self, vault: Vault, *parts: str | bool | None) -> None:
        self._vault = vault
        self._context = "cursor:" + orjson.dumps(parts).decode()

    def cursor(self, position: Position) -> str:
        """A cursor that goes on after `position`."""
        sealed = self._vault.seal(orjson.dumps(position), self._context)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def position(self, cursor: str | None) -> Any:
        """The position in a cursor of this traversal; None at its beginning.

        Raises:
            InvalidCursor: it was changed, or belongs to another traversal.
        """
        if cursor is None:
            return None
        try:
            if len(cursor) > _LENGTH:
                raise ValueError("too long")
            sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            return orjson.loads(self._vault.open(sealed, self._context))
        except (ValueError, VaultError):
            raise InvalidCursor(
                "the cursor was changed, or belongs to a list with another order or filter; start without one"
            ) from None


def moment_key(moment: datetime) -> int:
    """A moment as a part of a position, exactly; `moment_of` takes it back."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_of(key: int) -> datetime:
    """The moment, in UTC, that `moment_key` made a part of a position."""
    return _EPOCH + key * _MICROSECOND


def page(data: Sequence[Any], next_cursor: str | None, total: int) -> dict[str, Any]:
    """The envelope of every list."""
    return {"data": data, "next_cursor": next_cursor, "total": total}
