"""How the reconciliations of each connection go, for metrics. All runs inside `Database.read` or `Database.write`."""

from datetime import datetime

from sqlalchemy import delete
from sqlmodel import Session, col

from store.tables import ConnectionSweep


def done(
    session: Session, connection_id: str, provider: str, orphans_deleted: int, missing: int, now: datetime
) -> None:
    """The provider's list was read; so many machines in it were asked to be deleted, so many were missing."""
    row = _row(session, connection_id, provider, now)
    row.read_at, row.missing = now, missing
    row.orphans_deleted += orphans_deleted


def failed(session: Session, connection_id: str, provider: str, now: datetime) -> None:
    """The list could not be read: from `read_at` on, nobody knows what the provider has."""
    _row(session, connection_id, provider, now)


def forget(session: Session, connection_id: str) -> None:
    """The connection is no more."""
    session.connection().execute(delete(ConnectionSweep).where(col(ConnectionSweep.connection_id) == connection_id))


def _row(session: Session, connection_id: str, provider: str, now: datetime) -> ConnectionSweep:
    found = session.get(ConnectionSweep, connection_id, with_for_update=True)
    if found is None:
        found = ConnectionSweep(connection_id=connection_id, provider=provider, began_at=now)
        session.add(found)
    return found
