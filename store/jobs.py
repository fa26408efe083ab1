"""Jobs as the API creates and reads them. Everything here runs inside `Database.read` or `Database.write`.

Reads select columns, not objects, and never the sealed ones: a page of jobs takes a fixed number of queries.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, literal, tuple_
from sqlalchemy import select as select_columns
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel, col

from domain.errors import Conflict, Forbidden, InvalidRequest
from domain.ids import JobId
from domain.money import PriceInterval, UsdPerHour
from domain.states import EventType, JobState
from store import inbox
from store.access import DEFAULT_PROJECT, Principal
from store.columns import UtcDateTime
from store.db import publish
from store.tables import IdempotencyKey, Instance, Job, JobEvent, PriceRecord, Project
from store.transitions import record
from store.vault import Vault

CREATE_JOB = "create_job"


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """The caller's key and the canonical body that it stands for. A body may hold a password: only its HMAC is kept."""

    key: str
    canonical_body: bytes = field(repr=False)
    vault: Vault = field(repr=False)
    operation: str = CREATE_JOB
    """The operation's name, with the ids of its path."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated create request. `project` is a project's name; None is the key's own, else `default`."""

    id: JobId
    project: str | None
    on_behalf_of: str | None
    name: str | None
    kind: str
    labels: dict[str, str] | None
    spec: dict[str, Any]
    workload_sealed: bytes = field(repr=False)
    registry_sealed: bytes | None = field(repr=False)
    trace_context: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """`replayed`: an equal request had made the job before."""

    job_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An instance row as it is shown, with its price intervals in order."""

    id: str
    job_id: str
    number: int
    rank: int
    provider: str
    offer: dict[str, Any]
    handle: dict[str, Any] | None
    state: str
    reason_code: str | None
    reason_message: str | None
    endpoints: list[dict[str, Any]] | None
    created_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    draining_at: datetime | None
    terminal_at: datetime | None
    confirmed_absent_at: datetime | None
    exit_report: dict[str, Any] | None
    prices: tuple[PriceInterval, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job row as it is shown, with its project's name and its attempts in order."""

    id: str
    name: str | None
    kind: str
    labels: dict[str, str] | None
    spec: dict[str, Any]
    state: str
    reason_code: str | None
    reason_message: str | None
    reason_details: dict[str, Any] | None
    exit_code: int | None
    created_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    terminal_at: datetime | None
    project: str | None
    attempts: tuple[AttemptRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class EventRecord:
    seq: int
    id: str
    type: str
    data: dict[str, Any]
    at: datetime


_JOB_COLUMNS = [
    *(getattr(Job, f.name) for f in fields(JobRecord) if f.name not in {"project", "attempts"}),
    col(Project.name).label("project"),
]
_ATTEMPT_COLUMNS = [getattr(Instance, f.name) for f in fields(AttemptRecord) if f.name != "prices"]
_EVENT_COLUMNS = [getattr(JobEvent, f.name) for f in fields(EventRecord)]


def create(session: Session, principal: Principal, new: NewJob, claim: IdempotencyClaim, now: datetime) -> Created:
    """Stores the job, its first event, its idempotency key and the input that starts its workflow, all or nothing.

    Raises:
        Conflict: the key was used with another body (`idempotency_conflict`).
        Forbidden: the organization is not enabled (`tenant_disabled`), or the project is not the key's.
        InvalidRequest: there is no such project.
    """
    known = _claim(session, principal, new.id, claim, now)
    if known is not None:
        return Created(known, replayed=True)
    if not principal.org_enabled:
        raise Forbidden("this organization is not enabled for compute: ask an administrator", code="tenant_disabled")
    session.add(
        Job(
            id=new.id,
            org_id=principal.org_id,
            project_id=_project_id(session, principal, new.project),
            key_id=principal.key_id,
            on_behalf_of=new.on_behalf_of,
            name=new.name,
            kind=new.kind,
            labels=new.labels,
            spec=new.spec,
            workload_sealed=new.workload_sealed,
            registry_sealed=new.registry_sealed,
            trace_context=new.trace_context,
            state=JobState.REQUESTED.value,
            created_at=now,
        )
    )
    data = {"owner": principal.owner, **({"on_behalf_of": new.on_behalf_of} if new.on_behalf_of else {})}
    record(session, new.id, EventType.JOB_CREATED, "created", now, data)
    inbox.put(session, new.id, inbox.START, now)
    publish(session, "jobs")
    return Created(new.id, replayed=False)


def find(session: Session, principal: Principal, job_id: str) -> JobRecord | None:
    """The job as `principal` may see it; None when there is none, or it is another's."""
    rows = session.execute(_select_jobs(principal).where(col(Job.id) == job_id)).all()
    return next(iter(_with_attempts(session, rows)), None)


def visible(session: Session, principal: Principal, job_id: str) -> JobState | None:
    """The state of the job; None when there is none, or it is another's."""
    query = select_columns(col(Job.state)).where(col(Job.id) == job_id, *_scope(principal))
    state = session.execute(query).scalar_one_or_none()
    return None if state is None else JobState(state)


def original(session: Session, principal: Principal, job_id: str) -> tuple[Job, str] | None:
    """The whole row of a job, sealed parts included, and its project's name; None as for `find`."""
    query = select_columns(Job, col(Project.name)).join(Project, col(Project.id) == col(Job.project_id))
    row = session.execute(query.where(col(Job.id) == job_id, *_scope(principal))).one_or_none()
    return None if row is None else (row[0], row[1])


def newest(
    session: Session,
    principal: Principal,
    *,
    state: str | None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[JobRecord]:
    """Up to `limit` jobs, newest first, from the one that follows `before` (its creation and id)."""
    query = _select_jobs(principal)
    if state is not None:
        query = query.where(col(Job.state) == state)
    if before is not None:
        created_at, job_id = before
        position = tuple_(literal(created_at, UtcDateTime), literal(job_id))
        query = query.where(tuple_(col(Job.created_at), col(Job.id)) < position)
    query = query.order_by(col(Job.created_at).desc(), col(Job.id).desc()).limit(limit)
    return _with_attempts(session, session.execute(query).all())


def count(session: Session, principal: Principal, *, state: str | None) -> int:
    """How many jobs `newest` would list in all. Answered from an index alone, unless the key is a project's."""
    conditions = _scope(principal)
    if state is not None:
        conditions.append(col(Job.state) == state)
    return _count(session, Job, *conditions)


def attempts(
    session: Session, job_id: str, *, state: str | None, ascending: bool, after: int | None, limit: int
) -> list[AttemptRecord]:
    """Up to `limit` attempts of a job in order of their number, from the one that follows number `after`."""
    query = select_columns(*_ATTEMPT_COLUMNS).where(col(Instance.job_id) == job_id)
    if state is not None:
        query = query.where(col(Instance.state) == state)
    query = _keyset(query, col(Instance.number), ascending, after).limit(limit)
    return _with_prices(session, session.execute(query).all())


def count_attempts(session: Session, job_id: str, *, state: str | None) -> int:
    conditions = [col(Instance.job_id) == job_id]
    if state is not None:
        conditions.append(col(Instance.state) == state)
    return _count(session, Instance, *conditions)


def events(session: Session, job_id: str, *, ascending: bool, after: int | None, limit: int) -> list[EventRecord]:
    """Up to `limit` events of a job in their order, from the one that follows `seq` `after`."""
    query = select_columns(*_EVENT_COLUMNS).where(col(JobEvent.job_id) == job_id)
    query = _keyset(query, col(JobEvent.seq), ascending, after).limit(limit)
    return [EventRecord(*row) for row in session.execute(query).all()]


def count_events(session: Session, job_id: str) -> int:
    return _count(session, JobEvent, col(JobEvent.job_id) == job_id)


def _claim(session: Session, principal: Principal, job_id: str, claim: IdempotencyClaim, now: datetime) -> str | None:
    """Takes the key for `job_id`; the id of the job that it was taken for before, if it was.

    The insert waits for a concurrent one of the same key, so that exactly one of them makes a job.
    """
    values = {
        "org_id": principal.org_id,
        "operation": claim.operation,
        "key": claim.key,
        "fingerprint": claim.vault.fingerprint(claim.canonical_body),
        "resource_id": job_id,
        "created_at": now,
    }
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(IdempotencyKey).values(values).on_conflict_do_nothing().returning(col(IdempotencyKey.id))
    if session.execute(insert).first() is not None:
        return None
    resource_id, fingerprint = session.execute(
        select_columns(col(IdempotencyKey.resource_id), col(IdempotencyKey.fingerprint)).where(
            col(IdempotencyKey.org_id) == principal.org_id,
            col(IdempotencyKey.operation) == claim.operation,
            col(IdempotencyKey.key) == claim.key,
        )
    ).one()
    if not claim.vault.matches(fingerprint, claim.canonical_body):
        raise Conflict(
            "this Idempotency-Key was used for another request body; a new job needs a new key",
            code="idempotency_conflict",
        )
    return str(resource_id)


def _project_id(session: Session, principal: Principal, name: str | None) -> str:
    """The id of the named project, or of the one that the key implies."""
    if name is None and principal.project_id is not None:
        return principal.project_id
    query = select_columns(col(Project.id)).where(
        col(Project.org_id) == principal.org_id, col(Project.name) == (name or DEFAULT_PROJECT)
    )
    project_id = session.execute(query).scalar_one_or_none()
    if project_id is None:
        raise InvalidRequest(f"project: this organization has no project {name!r}", field="project")
    if principal.project_id not in {None, project_id}:
        raise Forbidden("this API key belongs to another project")
    return str(project_id)


def _scope(principal: Principal) -> list[ColumnElement[bool]]:
    """What a principal may see: its organization's jobs, or its project's."""
    conditions: list[ColumnElement[bool]] = [col(Job.org_id) == principal.org_id]
    if principal.project_id is not None:
        conditions.append(col(Job.project_id) == principal.project_id)
    return conditions


def _select_jobs(principal: Principal) -> Any:
    return (
        select_columns(*_JOB_COLUMNS)
        .join(Project, col(Project.id) == col(Job.project_id), isouter=True)
        .where(*_scope(principal))
    )


def _count(session: Session, table: type[SQLModel], *conditions: ColumnElement[bool]) -> int:
    counted: int = session.execute(select_columns(func.count()).select_from(table).where(*conditions)).scalar_one()
    return counted


def _keyset(query: Any, key: Any, ascending: bool, after: int | None) -> Any:
    if after is not None:
        query = query.where(key > after if ascending else key < after)
    return query.order_by(key if ascending else key.desc())


def _with_attempts(session: Session, rows: Sequence[Any]) -> list[JobRecord]:
    if not rows:
        return []
    query = (
        select_columns(*_ATTEMPT_COLUMNS)
        .where(col(Instance.job_id).in_([row.id for row in rows]))
        .order_by(col(Instance.job_id), col(Instance.number))
    )
    by_job: Mapping[str, list[AttemptRecord]] = defaultdict(list)
    for attempt in _with_prices(session, session.execute(query).all()):
        by_job[attempt.job_id].append(attempt)
    return [JobRecord(**row._mapping, attempts=tuple(by_job.get(row.id, ()))) for row in rows]


def _with_prices(session: Session, rows: Sequence[Any]) -> list[AttemptRecord]:
    if not rows:
        return []
    query = (
        select_columns(col(PriceRecord.instance_id), col(PriceRecord.since), col(PriceRecord.usd_per_hour))
        .where(col(PriceRecord.instance_id).in_([row.id for row in rows]))
        .order_by(col(PriceRecord.instance_id), col(PriceRecord.since), col(PriceRecord.id))
    )
    by_instance: Mapping[str, list[PriceInterval]] = defaultdict(list)
    for instance_id, since, usd_per_hour in session.execute(query).all():
        by_instance[instance_id].append(PriceInterval(since, UsdPerHour(usd_per_hour)))
    return [AttemptRecord(**row._mapping, prices=tuple(by_instance.get(row.id, ()))) for row in rows]
