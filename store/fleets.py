"""Hosts of fleets: each belongs to one fleet, as far as those who connect it can see. Runs inside `Database.write`."""

from sqlmodel import Session, col, select

from domain.backends import Values
from domain.errors import Conflict
from domain.fleets import addresses_of
from store.connections import ConnectionState, Sight
from store.db import is_sqlite
from store.tables import Connection

_LOCK = "hosts of fleets"


def require_free_hosts(session: Session, sight: Sight, values: Values, now: Connection | None = None) -> None:
    """Refuses hosts that another fleet has. Only fleets that the caller sees count: what others have is not told, and
    the host itself keeps apart what several fleets put there. `now`: the fleet that is edited, whose hosts are its own.

    Raises:
        Conflict: `host_in_use`; it names the host and the fleet.
    """
    wanted = addresses_of(values)
    wanted = {address: name for address, name in wanted.items() if now is None or address not in _hosts(now)}
    if not wanted:
        return
    if not is_sqlite(session):
        # Two that add one host at once would each see that it is free.
        session.connection().exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (_LOCK,))
    others = select(Connection).where(*sight.conditions(), col(Connection.state) != ConnectionState.FAILED)
    if now is not None:
        others = others.where(Connection.id != now.id)
    for other in session.exec(others.order_by(col(Connection.created_at), col(Connection.id))):
        for address in sorted(_hosts(other) & wanted.keys()):
            raise Conflict(
                f"{wanted[address]} is a host of {other.name} already ({address}); a host belongs to one fleet",
                code="host_in_use",
                details={"host": wanted[address], "backend": {"id": other.id, "name": other.name}},
            )


def _hosts(connection: Connection) -> set[str]:
    """What it has, and what it is about to have."""
    return {*addresses_of(connection.options), *addresses_of(connection.candidate_options)}
