"""Host keys that are pinned, for all workers. All runs inside `Database.read` or `Database.write`."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete
from sqlmodel import Session, col, select

from store.db import insert_once
from store.tables import Connection, HostKey


def pinned(session: Session, connection_id: str, address: str) -> str | None:
    """The key that the host at `host:port` has to show; None where none was seen yet."""
    row = session.get(HostKey, (connection_id, address))
    return None if row is None else row.key


def pin(session: Session, connection_id: str, address: str, key: str, now: datetime) -> str:
    """Keeps the key unless another one was first; answers the one that is kept."""
    unique = ("connection_id", "address")
    insert_once(session, HostKey, unique, connection_id=connection_id, address=address, key=key, first_seen_at=now)
    kept = select(HostKey.key).where(HostKey.connection_id == connection_id, HostKey.address == address)
    return session.exec(kept).one()


def of(session: Session, connection_id: str) -> Sequence[HostKey]:
    """Every pin of a connection, by address."""
    query = select(HostKey).where(HostKey.connection_id == connection_id).order_by(col(HostKey.address))
    return session.exec(query).all()


def forget(session: Session, connection_id: str, host: str | None = None) -> list[str]:
    """Forgets the pins of one host, `host` or `host:port` (None: all); answers their addresses."""
    found = [row for row in of(session, connection_id) if host is None or _is_of(row.address, host)]
    for row in found:
        session.delete(row)
    return [row.address for row in found]


def forget_all(session: Session, connection_ids: Sequence[str]) -> None:
    """Those of connections that are no more."""
    session.exec(delete(HostKey).where(col(HostKey.connection_id).in_(connection_ids)))


def forget_strays(session: Session) -> None:
    """Those whose connection was removed before they were pinned."""
    session.exec(delete(HostKey).where(col(HostKey.connection_id).not_in(select(Connection.id))))


def _is_of(address: str, host: str) -> bool:
    return host in {address, address.rpartition(":")[0].strip("[]")}
