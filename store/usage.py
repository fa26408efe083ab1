"""Usage: what an organization's resources cost within a window, from the ledger and what is still running.

A billable unit belongs to the window in which it begins, so windows that follow each other add up exactly. What has
begun before now can no longer change: a window that ends by now is answered the same for ever.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    bindparam,
    exists,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlmodel import Session, SQLModel, col

from domain.ledger import day_of
from domain.money import LONGEST_UNIT, Run, UsdPerHour
from store.columns import UtcDateTime
from store.ledger import JOB, RESOURCE_TYPES, attos_of, written_through
from store.meters import meters_of
from store.tables import BilledDay, BilledResource, Instance, Job, LedgerEntry

_ENTRIES: Table = SQLModel.metadata.tables[str(LedgerEntry.__tablename__)]
_DAYS: Table = SQLModel.metadata.tables[str(BilledDay.__tablename__)]
_RESOURCES: Table = SQLModel.metadata.tables[str(BilledResource.__tablename__)]
_DAY = timedelta(days=1)
_BATCH = 500
_RUN = (_ENTRIES.c.begins_at, _ENTRIES.c.units, _ENTRIES.c.unit_seconds, _ENTRIES.c.usd_per_hour)

Position = tuple[datetime, str]
"""Where a resource stands in a report: when it was created, and its id."""


@dataclass(frozen=True, slots=True)
class Window:
    """[begin, end), on whole minutes, so that no unit is longer than any window."""

    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose usage; None is no condition."""

    org_id: str
    project_id: str | None = None
    resource_type: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What one resource cost in the window: `attos` in (10^-18 USD per hour) x seconds."""

    resource_type: str
    resource_id: str
    resource_at: datetime
    name: str | None
    seconds: int
    attos: int


@dataclass(frozen=True, slots=True)
class Report:
    """A page of resources, the newest first, and the exact sums over all of them by type."""

    page: tuple[Usage, ...]
    more: bool
    total: int
    attos: dict[str, int]


@dataclass(slots=True)
class _Live:
    """What a resource's instances cost in the window beyond what the ledger has."""

    resource_at: datetime
    seconds: int = 0
    attos: int = 0


def report(
    session: Session, scope: Scope, window: Window, now: datetime, *, after: Position | None = None, limit: int
) -> Report:
    """Up to `limit` resources, from the one that follows `after`. The window must not end after `now`."""
    live = _live(session, scope, window, now)
    known = _with_entries(session, scope, window, live)
    count = _rows(session, _count, scope, window)[0][0] + len(live.keys() - known)
    found = _page(session, scope, window, live, after, limit + 1)
    return Report(
        page=tuple(_usages(session, window, live, found[:limit])),
        more=len(found) > limit,
        total=count,
        attos=_sums(session, scope, window, live),
    )


def _live(session: Session, scope: Scope, window: Window, now: datetime) -> dict[str, _Live]:
    """What is not in the ledger yet, by resource: only those with a unit in the window."""
    if scope.resource_type not in {None, JOB}:
        return {}
    # Columns, not objects: a thousand instances are read for a page.
    values = {"org_id": scope.org_id, "project_id": scope.project_id, "end": window.end}
    query = _open_instances(scope.project_id is not None)
    rows: Sequence[Any] = session.connection().execute(query, values).all()
    meters, through = meters_of(session, rows), written_through(session, [row.id for row in rows])
    found: dict[str, _Live] = {}
    for row in rows:
        begin = max(window.begin, through.get(row.id, window.begin))
        for run in meters[row.id].runs(now):
            part = run.within(begin, window.end)
            if part is not None:
                entry = found.setdefault(row.job_id, _Live(row.resource_at))
                entry.seconds += part.seconds
                entry.attos += part.attos
    return found


def _with_entries(session: Session, scope: Scope, window: Window, resources: Collection[str]) -> set[str]:
    """Which of the resources have a unit of the window in the ledger."""
    wanted, found = sorted(resources), set[str]()
    for begin in range(0, len(wanted), _BATCH):
        rows = _rows(session, _among, scope, window, resource_ids=wanted[begin : begin + _BATCH])
        found.update(row[0] for row in rows)
    return found


def _page(
    session: Session, scope: Scope, window: Window, live: dict[str, _Live], after: Position | None, limit: int
) -> list[Position]:
    rows = _rows(session, _continued if after else _first, scope, window, after=after, count=limit)
    positions = {(row[0], row[1]) for row in rows}
    positions |= {(e.resource_at, id_) for id_, e in live.items() if after is None or (e.resource_at, id_) < after}
    return sorted(positions, reverse=True)[:limit]


def _usages(session: Session, window: Window, live: dict[str, _Live], positions: Sequence[Position]) -> Iterable[Usage]:
    ids = [resource_id for _, resource_id in positions]
    values: dict[str, Any] = {"resource_ids": ids, "begin": window.begin, "end": window.end}
    seconds, attos = defaultdict[str, int](int), defaultdict[str, int](int)
    for resource_id, *run in session.connection().execute(_RUNS_OF_RESOURCES, values) if ids else ():
        part = _run(run).within(window.begin, window.end)
        if part is not None:
            seconds[resource_id] += part.seconds
            attos[resource_id] += part.attos
    names = {row[0]: row[1] for row in session.connection().execute(_NAMES, values)} if ids else {}
    for resource_at, resource_id in positions:
        more = live.get(resource_id, _Live(resource_at))
        yield Usage(
            JOB,
            resource_id,
            resource_at,
            names.get(resource_id),
            seconds[resource_id] + more.seconds,
            attos[resource_id] + more.attos,
        )


def _sums(session: Session, scope: Scope, window: Window, live: dict[str, _Live]) -> dict[str, int]:
    """By type of resource: whole UTC days from their sums, what is left at the ends from the entries."""
    first, last = _next_midnight(window.begin), day_of(window.end)
    days = Window(first, last) if first < last else None
    ends = [Window(window.begin, first), Window(last, window.end)] if days else [window]
    sums = dict.fromkeys(RESOURCE_TYPES, 0)
    for resource_type in (name for name in RESOURCE_TYPES if scope.resource_type in {None, name}):
        of_type = replace(scope, resource_type=resource_type)
        if days is not None:
            sums[resource_type] += _sum(_rows(session, _days, of_type, days))
        for end in ends:
            sums[resource_type] += _sum_of_entries(session, of_type, end)
    sums[JOB] += sum(entry.attos for entry in live.values())
    return sums


def _sum_of_entries(session: Session, scope: Scope, window: Window) -> int:
    """Entries that the window holds whole are added up by the database; the few that it cuts, none of which is longer
    than a day, are cut here."""
    if window.begin >= window.end:
        return 0
    total = _sum(_rows(session, _whole, scope, window))
    for cut in (_cut_by_begin, _cut_by_end):
        for run in _rows(session, cut, scope, window):
            part = _run(run).within(window.begin, window.end)
            total += part.attos if part else 0
    return total


def _sum(rows: Sequence[Any]) -> int:
    """Of nothing, a database's sum is NULL."""
    [parts] = rows
    return attos_of(*(int(part or 0) for part in parts))


def _next_midnight(moment: datetime) -> datetime:
    """The first one that is not earlier."""
    midnight = day_of(moment)
    return midnight if midnight == moment else midnight + _DAY


def _run(row: Sequence[Any]) -> Run:
    begins_at, units, unit_seconds, usd_per_hour = row
    return Run(begins_at, units, unit_seconds, UsdPerHour(usd_per_hour))


# Statements, built once ---------------------------------------------------------------------------------------------


def _rows(session: Session, build: Any, scope: Scope, window: Window, **values: Any) -> Sequence[Any]:
    """Runs the statement that `build` makes for the scope's conditions; what it does not name is ignored."""
    query = build(scope.project_id is not None, scope.resource_type is not None)
    values |= {
        "org_id": scope.org_id,
        "project_id": scope.project_id,
        "resource_type": scope.resource_type,
        "begin": window.begin,
        "end": window.end,
        "day_before_begin": window.begin - _DAY,
        # An entry that begins before the window is cut by its beginning, if by its end too.
        "day_before_end": max(window.end - _DAY, window.begin),
    }
    if values.get("after"):
        values["after_time"], values["after_id"] = values["after"]
    return session.connection().execute(query, values).all()


def _at(name: str) -> Any:
    return bindparam(name, type_=UtcDateTime)


def _scoped(table: Table, of_project: bool, of_type: bool) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [table.c.org_id == bindparam("org_id")]
    if of_project:
        conditions.append(table.c.project_id == bindparam("project_id"))
    if of_type:
        conditions.append(table.c.resource_type == bindparam("resource_type"))
    return conditions


def _in_window(of_project: bool, of_type: bool, *, in_order: bool = False) -> list[ColumnElement[bool]]:
    """Resources with an entry in the window. One that began before it and ended after it may have had a pause.

    `in_order` keeps the database from choosing the window's index, whose rows would have to be sorted for a page.
    """
    last_at: Any = _RESOURCES.c.last_at
    if in_order:
        last_at = last_at.op("+", return_type=BigInteger())(literal_column("0"))
    an_entry = exists().where(
        _ENTRIES.c.resource_id == _RESOURCES.c.resource_id,
        _ENTRIES.c.begins_at < _at("end"),
        _ENTRIES.c.last_at >= _at("begin"),
    )
    return [
        *_scoped(_RESOURCES, of_project, of_type),
        last_at >= _at("begin"),
        _RESOURCES.c.begins_at < _at("end"),
        or_(_RESOURCES.c.begins_at >= _at("begin"), _RESOURCES.c.last_at < _at("end"), an_entry),
    ]


@cache
def _open_instances(of_project: bool) -> Select[Any]:
    """What is charged and not confirmed absent."""
    query = (
        select(
            col(Instance.id),
            col(Instance.job_id),
            col(Instance.offer),
            col(Instance.allocated_at),
            col(Instance.started_at),
            col(Instance.confirmed_absent_at),
            col(Job.created_at).label("resource_at"),
        )
        .join(Job, col(Job.id) == col(Instance.job_id))
        .where(
            col(Instance.org_id) == bindparam("org_id"),
            col(Instance.confirmed_absent_at).is_(None),
            col(Instance.allocated_at) < _at("end"),
        )
    )
    return query.where(col(Job.project_id) == bindparam("project_id")) if of_project else query


@cache
def _count(*scope: bool) -> Select[Any]:
    return select(func.count()).select_from(_RESOURCES).where(*_in_window(*scope))


@cache
def _among(*scope: bool) -> Select[Any]:
    among = _RESOURCES.c.resource_id.in_(bindparam("resource_ids", expanding=True))
    return select(_RESOURCES.c.resource_id).where(*_in_window(*scope), among)


@cache
def _first(*scope: bool) -> Select[Any]:
    position = (_RESOURCES.c.resource_at, _RESOURCES.c.resource_id)
    query = select(*position).where(*_in_window(*scope, in_order=True))
    return query.order_by(*(column.desc() for column in position)).limit(bindparam("count"))


@cache
def _continued(*scope: bool) -> Select[Any]:
    position = tuple_(_RESOURCES.c.resource_at, _RESOURCES.c.resource_id)
    return _first(*scope).where(position < tuple_(_at("after_time"), bindparam("after_id")))


@cache
def _days(*scope: bool) -> Select[Any]:
    parts = (func.sum(_DAYS.c.whole), func.sum(_DAYS.c.nano), func.sum(_DAYS.c.atto))
    return select(*parts).where(*_scoped(_DAYS, *scope), _DAYS.c.day >= _at("begin"), _DAYS.c.day < _at("end"))


@cache
def _whole(*scope: bool) -> Select[Any]:
    parts = (func.sum(_ENTRIES.c.whole), func.sum(_ENTRIES.c.nano), func.sum(_ENTRIES.c.atto))
    inside = (_ENTRIES.c.begins_at >= _at("begin"), _ENTRIES.c.begins_at < _at("end"), _ENTRIES.c.last_at < _at("end"))
    return select(*parts).where(*_scoped(_ENTRIES, *scope), *inside)


@cache
def _cut_by_begin(*scope: bool) -> Select[Any]:
    before = (_ENTRIES.c.begins_at >= _at("day_before_begin"), _ENTRIES.c.begins_at < _at("begin"))
    return _cut(*scope).where(*before, _ENTRIES.c.last_at >= _at("begin"))


@cache
def _cut_by_end(*scope: bool) -> Select[Any]:
    inside = (_ENTRIES.c.begins_at >= _at("day_before_end"), _ENTRIES.c.begins_at < _at("end"))
    return _cut(*scope).where(*inside, _ENTRIES.c.last_at >= _at("end"))


def _cut(*scope: bool) -> Select[Any]:
    return select(*_RUN).where(*_scoped(_ENTRIES, *scope))


_RUNS_OF_RESOURCES = select(_ENTRIES.c.resource_id, *_RUN).where(
    _ENTRIES.c.resource_id.in_(bindparam("resource_ids", expanding=True)),
    _ENTRIES.c.begins_at < _at("end"),
    _ENTRIES.c.last_at >= _at("begin"),
)
_NAMES = select(col(Job.id), col(Job.name)).where(col(Job.id).in_(bindparam("resource_ids", expanding=True)))

assert timedelta(minutes=1) >= LONGEST_UNIT, "an entry that overlaps a window must have a unit that begins in it"
