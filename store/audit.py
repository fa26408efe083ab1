"""The audit log: every mutating operation writes one entry in its own transaction, so that neither is kept alone."""

from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, bindparam, func, insert, select
from sqlmodel import Session, SQLModel

from store.access import Principal
from store.columns import UtcDateTime
from store.tables import AuditEntry

_TABLE: Table = SQLModel.metadata.tables[str(AuditEntry.__tablename__)]
_INSERT = insert(_TABLE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it is read. `on_behalf_of` and `data` are None where there was nothing to say."""

    id: int
    at: datetime
    org_id: str
    key_id: str
    owner: str
    role: str
    on_behalf_of: str | None
    action: str
    resource: str
    request_id: str
    data: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries; None is no condition. `since` is inclusive, `until` exclusive."""

    org_id: str | None = None
    action: str | None = None
    resource: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def write(
    session: Session,
    principal: Principal,
    action: str,
    resource: str,
    now: datetime,
    data: dict[str, Any] | None = None,
    *,
    org_id: str | None = None,
) -> None:
    """Notes that `principal` did `action` (such as `secret.rotate`) to the resource with this id.

    Call it in the transaction that does it, and not for a replay or a repeat that changes nothing. `data` is small and
    holds no secret. `org_id` is the resource's organization, by default the principal's own.
    """
    values = {
        "at": now,
        "org_id": org_id or principal.org_id,
        "key_id": principal.key_id,
        "owner": principal.owner,
        "role": principal.role.value,
        "on_behalf_of": principal.on_behalf_of,
        "action": action,
        "resource": resource,
        "request_id": principal.request_id,
        "data": data,
    }
    session.connection().execute(_INSERT, values)


def entries(session: Session, wanted: Filter, *, ascending: bool, after: int | None, limit: int) -> list[Entry]:
    """Up to `limit` entries in order of their ids, from the one that follows the entry with id `after`."""
    query = _entries(*_shape(wanted), ascending=ascending, continued=after is not None)
    rows = session.connection().execute(query, {**_values(wanted), "after": after, "count": limit})
    return [Entry(*row) for row in rows]


def count(session: Session, wanted: Filter) -> int:
    """How many entries `entries` would list in all."""
    query = select(func.count()).select_from(_TABLE).where(*_conditions(*_shape(wanted)))
    return int(session.connection().execute(query, _values(wanted)).scalar_one())


def _values(wanted: Filter) -> dict[str, Any]:
    return {f.name: getattr(wanted, f.name) for f in fields(Filter)}


def _shape(wanted: Filter) -> tuple[str, ...]:
    """The names of the conditions that are set."""
    return tuple(name for name, value in _values(wanted).items() if value is not None)


@cache
def _entries(*conditions: str, ascending: bool, continued: bool) -> Select[Any]:
    key = _TABLE.c.id
    query = select(*(_TABLE.c[f.name] for f in fields(Entry))).where(*_conditions(*conditions))
    if continued:
        query = query.where(key > bindparam("after") if ascending else key < bindparam("after"))
    return query.order_by(key if ascending else key.desc()).limit(bindparam("count"))


def _conditions(*names: str) -> list[ColumnElement[bool]]:
    built: dict[str, ColumnElement[bool]] = {
        "since": _TABLE.c.at >= bindparam("since", type_=UtcDateTime),
        "until": _TABLE.c.at < bindparam("until", type_=UtcDateTime),
    }
    return [built[name] if name in built else _TABLE.c[name] == bindparam(name) for name in names]
