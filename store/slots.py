"""The slots of a backend that has a number of them, and the jobs in line for one."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func
from sqlmodel import Session, col, select

from domain.states import JobState
from store import inbox
from store.db import insert_once, is_sqlite
from store.tables import Instance, Job, SlotWaiter


@dataclass(frozen=True, slots=True)
class SlotsTaken:
    """Why an attempt was not minted: all slots are in use, or another organization's jobs are on this host."""

    message: str


def taken(session: Session, job: Job, connection_id: str, slots: int, *, single_tenant: bool) -> SlotsTaken | None:
    """None when the connection has a slot for the job. Whoever mints in the same transaction has it for sure."""
    _serialize(session, connection_id)
    open_here = (Instance.connection_id == connection_id, col(Instance.confirmed_absent_at).is_(None))
    if session.exec(select(func.count()).select_from(Instance).where(*open_here)).one() >= slots:
        return SlotsTaken(f"all {slots} slots are in use")
    others = select(Instance.id).where(*open_here, Instance.org_id != job.org_id).limit(1)
    if single_tenant and session.exec(others).first() is not None:
        return SlotsTaken("the host is serving another organization's jobs")
    return None


def line_up(session: Session, job: Job) -> None:
    """The job waits for a slot. In the transaction that found none: one that is freed later sees the job in line."""
    insert_once(session, SlotWaiter, ("job_id",), job_id=job.id, job_created_at=job.created_at)


def leave_line(session: Session, job_id: str) -> None:
    """The job has what it waited for."""
    session.exec(delete(SlotWaiter).where(col(SlotWaiter.job_id) == job_id))


def freed(session: Session, instance: Instance, now: datetime) -> None:
    """The attempt holds no slot any more: the workflow of the oldest job in line is told, and looks again."""
    _serialize(session, instance.connection_id)
    while (job_id := _take_oldest(session)) is not None:
        # One that was terminated in line wants no slot.
        if session.exec(select(Job.state).where(Job.id == job_id)).one() == JobState.ALLOCATING:
            inbox.put(session, job_id, inbox.CAPACITY, now, key=f"slot-{instance.id}")
            return


def _take_oldest(session: Session) -> str | None:
    oldest = select(SlotWaiter).order_by(col(SlotWaiter.job_created_at), col(SlotWaiter.job_id)).limit(1)
    waiter = session.exec(oldest.with_for_update(skip_locked=True)).first()
    if waiter is None:
        return None
    session.delete(waiter)
    session.flush()
    return waiter.job_id


def _serialize(session: Session, connection_id: str) -> None:
    """One at a time per connection on PostgreSQL; on SQLite every writer is alone anyway."""
    if not is_sqlite(session):
        session.connection().exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"slots:{connection_id}",))
