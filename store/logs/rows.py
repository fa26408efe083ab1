"""The rows of a job's log and their counters: locking, appending, trimming. Everything here runs in a transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Insert, delete, insert
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from store.db import is_sqlite, publish
from store.logs.blocks import Block, BlockLimits, encode
from store.tables import LogBlob, LogChunk, LogState

_BLOCK_LINES = 2_048
_BLOCK_TEXT_BYTES = 256 << 10
_SEGMENT_BYTES = 4 << 20
_TRIM_AT_PERCENT = 110
_HOT_LEVEL = 1
_BATCH = 100
_UNSYNCHRONIZED = {"synchronize_session": False}
_ADD_CHUNKS = insert(LogChunk)

LIGHT = tuple(defer(column) for column in (LogChunk.data, LogChunk.blocks))  # type: ignore[arg-type]
"""Query options: chunks without what is large."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What follows from the size that a log may have. Bytes count the text and 400 a line."""

    max_bytes: int
    segment_bytes: int
    """A segment is sealed at about this: small enough that trimming by whole ones stays within its tenth."""
    block: BlockLimits

    @classmethod
    def of(cls, max_bytes: int) -> "Sizes":
        segment_bytes = max(1, min(_SEGMENT_BYTES, max_bytes // 20))
        lines = max(1, min(_BLOCK_LINES, segment_bytes // 800))
        return cls(max_bytes, segment_bytes, BlockLimits(lines, max(1, min(_BLOCK_TEXT_BYTES, segment_bytes // 2))))

    @property
    def trim_above_bytes(self) -> int:
        return self.max_bytes * _TRIM_AT_PERCENT // 100


def topic(job_id: str) -> str:
    """Published whenever the job's log grew."""
    return f"logs:{job_id}"


def lock_state(session: Session, job_id: str) -> LogState:
    """The job's counters, locked until the transaction ends; made when there are none."""
    if is_sqlite(session):
        state = session.get(LogState, job_id)
        if state is None:
            state = LogState(job_id=job_id)
            session.add(state)
        return state
    state = session.get(LogState, job_id, with_for_update=True)
    if state is None:
        session.connection().execute(_insert_unless_there(job_id))
        state = session.get_one(LogState, job_id, with_for_update=True)
    return state


def _insert_unless_there(job_id: str) -> Insert:
    return postgresql.insert(LogState).values(**LogState(job_id=job_id).model_dump()).on_conflict_do_nothing()


def append_blocks(session: Session, state: LogState, blocks: Iterable[Block], now: datetime, sizes: Sizes) -> None:
    """Adds lines at the log's end, trims its beginning when it became too long, and tells who waits for it."""
    rows = []
    for block in blocks:
        count, user_lines = block.line_count, block.user_lines
        rows.append(
            {
                "job_id": state.job_id,
                "first_seq": state.next_seq,
                "line_count": count,
                "user_lines": user_lines,
                "byte_count": block.counted_bytes,
                "first_at": now,
                "last_at": now,
                "data": encode(block, _HOT_LEVEL),
            }
        )
        state.next_seq += count
        state.user_lines += user_lines
        state.system_lines += count - user_lines
        state.stored_bytes += block.counted_bytes
        state.hot_bytes += block.counted_bytes
    if not rows:
        return
    state.hot_rows += len(rows)
    state.hot_since = state.hot_since or now
    session.connection().execute(_ADD_CHUNKS, rows)
    session.add(state)
    if state.stored_bytes > sizes.trim_above_bytes:
        trim(session, state, sizes, now)
    publish(session, topic(state.job_id))


def trim(session: Session, state: LogState, sizes: Sizes, now: datetime) -> int:
    """Deletes the oldest chunks of a log that is too long, as long as its newest `max_bytes` stay. Returns how many
    lines that were."""
    excess = state.stored_bytes - sizes.max_bytes
    doomed: list[LogChunk] = []
    while chunks := _oldest(session, state.job_id, doomed[-1] if doomed else None):
        for chunk in chunks:
            excess -= chunk.byte_count
            if excess < 0:
                return drop(session, state, doomed, now)
            doomed.append(chunk)
    return drop(session, state, doomed, now)


def drop_expired(session: Session, state: LogState, cutoff: datetime, now: datetime) -> int:
    """Deletes the oldest chunks whose lines are all from `cutoff` or before. Returns how many lines that were."""
    doomed: list[LogChunk] = []
    while chunks := _oldest(session, state.job_id, doomed[-1] if doomed else None):
        for chunk in chunks:
            if chunk.last_at > cutoff:
                return drop(session, state, doomed, now)
            doomed.append(chunk)
    return drop(session, state, doomed, now)


def _oldest(session: Session, job_id: str, after: LogChunk | None) -> Sequence[LogChunk]:
    """The next oldest chunks, without their data."""
    query = (
        select(LogChunk)
        .options(*LIGHT)
        .where(LogChunk.job_id == job_id, LogChunk.first_seq > (after.first_seq if after else -1))
        .order_by(col(LogChunk.first_seq))
        .limit(_BATCH)
    )
    return session.exec(query).all()


def drop(session: Session, state: LogState, chunks: Sequence[LogChunk], now: datetime) -> int:
    """Deletes chunks and counts their lines as deleted. Their objects are doomed: who sweeps deletes them."""
    for start in range(0, len(chunks), _BATCH):
        ids = [chunk.id for chunk in chunks[start : start + _BATCH]]
        session.exec(delete(LogChunk).where(col(LogChunk.id).in_(ids)), execution_options=_UNSYNCHRONIZED)
    for chunk in chunks:
        state.user_lines -= chunk.user_lines
        state.system_lines -= chunk.line_count - chunk.user_lines
        state.stored_bytes -= chunk.byte_count
        state.trimmed_lines += chunk.line_count
        state.trimmed_through = chunk.last_at
        if chunk.segment is not None:
            session.add(LogBlob(segment=chunk.segment, doomed=True, created_at=now))
        else:
            state.hot_rows -= 1
            state.hot_bytes -= chunk.byte_count
    if state.hot_rows == 0:
        state.hot_since = None
    session.add(state)
    return sum(chunk.line_count for chunk in chunks)
