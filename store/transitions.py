"""The one place where a job's state changes: a compare-and-set with its event, its inbox row and its side effects.

A transition carries an id: the same one again is success and writes nothing; one that the state machine does not allow
is refused with the state that stands. Terminal states never change.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Update, bindparam, delete, update
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.util import identity_key
from sqlmodel import Session, col, select

from domain.ids import JobId, new_id
from domain.states import EventType, JobState, Reason, sources_of
from store import webhooks
from store.db import insert_once, is_sqlite, publish
from store.tables import Job, JobEvent, SecretUse

_LOCKED_STATE = select(Job.state, Job.uses_secrets).where(Job.id == bindparam("job")).with_for_update()
_FORGET_USES = delete(SecretUse).where(col(SecretUse.job_id) == bindparam("job"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """`applied`: this call changed the state; otherwise `state` is what stands, and `repeated` says that this very
    transition had been applied before."""

    applied: bool
    state: JobState
    repeated: bool = False

    def __bool__(self) -> bool:
        return self.applied or self.repeated


def transition(
    session: Session,
    job_id: JobId | str,
    wanted: JobState,
    transition_id: str,
    now: datetime,
    *,
    reason: Reason | None = None,
    message: str | None = None,
    details: dict[str, Any] | None = None,
    event: EventType = EventType.STATE_CHANGED,
    data: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    only_from: frozenset[JobState] | None = None,
) -> Outcome:
    """Moves the job to `wanted` if the state machine (and `only_from`) allows it from where it is.

    `values` are further columns to set with it; `data` goes into the event beside `from`, `to` and the reason.
    """
    session.flush()
    previous = session.connection().execute(_LOCKED_STATE, {"job": job_id}).one_or_none()
    if previous is None:
        raise LookupError(f"no job {job_id}")
    current = JobState(previous.state)
    allowed = sources_of(wanted) & (only_from or frozenset(JobState))
    if current not in allowed:
        return Outcome(False, current, _was_applied(session, job_id, wanted, transition_id))
    changes: dict[str, Any] = {"state": wanted.value, **(values or {})}
    if reason is not None:
        changes |= {"reason_code": reason.value, "reason_message": message, "reason_details": details}
    if wanted.terminal:
        changes |= {"terminal_at": now, "registry_sealed": None}
    shown = {"from": current.value, "to": wanted.value}
    if reason is not None:
        shown |= {"reason": reason.value}
        if message:
            shown["message"] = message
    if not record(session, job_id, event, transition_id, now, {**shown, **(data or {})}):
        # This very transition was applied before, and the job has moved on since: it must not be moved back.
        return Outcome(False, current, _was_applied(session, job_id, wanted, transition_id))
    parameters = {f"new_{name}": value for name, value in changes.items()}
    session.connection().execute(_change(tuple(changes)), {**parameters, "job": job_id, "seen": current.value})
    if wanted.terminal and previous.uses_secrets:
        session.connection().execute(_FORGET_USES, {"job": job_id})
    loaded = session.identity_map.get(identity_key(Job, job_id))
    if loaded is not None:
        for name, value in changes.items():
            set_committed_value(loaded, name, value)
    if wanted.terminal:
        webhooks.job_ended(session, job_id, wanted, reason, message, now)
    publish(session, "jobs")
    return Outcome(True, wanted)


@cache
def _change(names: tuple[str, ...]) -> Update:
    """Kept, because building a statement and its cache key costs more than its execution."""
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return update(Job).where(col(Job.id) == bindparam("job"), col(Job.state) == bindparam("seen")).values(values)


def record(
    session: Session, job_id: JobId | str, event: EventType, event_key: str, now: datetime, data: dict[str, Any]
) -> bool:
    """Adds an event unless one with the same key is there; says whether it was added. Data must hold no secret.

    The job's row is locked: events become visible in the order of their numbers, so that no page's cursor skips one.
    """
    session.flush()
    if not is_sqlite(session):
        session.connection().execute(_LOCKED_STATE, {"job": job_id})
    return insert_once(
        session,
        JobEvent,
        ("job_id", "transition_id"),
        id=new_id("evt"),
        job_id=job_id,
        transition_id=event_key,
        type=event.value,
        data=data,
        at=now,
    )


def has_event(session: Session, job_id: str, transition_id: str) -> bool:
    """Whether the transition or event with this id was recorded for the job."""
    return (
        session.exec(
            select(JobEvent.seq).where(JobEvent.job_id == job_id, JobEvent.transition_id == transition_id)
        ).first()
        is not None
    )


def _was_applied(session: Session, job_id: str, wanted: JobState, transition_id: str) -> bool:
    query = select(JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.transition_id == transition_id)
    data = session.exec(query).first()
    return data is not None and data.get("to") == wanted.value
