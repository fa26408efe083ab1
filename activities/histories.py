"""Exports histories of failed jobs, so that `headrace replay --file` can tell why, long after Temporal forgot."""

import asyncio
from datetime import datetime, timedelta

from sqlmodel import Session, col, select
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.context import Context, log
from domain.states import JobState
from store.tables import Job

_SETTLING = timedelta(seconds=10)
_BATCH = 100


def export_name(job_id: str) -> str:
    """Where the history of a job lies in the file store. Payloads in it are encrypted, as they are in Temporal."""
    return f"histories/{job_id}.json"


async def export_failed(context: Context, client: Client) -> int:
    """One round over jobs that failed and are not exported yet; the number of histories written."""
    now, written = context.clock(), 0
    for job_id in await context.db.read(lambda session: _due(session, now)):
        if await _export(context, client, job_id):
            written += 1
        await context.db.write(lambda session, job_id=job_id: _mark(session, job_id, now))  # type: ignore[misc]
    return written


async def _export(context: Context, client: Client, job_id: str) -> bool:
    try:
        history = await client.get_workflow_handle(job_id).fetch_history()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        log.warning("history_missing", job_id=job_id)
        return False
    await asyncio.to_thread(context.blobs.put, export_name(job_id), history.to_json().encode())
    return True


def _due(session: Session, now: datetime) -> list[str]:
    query = select(Job.id).where(
        Job.state == JobState.FAILED.value,
        col(Job.history_exported_at).is_(None),
        col(Job.terminal_at) < now - _SETTLING,
    )
    return list(session.exec(query.order_by(col(Job.terminal_at)).limit(_BATCH)).all())


def _mark(session: Session, job_id: str, now: datetime) -> None:
    job = session.get_one(Job, job_id)
    job.history_exported_at = now
    session.add(job)
