"""Hosts of connections that are made of hosts: each belongs to one of them, as far as those who connect it can see, and
leaves it only when nothing runs there. Runs inside `Database.write`."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session, col, select

from domain.backends import Backend, Values, catalog
from domain.errors import Conflict
from store.connections import ConnectionState, Sight, live_on
from store.db import is_sqlite
from store.tables import Connection, Instance, Job

_LOCK = "hosts of fleets"


def require_free_hosts(
    session: Session, sight: Sight, backend: Backend, values: Values, edited: Connection | None = None
) -> None:
    """Refuses hosts that another fleet has. Only fleets that the caller sees count: what others have is not told, and
    the host itself keeps apart what several fleets put there. `edited`: the fleet whose values these are to be.

    Raises:
        Conflict: `host_in_use`; it names the host and the fleet.
    """
    if backend.hosts is None:
        return
    own = set() if edited is None else _hosts(edited)
    wanted = {address: name for address, name in backend.hosts(values).items() if address not in own}
    if not wanted:
        return
    if not is_sqlite(session):
        # Two that add one host at once would each see that it is free.
        session.connection().exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (_LOCK,))
    others = select(Connection).where(*sight.conditions(), col(Connection.state) != ConnectionState.FAILED)
    if edited is not None:
        others = others.where(Connection.id != edited.id)
    for other in session.exec(others.order_by(col(Connection.created_at), col(Connection.id))):
        for address in sorted(_hosts(other) & wanted.keys()):
            raise Conflict(
                f"{wanted[address]} is a host of {other.name} already ({address}); a host belongs to one fleet",
                code="host_in_use",
                details={"host": wanted[address], "backend": {"id": other.id, "name": other.name}},
            )


def require_idle_hosts(session: Session, backend: Backend, values: Values, edited: Connection) -> None:
    """Refuses an edit that takes hosts away on which something is live: nobody could see or end it any more.

    Raises:
        Conflict: `connection_in_use`; it names the jobs.
    """
    if backend.hosts is None:
        return
    gone = set(backend.hosts(edited.options).values()) - set(backend.hosts(values).values())
    if not gone:
        return
    live = select(Instance.job_id, Instance.handle, Instance.offer).where(
        Instance.connection_id == edited.id, col(Instance.confirmed_absent_at).is_(None)
    )
    found = {job_id for job_id, handle, offer in session.exec(live) if _host_of(handle, offer) in gone}
    if found:
        jobs = session.exec(select(Job).where(col(Job.id).in_(found)).order_by(col(Job.id))).all()
        raise live_on(jobs, "hosts that are to leave the fleet", "end them first")


def require_idle_before(session: Session, connection_id: str) -> None:
    """Refuses what is about to be put into use, as `require_idle_hosts` does: jobs may have been placed on a host that
    is to leave while the others were being verified.

    Raises:
        Conflict: see there.
    """
    connection = session.get(Connection, connection_id, with_for_update=True)
    if connection is None or connection.candidate_options is None:
        return
    backend = catalog().get(connection.provider)
    if backend is not None:
        require_idle_hosts(session, backend, connection.candidate_options, connection)


def _host_of(handle: Mapping[str, Any] | None, offer: Mapping[str, Any]) -> str:
    """Of an instance; before its create is answered, that of its offer, `host/kind`."""
    return str((handle or {}).get("host") or str(offer["provider_sku"]).partition("/")[0])


def _hosts(connection: Connection) -> set[str]:
    """What it has, and what it is about to have."""
    backend = catalog().get(connection.provider)
    if backend is None or backend.hosts is None:
        return set()
    return {*backend.hosts(connection.options), *backend.hosts(connection.candidate_options or {})}
