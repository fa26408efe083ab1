"""The offers cache: what each connection would rent, as its last good poll found it, and how the connections do.

Whoever reads offers here takes those of `usable` connections only: neither blocked nor last polled with success too
long ago.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import blake2b
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Executable, bindparam, delete, func, insert, tuple_
from sqlalchemy import select as select_columns
from sqlmodel import Session, SQLModel, col, select

from domain.offers import Capabilities, Offer
from store.tables import ConnectionHealth, Instance, OfferRow

_OFFERS = SQLModel.metadata.tables[str(OfferRow.__tablename__)]
_KEY = (_OFFERS.c.connection_id, _OFFERS.c.offer_id)
_FILTERS = ("accelerator", "gpu_count", "interconnect", "region", "available")
_DELETE_ONE = delete(OfferRow).where(_KEY[0] == bindparam("connection"), _KEY[1] == bindparam("offer"))
_HELD = select_columns(col(Instance.exclusive_ref)).where(
    col(Instance.exclusive_ref).is_not(None), col(Instance.confirmed_absent_at).is_(None)
)


@dataclass(frozen=True, slots=True)
class Market:
    """What the cache has for a request: the arguments of `domain.placement.menu`."""

    offers: list[Offer]
    capabilities: dict[str, Capabilities]
    unreadable: dict[str, str]
    reserved: frozenset[str]
    observed_at: datetime | None
    """The oldest of the observations that this rests on; None when there are none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a connection offers, as it is stored: made before the transaction, since thousands take their time."""

    rows: dict[str, dict[str, Any]]
    digests: dict[str, str]

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> "Snapshot":
        """Of one connection; their ids must be distinct."""
        rows = {offer.id: _stored(offer) for offer in offers}
        return cls(rows, {offer_id: _digest(row["offer"]) for offer_id, row in rows.items()})


# Polls ----------------------------------------------------------------------------------------------------------------


def replace(
    session: Session,
    connection_id: str,
    provider: str,
    capabilities: Capabilities,
    snapshot: Snapshot,
    latency_ms: int,
    now: datetime,
) -> int:
    """The connection's new snapshot, in place of the older one; says how many offers differ from it. Rows that did not
    change are not written."""
    wanted, digests = snapshot.rows, snapshot.digests
    query = select_columns(_OFFERS.c.offer_id, _OFFERS.c.digest).where(_OFFERS.c.connection_id == connection_id)
    known: dict[str, str] = {row.offer_id: row.digest for row in session.connection().execute(query)}
    over = [offer_id for offer_id, digest in known.items() if digests.get(offer_id) != digest]
    new = [offer_id for offer_id, digest in digests.items() if known.get(offer_id) != digest]
    if over:
        parameters = [{"connection": connection_id, "offer": offer_id} for offer_id in over]
        session.connection().execute(_DELETE_ONE, parameters)
    if new:
        rows = [{"connection_id": connection_id, "digest": digests[i], **wanted[i]} for i in new]
        session.connection().execute(insert(_OFFERS), rows)
    health = _health(session, connection_id, provider)
    health.provider, health.capabilities = provider, capabilities.model_dump(mode="json")
    health.last_poll_at = health.observed_at = now
    health.latency_ms, health.offer_count = latency_ms, len(wanted)
    health.error = health.error_kind = None
    health.blocked = False
    return len({*over, *new})


def poll_failed(
    session: Session, connection_id: str, provider: str, kind: str, message: str, latency_ms: int, now: datetime
) -> None:
    """The poll brought nothing: the older offers stay, until they are too old to be used."""
    health = _health(session, connection_id, provider)
    health.last_poll_at, health.latency_ms = now, latency_ms
    health.error_kind, health.error = kind, message


def block(session: Session, connection_id: str, provider: str, kind: str, message: str) -> None:
    """The account was refused: nothing is asked of the connection until a poll finds it well again."""
    health = _health(session, connection_id, provider)
    health.blocked, health.error_kind, health.error = True, kind, message


def forget(session: Session, connection_id: str) -> None:
    """The connection is no more."""
    session.connection().execute(delete(OfferRow).where(_KEY[0] == connection_id))
    session.connection().execute(delete(ConnectionHealth).where(col(ConnectionHealth.connection_id) == connection_id))


def _health(session: Session, connection_id: str, provider: str) -> ConnectionHealth:
    """The connection's row, locked, so that a poll and a refused create do not overwrite each other."""
    found = session.get(ConnectionHealth, connection_id, with_for_update=True)
    if found is None:
        found = ConnectionHealth(connection_id=connection_id, provider=provider)
        session.add(found)
    return found


def _stored(offer: Offer) -> dict[str, Any]:
    return {
        "offer_id": offer.id,
        "accelerator": offer.accelerator,
        "gpu_count": offer.gpu_count,
        "interconnect": offer.interconnect,
        "region": offer.region,
        "available": offer.available,
        "offer": offer.model_dump(mode="json", exclude={"observed_at"}),
    }


def _digest(offer: Mapping[str, Any]) -> str:
    return blake2b(orjson.dumps(offer, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()


# Health ---------------------------------------------------------------------------------------------------------------


def health(session: Session, within: Container[str] | None = None) -> list[ConnectionHealth]:
    """Of every connection that was heard of, in order; of those `within` only where it is given."""
    found = session.exec(select(ConnectionHealth).order_by(col(ConnectionHealth.connection_id))).all()
    return [row for row in found if within is None or row.connection_id in within]


def providers(session: Session) -> frozenset[str]:
    """The names of all that were ever connected and are not forgotten."""
    return frozenset(session.exec(select(ConnectionHealth.provider)).all())


def blocked(session: Session) -> dict[str, ConnectionHealth]:
    """The connections of which nothing is asked for now."""
    found = session.exec(select(ConnectionHealth).where(col(ConnectionHealth.blocked).is_(True))).all()
    return {row.connection_id: row for row in found}


def is_usable(connection: ConnectionHealth, now: datetime, valid_for: timedelta) -> bool:
    """Whether the cached offers of the connection count: observed no longer ago than `valid_for`."""
    return not connection.blocked and connection.observed_at is not None and now - connection.observed_at <= valid_for


# Offers ---------------------------------------------------------------------------------------------------------------


def market(
    session: Session, within: Container[str], accelerator: str, gpu_count: int, now: datetime, valid_for: timedelta
) -> Market:
    """What the usable connections `within` reach have of this hardware, what each provider can do, and which ones
    cannot be read."""
    connections = health(session, within)
    usable = [row for row in connections if is_usable(row, now, valid_for)]
    capabilities = {row.provider: Capabilities.model_validate(row.capabilities) for row in usable}
    return Market(
        offers=cached(session, usable, accelerator, gpu_count),
        capabilities=capabilities,
        unreadable={row.provider: unreadable(row) for row in connections if row.provider not in capabilities},
        reserved=reserved(session),
        observed_at=min((row.observed_at for row in usable if row.observed_at is not None), default=None),
    )


def unreadable(connection: ConnectionHealth) -> str:
    """Why nothing is known of the connection's offers. Not the provider's own words: those are for operators."""
    if connection.blocked:
        return f"refuses its account at the moment ({connection.error_kind})"
    return f"has not told its offers lately ({connection.error_kind or 'no poll'})"


def older(
    session: Session, connection_id: str, accelerator: str, gpu_count: int, now: datetime, valid_for: timedelta
) -> list[Offer]:
    """What the connection had of this hardware at its last good poll; nothing when that is too long ago."""
    row = session.get(ConnectionHealth, connection_id)
    usable = [row] if row is not None and is_usable(row, now, valid_for) else []
    return cached(session, usable, accelerator, gpu_count)


def cached(session: Session, connections: Iterable[ConnectionHealth], accelerator: str, gpu_count: int) -> list[Offer]:
    """The offers of these connections for this hardware."""
    observed = {row.connection_id: row.observed_at for row in connections}
    if not observed:
        return []
    found = session.connection().execute(
        _of_hardware(), {"accelerator": accelerator, "gpu_count": gpu_count, "connections": list(observed)}
    )
    return [Offer.model_validate({**offer, "observed_at": observed[connection]}) for connection, offer in found]


def reserved(session: Session) -> frozenset[str]:
    """The `ref` of every exclusive offer that an open attempt has."""
    return frozenset(ref for ref in session.connection().execute(_HELD).scalars() if ref is not None)


def page(
    session: Session,
    connections: Collection[str],
    filters: Mapping[str, Any],
    *,
    after: tuple[str, str] | None,
    limit: int,
) -> list[tuple[str, dict[str, Any]]]:
    """Up to `limit` offers (connection, offer) that equal every filter, in the order of connection and offer id, from
    the one that follows `after`. Filters are named as the columns."""
    if not connections:
        return []
    query = _page(tuple(name for name in _FILTERS if name in filters), after is not None)
    values: dict[str, Any] = {**filters, "connections": list(connections), "count": limit}
    if after is not None:
        values |= {"after_connection": after[0], "after_offer": after[1]}
    return [(connection, offer) for connection, offer in session.connection().execute(query, values)]


def count(session: Session, connections: Collection[str], filters: Mapping[str, Any]) -> int:
    """How many offers `page` would list in all."""
    if not connections:
        return 0
    query = _count(tuple(name for name in _FILTERS if name in filters))
    return int(session.connection().execute(query, {**filters, "connections": list(connections)}).scalar_one())


def _conditions(names: Iterable[str]) -> Iterator[ColumnElement[bool]]:
    yield _OFFERS.c.connection_id.in_(bindparam("connections", expanding=True))
    for name in names:
        yield _OFFERS.c[name] == bindparam(name)


@cache
def _of_hardware() -> Executable:
    return select_columns(_OFFERS.c.connection_id, _OFFERS.c.offer).where(*_conditions(("accelerator", "gpu_count")))


@cache
def _page(names: tuple[str, ...], continued: bool) -> Executable:
    query = select_columns(_OFFERS.c.connection_id, _OFFERS.c.offer).where(*_conditions(names))
    if continued:
        query = query.where(tuple_(*_KEY) > tuple_(bindparam("after_connection"), bindparam("after_offer")))
    return query.order_by(*_KEY).limit(bindparam("count"))


@cache
def _count(names: tuple[str, ...]) -> Executable:
    return select_columns(func.count()).select_from(_OFFERS).where(*_conditions(names))
