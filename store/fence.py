"""The database fence: whether this database is the one that machines with our owner id belong to, or a copy or a backup
of it, to which the machines of the other look like nobody's.

A value that changes every few minutes is kept in the database and beside it, in the file store. A backup that was
restored has an older one; a copy that runs elsewhere finds none, and one that shares the file store with its original
soon finds the other's.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlmodel import Session, col

from domain.ids import new_token
from store.db import Database
from store.logs.blobs import BlobError, BlobMissing, BlobStore
from store.tables import Installation

_CHANGES_EVERY = timedelta(minutes=1)
_TOKEN_BYTES = 43


@dataclass(frozen=True, slots=True)
class Fence:
    """What the database says. `before` is the value before `current`, which is beside it while one is written."""

    current: str | None
    before: str | None
    changed_at: datetime | None
    fenced: bool
    confirmed: bool


def read(session: Session) -> Fence:
    """As it stands; before the first start there is nothing to fence."""
    row = session.get(Installation, 1)
    if row is None:
        return Fence(None, None, None, fenced=False, confirmed=False)
    return Fence(row.fence, row.fence_before, row.fence_at, row.fenced, row.fence_confirmed)


def confirm(session: Session) -> None:
    """An administrator says that this database is the one: from the next look on, what it does not know is deleted."""
    session.exec(update(Installation).where(col(Installation.id) == 1).values(fence_confirmed=True))


async def holds(db: Database, blobs: BlobStore, owner_id: str, now: datetime) -> bool:
    """Whether this database is the one. While the file store does not answer, nobody knows: False, for the moment."""
    name = f"fence/{owner_id}"
    try:
        beside = await asyncio.to_thread(_beside, blobs, name)
        fence = await db.read(read)
        first_start = fence.current is None and beside is None
        known = beside is not None and beside in {fence.current, fence.before}
        if not (first_start or known or fence.confirmed):
            if not fence.fenced:
                await db.write(_set_fenced)
            return False
        current = fence.current
        if current is None or fence.confirmed or fence.fenced or _is_old(fence, now):
            value = new_token()
            # A power loss must not leave the file store ahead of the database: it would look like a restored one.
            if not await db.write(lambda session: _change(session, fence, value, now), durable=True):
                # Another worker was first: what it wrote is looked at the next time.
                return True
            current = value
        if current != beside:
            await asyncio.to_thread(blobs.put, name, current.encode())
    except (OSError, BlobError):
        return False
    return True


def _beside(blobs: BlobStore, name: str) -> str | None:
    try:
        return blobs.get(name, 0, _TOKEN_BYTES).decode()
    except BlobMissing:
        return None


def _is_old(fence: Fence, now: datetime) -> bool:
    return fence.changed_at is None or now - fence.changed_at >= _CHANGES_EVERY


def _set_fenced(session: Session) -> None:
    session.exec(update(Installation).where(col(Installation.id) == 1).values(fenced=True))


def _change(session: Session, seen: Fence, value: str, now: datetime) -> bool:
    """Compare-and-set: of several workers one changes it."""
    column = col(Installation.fence)
    same = column.is_(None) if seen.current is None else column == seen.current
    result = session.exec(
        update(Installation)
        .where(col(Installation.id) == 1, same)
        .values(fence=value, fence_before=seen.current, fence_at=now, fenced=False, fence_confirmed=False)
    )
    return result.rowcount == 1
