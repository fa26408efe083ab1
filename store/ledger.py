"""Writes the ledger: what instances have cost, once it can no longer change.

An interval is closed by a new price, by the confirmed absence, and at the latest by the end of the UTC day. What is
written is never computed again: a report of days that are over reads rows that nothing changes.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Executable, Table, bindparam, case, func, insert
from sqlalchemy import select as select_columns
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel, col, select

from domain.ledger import day_of, unwritten
from domain.money import RATE_PLACES, Run
from store.db import is_sqlite
from store.meters import meters_of
from store.tables import BilledDay, BilledResource, Instance, Job, LedgerEntry

JOB = "job"
"""The type of resource that instances belong to."""
RESOURCE_TYPES = (JOB,)
"""The types of which there are entries, so far."""

_NANO = 10**9
_ENTRIES: Table = SQLModel.metadata.tables[str(LedgerEntry.__tablename__)]
_DAYS: Table = SQLModel.metadata.tables[str(BilledDay.__tablename__)]
_RESOURCES: Table = SQLModel.metadata.tables[str(BilledResource.__tablename__)]
_INSERT = insert(_ENTRIES)
assert RATE_PLACES == 18, "the parts of an entry hold 18 places"


def close(session: Session, instance: Instance, now: datetime, until: datetime | None = None) -> int:
    """Writes the units of the instance that begin before `until` and are not written yet; None is all that it is
    charged for, once it is gone. Answers how many entries that made.

    The job's row must be locked: two writers would write the same units.
    """
    if instance.allocated_at is None:
        return 0
    session.flush()
    meter = meters_of(session, [instance])[instance.id]
    through = written_through(session, [instance.id]).get(instance.id)
    parts = list(unwritten(meter, now, through, until))
    if parts:
        _write(session, instance, parts, now)
    return len(parts)


def close_days(session: Session, instance_ids: Sequence[str], now: datetime) -> int:
    """Writes what these live instances cost on the UTC days that are over; answers how many entries that made.

    Each is locked, job first, in the order of the jobs, as everywhere.
    """
    midnight = day_of(now)
    query = select(Instance.job_id, Instance.id).where(col(Instance.id).in_(instance_ids))
    written = 0
    for job_id, instance_id in sorted(session.exec(query).all()):
        session.exec(select(Job.id).where(Job.id == job_id).with_for_update()).one()
        instance = session.get_one(Instance, instance_id, with_for_update=True, populate_existing=True)
        if instance.confirmed_absent_at is None:
            written += close(session, instance, now, until=midnight)
    return written


def unclosed(session: Session, now: datetime) -> list[str]:
    """The live instances of which a day that is over is not all in the ledger."""
    midnight = day_of(now)
    query = select(Instance.id).where(
        col(Instance.confirmed_absent_at).is_(None),
        col(Instance.allocated_at).is_not(None),
        col(Instance.allocated_at) < midnight,
    )
    live = session.exec(query).all()
    through = written_through(session, live)
    return [instance_id for instance_id in live if instance_id not in through or through[instance_id] < midnight]


def written_through(session: Session, instance_ids: Sequence[str]) -> dict[str, datetime]:
    """Until when the ledger knows each instance: the beginning of its next unit. Those that it does not know at all are
    left out."""
    through: dict[str, datetime] = {}
    for begin in range(0, len(instance_ids), 500):
        query = (
            select_columns(_ENTRIES.c.instance_id, func.max(_ENTRIES.c.last_at), func.max(_ENTRIES.c.unit_seconds))
            .where(_ENTRIES.c.instance_id.in_(instance_ids[begin : begin + 500]))
            .group_by(_ENTRIES.c.instance_id)
        )
        for instance_id, last_at, unit_seconds in session.connection().execute(query):
            through[instance_id] = last_at + timedelta(seconds=unit_seconds)
    return through


def parts_of(attos: int) -> tuple[int, int, int]:
    """An exact cost as whole, 10^-9 and 10^-18 parts."""
    rest, atto = divmod(attos, _NANO)
    whole, nano = divmod(rest, _NANO)
    return whole, nano, atto


def attos_of(whole: int, nano: int, atto: int) -> int:
    """The exact cost whose parts (or sums of parts) these are."""
    return (whole * _NANO + nano) * _NANO + atto


def _write(session: Session, instance: Instance, parts: Sequence[Run], now: datetime) -> None:
    owner = select_columns(col(Job.project_id), col(Job.created_at)).where(col(Job.id) == instance.job_id)
    project_id, resource_at = session.connection().execute(owner).one()
    resource = {
        "org_id": instance.org_id,
        "project_id": project_id,
        "resource_type": JOB,
        "resource_id": instance.job_id,
    }
    rows = []
    for run in parts:
        whole, nano, atto = parts_of(run.attos)
        rows.append(
            {
                **resource,
                "instance_id": instance.id,
                "begins_at": run.begins_at,
                "last_at": run.last_at,
                "units": run.units,
                "unit_seconds": run.unit_seconds,
                "usd_per_hour": run.usd_per_hour,
                "whole": whole,
                "nano": nano,
                "atto": atto,
                "written_at": now,
            }
        )
    session.connection().execute(_INSERT, rows)
    for run, row in zip(parts, rows, strict=True):
        session.connection().execute(_add_to_day(is_sqlite(session)), {**row, "day": day_of(run.begins_at)})
    span = {"begins_at": parts[0].begins_at, "last_at": parts[-1].last_at}
    session.connection().execute(_widen(is_sqlite(session)), {**resource, "resource_at": resource_at, **span})


@cache
def _add_to_day(sqlite_: bool) -> Executable:
    """Adds an entry to the sum of its day."""
    build: Any = sqlite.insert if sqlite_ else postgresql.insert
    statement = build(_DAYS).values({column.name: bindparam(column.name) for column in _DAYS.c})
    parts = ("whole", "nano", "atto")
    added: Executable = statement.on_conflict_do_update(
        index_elements=[column.name for column in _DAYS.primary_key],
        set_={name: _DAYS.c[name] + statement.excluded[name] for name in parts},
    )
    return added


@cache
def _widen(sqlite_: bool) -> Executable:
    """Makes the resource's span hold another one."""
    build: Any = sqlite.insert if sqlite_ else postgresql.insert
    statement = build(_RESOURCES)
    known, new = _RESOURCES.c, statement.excluded
    widened: Executable = statement.on_conflict_do_update(
        index_elements=["resource_id"],
        set_={
            "begins_at": case((new.begins_at < known.begins_at, new.begins_at), else_=known.begins_at),
            "last_at": case((new.last_at > known.last_at, new.last_at), else_=known.last_at),
        },
    )
    return widened
