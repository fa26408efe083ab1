"""The statements behind `store.jobs`, built once: building one anew for each request costs more than running it.

Parameters are bound by name at execution. Statements are of the tables, not of the mapped classes: no objects are made.
"""

from dataclasses import fields
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    exists,
    func,
    insert,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import SQLModel

from store.columns import UtcDateTime
from store.job_records import AttemptRecord, EventRecord, JobRecord
from store.tables import Budget, IdempotencyKey, InboxRow, Instance, Job, JobEvent, Organization, PriceRecord, Project


def _table(model: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(model.__tablename__)]


JOBS, INSTANCES, EVENTS, PRICES = _table(Job), _table(Instance), _table(JobEvent), _table(PriceRecord)
_KEYS, _ORGANIZATIONS, _PROJECTS = _table(IdempotencyKey), _table(Organization), _table(Project)

_JOB_COLUMNS = [
    *(JOBS.c[f.name] for f in fields(JobRecord) if f.name not in {"project", "attempts"}),
    _PROJECTS.c.name.label("project"),
]
_ATTEMPT_COLUMNS = [INSTANCES.c[f.name] for f in fields(AttemptRecord) if f.name != "prices"]
_EVENT_COLUMNS = [EVENTS.c[f.name] for f in fields(EventRecord)]

INSERT_JOB = insert(JOBS)
INSERT_EVENT = insert(EVENTS)
INSERT_INPUT = insert(_table(InboxRow))

ATTEMPTS_OF_JOBS = (
    select(*_ATTEMPT_COLUMNS)
    .where(INSTANCES.c.job_id.in_(bindparam("job_ids", expanding=True)))
    .order_by(INSTANCES.c.job_id, INSTANCES.c.number)
)
PRICES_OF_INSTANCES = (
    select(PRICES.c.instance_id, PRICES.c.since, PRICES.c.usd_per_hour)
    .where(PRICES.c.instance_id.in_(bindparam("instance_ids", expanding=True)))
    .order_by(PRICES.c.instance_id, PRICES.c.since, PRICES.c.id)
)
KNOWN_KEY = select(_KEYS.c.resource_id, _KEYS.c.fingerprint).where(
    _KEYS.c.org_id == bindparam("org_id"),
    _KEYS.c.operation == bindparam("operation"),
    _KEYS.c.key == bindparam("key"),
)


_HAS_BUDGETS = exists().where(_table(Budget).c.org_id == _ORGANIZATIONS.c.id).label("has_budgets")


def _admission(column: str) -> Select[Any]:
    """What a create judges by: the organization, and its project by this column; always one row."""
    of_org = and_(_PROJECTS.c.org_id == _ORGANIZATIONS.c.id, _PROJECTS.c[column] == bindparam(column))
    return (
        select(_ORGANIZATIONS.c.enabled, _ORGANIZATIONS.c.max_live_jobs, _PROJECTS.c.id, _PROJECTS.c.name, _HAS_BUDGETS)
        .select_from(_ORGANIZATIONS.outerjoin(_PROJECTS, of_org))
        .where(_ORGANIZATIONS.c.id == bindparam("org_id"))
    )


ADMISSION_BY_PROJECT_NAME, ADMISSION_BY_PROJECT_ID = _admission("name"), _admission("id")


@cache
def claim_key(dialect: str) -> Executable:
    """Inserts an idempotency key and answers its row's id; no row when the key was there."""
    build: Any = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement: Executable = build(_KEYS).on_conflict_do_nothing().returning(_KEYS.c.id)
    return statement


@cache
def job_by_id(*, of_project: bool) -> Select[Any]:
    return _jobs(of_project).where(JOBS.c.id == bindparam("job_id"))


@cache
def state_by_id(*, of_project: bool) -> Select[Any]:
    return select(JOBS.c.state).where(JOBS.c.id == bindparam("job_id"), *_scope(of_project))


@cache
def newest_jobs(*, of_project: bool, with_state: bool, continued: bool) -> Select[Any]:
    query = _jobs(of_project)
    if with_state:
        query = query.where(JOBS.c.state == bindparam("state"))
    if continued:
        position = tuple_(bindparam("before_time", type_=UtcDateTime), bindparam("before_id"))
        query = query.where(tuple_(JOBS.c.created_at, JOBS.c.id) < position)
    return query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc()).limit(bindparam("count"))


@cache
def count_jobs(*, of_project: bool, with_state: bool) -> Select[Any]:
    """Answered from an index alone, unless the key is a project's."""
    query = select(func.count()).select_from(JOBS).where(*_scope(of_project))
    return query.where(JOBS.c.state == bindparam("state")) if with_state else query


@cache
def attempts_of_job(*, with_state: bool, ascending: bool, continued: bool) -> Select[Any]:
    query = select(*_ATTEMPT_COLUMNS).where(*_of_job(INSTANCES, with_state))
    return _keyset(query, INSTANCES.c.number, ascending, continued)


@cache
def events_of_job(*, ascending: bool, continued: bool) -> Select[Any]:
    return _keyset(select(*_EVENT_COLUMNS).where(*_of_job(EVENTS)), EVENTS.c.seq, ascending, continued)


@cache
def count_of_job(table: Table, *, with_state: bool = False) -> Select[Any]:
    return select(func.count()).select_from(table).where(*_of_job(table, with_state))


def _jobs(of_project: bool) -> Select[Any]:
    joined: FromClause = JOBS.outerjoin(_PROJECTS, _PROJECTS.c.id == JOBS.c.project_id)
    return select(*_JOB_COLUMNS).select_from(joined).where(*_scope(of_project))


def _scope(of_project: bool) -> list[ColumnElement[bool]]:
    """What a principal may see: its organization's jobs, or its project's."""
    conditions = [JOBS.c.org_id == bindparam("org_id")]
    return [*conditions, JOBS.c.project_id == bindparam("project_id")] if of_project else conditions


def _of_job(table: Table, with_state: bool = False) -> list[ColumnElement[bool]]:
    conditions = [table.c.job_id == bindparam("job_id")]
    return [*conditions, table.c.state == bindparam("state")] if with_state else conditions


def _keyset(query: Select[Any], key: ColumnElement[int], ascending: bool, continued: bool) -> Select[Any]:
    if continued:
        query = query.where(key > bindparam("after") if ascending else key < bindparam("after"))
    return query.order_by(key if ascending else key.desc()).limit(bindparam("count"))
