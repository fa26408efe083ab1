"""Jobs as the API creates and reads them. Everything here runs inside `Database.read` or `Database.write`.

A page of jobs takes a fixed number of queries, whatever it holds.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Executable
from sqlmodel import Session, col, select

from domain.errors import Conflict, Forbidden, InvalidRequest
from domain.ids import JobId, new_id
from domain.money import PriceInterval, UsdPerHour
from domain.secrets import Reference
from domain.states import EventType, JobState
from store import audit, budgets, inbox, retired_keys, secrets, tenants
from store import job_statements as statements
from store.access import DEFAULT_PROJECT, Principal
from store.db import publish
from store.job_records import AttemptRecord, EventRecord, JobRecord
from store.tables import Job, Project
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
    references: tuple[Reference, ...] = ()
    """What it needs of stored secrets."""
    trace_context: dict[str, str] | None = None
    rerun_of: str | None = None
    """The job of which this is a copy."""


@dataclass(frozen=True, slots=True)
class Created:
    """`replayed`: an equal request had made the job before; the job is as it is now."""

    job: JobRecord
    replayed: bool


def create(session: Session, principal: Principal, new: NewJob, claim: IdempotencyClaim, now: datetime) -> Created:
    """Stores the job, its first event, its idempotency key and the input that starts its workflow, all or nothing.

    Raises:
        Conflict: the key was used with another body (`idempotency_conflict`).
        Forbidden: the organization is not enabled (`tenant_disabled`), has as many live jobs as it may
            (`tenant_limit_reached`), or the project is not the key's; or a budget has nothing free for it
            (`budget_exhausted`).
        InvalidRequest: there is no such project, or no such secret.
    """
    known = _claim(session, principal, new.id, claim, now)
    if known is not None:
        return _replay(session, principal, known)
    project_id, project, has_budgets = _admit(session, principal, new.project)
    if has_budgets:
        budgets.reserve(session, principal, new.id, project_id, new.spec, now)
    values = {
        "id": new.id,
        "org_id": principal.org_id,
        "project_id": project_id,
        "key_id": principal.key_id,
        "on_behalf_of": new.on_behalf_of,
        "name": new.name,
        "kind": new.kind,
        "labels": new.labels,
        "spec": new.spec,
        "workload_sealed": new.workload_sealed,
        "registry_sealed": new.registry_sealed,
        "uses_secrets": bool(new.references),
        "trace_context": new.trace_context,
        "state": JobState.REQUESTED.value,
        "created_at": now,
        "run_token": 0,
    }
    if new.references:
        secrets.claim(session, principal.org_id, new.id, new.references)
    session.connection().execute(statements.INSERT_JOB, values)
    data = {"owner": principal.owner, **({"on_behalf_of": new.on_behalf_of} if new.on_behalf_of else {})}
    # A new job has no event and no input yet: there is nothing to compare these with, as `record` and `put` would.
    event = {
        "id": new_id("evt"),
        "job_id": new.id,
        "transition_id": "created",
        "type": EventType.JOB_CREATED.value,
        "data": data,
        "at": now,
    }
    start = {
        "job_id": new.id,
        "kind": inbox.START,
        "dedupe_key": inbox.START,
        "payload": {},
        "created_at": now,
        "due_at": now,
        "tries": 0,
    }
    session.connection().execute(statements.INSERT_EVENT, event)
    session.connection().execute(statements.INSERT_INPUT, start)
    again = {} if new.rerun_of is None else {"of": new.rerun_of}
    action = "job.rerun" if again else "job.create"
    audit.write(session, principal, action, new.id, now, {"project": project, **again})
    publish(session, inbox.TOPIC)
    publish(session, "jobs")
    job = JobRecord(
        id=new.id,
        name=new.name,
        kind=new.kind,
        labels=new.labels,
        spec=new.spec,
        state=JobState.REQUESTED.value,
        reason_code=None,
        reason_message=None,
        reason_details=None,
        exit_code=None,
        created_at=now,
        allocated_at=None,
        started_at=None,
        terminal_at=None,
        project=project,
    )
    return Created(job, replayed=False)


def find(session: Session, principal: Principal, job_id: str) -> JobRecord | None:
    """The job as `principal` may see it; None when there is none, or it is another's."""
    query = statements.job_by_id(of_project=principal.project_id is not None)
    rows = _rows(session, query, **_scope(principal), job_id=job_id)
    return next(iter(_with_attempts(session, rows)), None)


def visible(session: Session, principal: Principal, job_id: str) -> JobState | None:
    """The state of the job; None when there is none, or it is another's."""
    query = statements.state_by_id(of_project=principal.project_id is not None)
    rows = _rows(session, query, **_scope(principal), job_id=job_id)
    return JobState(rows[0][0]) if rows else None


def original(session: Session, principal: Principal, job_id: str) -> tuple[Job, str] | None:
    """The whole row of a job, sealed parts included, and its project's name; None as for `find`."""
    if visible(session, principal, job_id) is None:
        return None
    query = select(Job, Project.name).join(Project, col(Project.id) == col(Job.project_id)).where(Job.id == job_id)
    return session.exec(query).one()


def newest(
    session: Session,
    principal: Principal,
    *,
    state: str | None,
    before: tuple[datetime, str] | None,
    limit: int,
    known: Container[str] = (),
) -> list[JobRecord]:
    """Up to `limit` jobs, newest first, from the one that follows `before` (its creation and id).

    The attempts of jobs whose id is `known` are left out.
    """
    query = statements.newest_jobs(
        of_project=principal.project_id is not None, with_state=state is not None, continued=before is not None
    )
    values: dict[str, Any] = {**_scope(principal), "state": state, "count": limit}
    if before is not None:
        values |= {"before_time": before[0], "before_id": before[1]}
    return _with_attempts(session, _rows(session, query, **values), known)


def count(session: Session, principal: Principal, *, state: str | None) -> int:
    """How many jobs `newest` would list in all."""
    query = statements.count_jobs(of_project=principal.project_id is not None, with_state=state is not None)
    return int(_rows(session, query, **_scope(principal), state=state)[0][0])


def attempts(
    session: Session, job_id: str, *, state: str | None, ascending: bool, after: int | None, limit: int
) -> list[AttemptRecord]:
    """Up to `limit` attempts of a job in order of their number, from the one that follows number `after`."""
    query = statements.attempts_of_job(with_state=state is not None, ascending=ascending, continued=after is not None)
    return _with_prices(session, _rows(session, query, job_id=job_id, state=state, after=after, count=limit))


def count_attempts(session: Session, job_id: str, *, state: str | None) -> int:
    query = statements.count_of_job(statements.INSTANCES, with_state=state is not None)
    return int(_rows(session, query, job_id=job_id, state=state)[0][0])


def events(session: Session, job_id: str, *, ascending: bool, after: int | None, limit: int) -> list[EventRecord]:
    """Up to `limit` events of a job in their order, from the one that follows `seq` `after`."""
    query = statements.events_of_job(ascending=ascending, continued=after is not None)
    return [EventRecord(*row) for row in _rows(session, query, job_id=job_id, after=after, count=limit)]


def count_events(session: Session, job_id: str) -> int:
    return int(_rows(session, statements.count_of_job(statements.EVENTS), job_id=job_id)[0][0])


def _rows(session: Session, query: Executable, **parameters: Any) -> Sequence[Any]:
    """Runs a statement below the mapping of objects. Parameters that it does not name are ignored."""
    return session.connection().execute(query, parameters).all()


def _claim(session: Session, principal: Principal, job_id: str, claim: IdempotencyClaim, now: datetime) -> str | None:
    """Takes the key for `job_id`; the id of the job that it was taken for before, if it was.

    The insert waits for a concurrent one of the same key, so that exactly one of them makes a job.
    """
    key = {"org_id": principal.org_id, "operation": claim.operation, "key": claim.key}
    fingerprint = claim.vault.fingerprint(claim.canonical_body)
    insert = statements.claim_key(session.get_bind().dialect.name)
    if _rows(session, insert, **key, fingerprint=fingerprint, resource_id=job_id, created_at=now):
        return None
    return _made_before(session, principal, claim)


def replay(session: Session, principal: Principal, claim: IdempotencyClaim) -> Created | None:
    """What an equal request made with this key; None when the key is new. Raises as `create` does."""
    known = _made_before(session, principal, claim)
    return None if known is None else _replay(session, principal, known)


def _replay(session: Session, principal: Principal, job_id: str) -> Created:
    job = find(session, principal, job_id)
    if job is None:
        raise Forbidden("this Idempotency-Key was used by a key of another project")
    return Created(job, replayed=True)


def _made_before(session: Session, principal: Principal, claim: IdempotencyClaim) -> str | None:
    """The id of what an equal request made with this key; None when the key is new.

    Raises:
        Conflict: the key was used with another body (`idempotency_conflict`).
    """
    known = _rows(session, statements.KNOWN_KEY, org_id=principal.org_id, operation=claim.operation, key=claim.key)
    if not known:
        return None
    [(resource_id, fingerprint)] = known
    if not retired_keys.matches(session, claim.vault, fingerprint, claim.canonical_body):
        raise Conflict(
            "this Idempotency-Key was used for another request body; a new job needs a new key",
            code="idempotency_conflict",
        )
    return str(resource_id)


def _admit(session: Session, principal: Principal, name: str | None) -> tuple[str, str, bool]:
    """The id and name of the named project, or of the one that the key implies, if the organization may have another
    job; and whether the organization has budgets. All is judged by the rows as they are now: the principal was read
    before this transaction."""
    if name is None and principal.project_id is not None:
        by = {"id": principal.project_id}
        query = statements.ADMISSION_BY_PROJECT_ID
    else:
        by = {"name": name or DEFAULT_PROJECT}
        query = statements.ADMISSION_BY_PROJECT_NAME
    [(enabled, max_live_jobs, project_id, project, has_budgets)] = _rows(session, query, org_id=principal.org_id, **by)
    tenants.require_enabled(enabled)
    if max_live_jobs is not None:
        tenants.require_room_for_a_job(session, principal.org_id)
    if project_id is None:
        raise InvalidRequest(f"project: this organization has no project {name!r}", field="project")
    if principal.project_id not in {None, project_id}:
        raise Forbidden("this API key belongs to another project")
    return str(project_id), str(project), bool(has_budgets)


def _scope(principal: Principal) -> dict[str, Any]:
    """The parameters of what a principal may see."""
    return {"org_id": principal.org_id, "project_id": principal.project_id}


def _with_attempts(session: Session, rows: Sequence[Any], known: Container[str] = ()) -> list[JobRecord]:
    wanted = [row.id for row in rows if row.id not in known]
    found = _rows(session, statements.ATTEMPTS_OF_JOBS, job_ids=wanted) if wanted else []
    by_job: Mapping[str, list[AttemptRecord]] = defaultdict(list)
    for attempt in _with_prices(session, found):
        by_job[attempt.job_id].append(attempt)
    values: list[list[Any]] = [[*row, tuple(by_job.get(row[0], ()))] for row in rows]
    return [JobRecord(*record) for record in values]


def _with_prices(session: Session, rows: Sequence[Any]) -> list[AttemptRecord]:
    if not rows:
        return []
    found = _rows(session, statements.PRICES_OF_INSTANCES, instance_ids=[row.id for row in rows])
    by_instance: Mapping[str, list[PriceInterval]] = defaultdict(list)
    for instance_id, since, usd_per_hour in found:
        by_instance[instance_id].append(PriceInterval(since, UsdPerHour(usd_per_hour)))
    values: list[list[Any]] = [[*row, tuple(by_instance.get(row[0], ()))] for row in rows]
    return [AttemptRecord(*record) for record in values]
