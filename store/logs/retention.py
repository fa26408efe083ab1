"""The end of log lines: by age, and the deletion of objects that no chunk names any more.

The size of a log is kept in the transaction that appends to it (`store.logs.rows`). Rows go first, objects after: an
object that is left over is known by its `LogBlob` row until it is gone.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import delete, update
from sqlmodel import Session, col, select

from store.db import Database
from store.logs.blobs import BlobError, BlobStore
from store.logs.rows import Sizes, drop_expired, lock_state, trim
from store.tables import LogBlob, LogChunk, LogState

ABANDONED_AFTER = timedelta(hours=1)
"""An object announced this long ago and not in use was left by a sealer that died."""

_BATCH = 500

logger = structlog.get_logger(__name__)


async def expire(db: Database, cutoff: datetime, now: datetime) -> int:
    """Deletes, by whole chunks, lines from `cutoff` or before. Returns how many."""
    query = select(LogChunk.job_id).where(LogChunk.last_at <= cutoff).distinct().limit(_BATCH)
    deleted = 0
    while True:
        before = deleted
        for job_id in await db.read(lambda session: session.exec(query).all()):
            deleted += await db.write(partial(_expire_job, job_id=job_id, cutoff=cutoff, now=now))
        if deleted == before:
            return deleted


def _expire_job(session: Session, job_id: str, cutoff: datetime, now: datetime) -> int:
    return drop_expired(session, lock_state(session, job_id), cutoff, now)


async def trim_oversized(db: Database, sizes: Sizes, now: datetime) -> int:
    """Trims logs that are too long although nothing is appended, as after the limit was lowered. Returns the lines."""
    query = select(LogState.job_id).where(LogState.stored_bytes > sizes.trim_above_bytes)
    deleted = 0
    for job_id in await db.read(lambda session: session.exec(query).all()):
        deleted += await db.write(partial(_trim_job, job_id=job_id, sizes=sizes, now=now))
    return deleted


def _trim_job(session: Session, job_id: str, sizes: Sizes, now: datetime) -> int:
    return trim(session, lock_state(session, job_id), sizes, now)


async def sweep(db: Database, blobs: BlobStore, now: datetime) -> int:
    """Deletes objects that are doomed or abandoned. Returns how many; what fails stays for the next sweep."""
    swept = 0
    after = ""
    while names := await db.write(partial(_doomed, after=after, now=now)):
        gone = [name for name in names if await _delete(blobs, name)]
        await db.write(partial(_forget, names=gone))
        swept += len(gone)
        after = names[-1]
    return swept


def _doomed(session: Session, after: str, now: datetime) -> list[str]:
    """The next names of objects to delete. An abandoned one is doomed first: its sealer, should it live, then fails."""
    session.exec(
        update(LogBlob)
        .where(col(LogBlob.doomed).is_(False), col(LogBlob.created_at) <= now - ABANDONED_AFTER)
        .values(doomed=True)
    )
    query = select(LogBlob.segment).where(col(LogBlob.doomed).is_(True), LogBlob.segment > after)
    return list(session.exec(query.order_by(col(LogBlob.segment)).limit(_BATCH)).all())


def _forget(session: Session, names: Sequence[str]) -> None:
    session.exec(delete(LogBlob).where(col(LogBlob.segment).in_(names)))


async def _delete(blobs: BlobStore, name: str) -> bool:
    try:
        await asyncio.to_thread(blobs.delete, name)
    except (BlobError, OSError) as error:
        logger.warning("log_segment_not_deleted", segment=name, error=str(error))
        return False
    return True
