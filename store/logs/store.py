"""The log store: exactly-once ingest by byte offsets, pages by line numbers, sealing, retention.

Functions that take a session run inside `Database.write`, together with whatever else their caller commits.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

import structlog
from sqlmodel import Session, col, select

from domain.clock import Clock
from domain.lines import LineMaker, MadeLines
from store.db import Database
from store.logs import retention
from store.logs.blobs import BlobStore, open_blob_store
from store.logs.blocks import Run, into_blocks
from store.logs.output_mask import OutputMask, ending
from store.logs.reading import read_page
from store.logs.records import STREAMS, Ack, LogLine, LogPage, Source, Stream, to_microseconds
from store.logs.rows import Sizes, append_blocks, lock_state
from store.logs.segments import SEGMENT_SPAN, seal
from store.tables import Instance, LogState, LogStream

__all__ = ["Ack", "LogLine", "LogPage", "LogStore", "open_blob_store"]

UPKEEP_INTERVAL_SECONDS = 0.5

_SEAL_AT_ROWS = 512
_SWEEP_EVERY = timedelta(minutes=1)
_BATCH = 100

logger = structlog.get_logger(__name__)


class LogStore:
    """One per process. `max_bytes` and `retention_days` bound each job's log."""

    def __init__(
        self,
        db: Database,
        blobs: BlobStore,
        clock: Clock,
        *,
        max_bytes: int = 104_857_600,
        retention_days: float = 7,
    ) -> None:
        self._db, self._blobs, self._clock = db, blobs, clock
        self._sizes = Sizes.of(max_bytes)
        self._retention = timedelta(days=retention_days)
        self._crowded: set[str] = set()
        """Jobs that this process appended to and that have enough hot lines to be sealed."""
        self._next_sweep_at: datetime | None = None

    def append_chunk(
        self,
        session: Session,
        instance: Instance,
        stream: str,
        offset: int,
        data: bytes,
        now: datetime,
        mask: OutputMask | None = None,
    ) -> Ack:
        """Stores the bytes of `stream` from `offset` on: those that are stored already are skipped, and a chunk that
        begins past them is refused (`Ack.gap`). The lines and the acknowledged offset are one transaction.

        `mask` takes the workload's secrets out before anything is stored.

        Raises ValueError for an unknown stream or a negative offset.
        """
        if offset < 0:
            raise ValueError(f"offset {offset} of {stream} of {instance.id} is negative")
        state = lock_state(session, instance.job_id)
        position = _position(session, instance, stream)
        fresh = data[position.acked_offset - offset :] if offset <= position.acked_offset else b""
        if fresh:
            maker = LineMaker.unpack(position.line_state)
            shown = fresh
            if mask is not None or position.held is not None:
                shown = _masked(position, fresh, mask)
            made = maker.feed(shown, now)
            position.acked_offset += len(fresh)
            self._store_user_lines(session, state, instance, position, maker, made, now)
        return Ack(position.acked_offset, gap=offset > position.acked_offset, fresh=len(fresh))

    def acked(self, session: Session, instance_id: str) -> dict[str, int]:
        """How many bytes of each stream are stored."""
        rows = session.exec(select(LogStream).where(LogStream.instance_id == instance_id)).all()
        return dict.fromkeys(STREAMS, 0) | {row.stream: row.acked_offset for row in rows}

    def finish_streams(self, session: Session, instance: Instance, now: datetime) -> None:
        """Stores the last lines that have no newline. Idempotent; bytes that come still later begin a line."""
        state = lock_state(session, instance.job_id)
        streams = select(LogStream).where(LogStream.instance_id == instance.id).order_by(col(LogStream.stream))
        for position in session.exec(streams).all():
            if position.line_state is not None:
                maker = LineMaker.unpack(position.line_state)
                made = MadeLines()
                if position.held is not None:
                    made, position.held = maker.feed(ending(position.held), now), None
                made.extend(maker.finish())
                self._store_user_lines(session, state, instance, position, maker, made, now)

    def append_system(
        self,
        session: Session,
        job_id: str,
        messages: Sequence[str],
        now: datetime,
        *,
        instance_rank: int | None = None,
    ) -> None:
        """Adds lines of the platform's own. Text of several lines becomes several lines."""
        made = MadeLines()
        for message in messages:
            # What a provider or a host says is as arbitrary as what a workload prints.
            maker = LineMaker()
            made.extend(maker.feed(message.encode("utf-8", "surrogatepass"), now))
            made.extend(maker.finish())
        self._store_lines(session, lock_state(session, job_id), made, "system", "stdout", instance_rank, now)

    async def page(
        self, job_id: str, *, source: str | None = None, ascending: bool = True, after: int | None = None, limit: int
    ) -> LogPage:
        """The next `limit` lines of a traversal whose last line had the number `after`; None begins one.

        Lines that are appended between pages break no traversal. Raises ValueError for a limit below 1.
        """
        return await read_page(
            self._db, self._blobs, job_id, source=source, ascending=ascending, after=after, limit=limit
        )

    async def seal(self, job_id: str) -> int:
        """Moves what is hot now into the blob store. Returns how many segments were made. `upkeep` does it in time for
        every log: calling it at the end of a job is allowed, and not needed."""
        return await seal(self._db, self._blobs, self._clock, job_id, self._sizes)

    async def enforce_retention(self, now: datetime) -> int:
        """Deletes lines whose time is over, and objects that nobody needs. Returns how many lines were deleted."""
        deleted = await retention.expire(self._db, now - self._retention, now)
        deleted += await retention.trim_oversized(self._db, self._sizes, now)
        await retention.sweep(self._db, self._blobs, now)
        return deleted

    async def upkeep(self, now: datetime) -> None:
        """What must happen in the background: due states of progress bars are shown, crowded and old hot chunks are
        sealed, doomed objects deleted. Cheap when there is nothing to do."""
        await self._show_progress(now)
        while self._crowded:
            await self.seal(self._crowded.pop())
        if self._next_sweep_at is None or now >= self._next_sweep_at:
            self._next_sweep_at = now + _SWEEP_EVERY
            jobs = await self._db.read(lambda session: _with_old_hot_lines(session, now - SEGMENT_SPAN))
            for job_id in jobs:
                await self.seal(job_id)
            if len(jobs) == _BATCH:
                self._next_sweep_at = now
            await retention.sweep(self._db, self._blobs, now)

    async def run_upkeep(self) -> None:
        """`upkeep`, twice a second until cancelled. A failure is logged, and tried again."""
        while True:
            try:
                await self.upkeep(self._clock())
            except Exception:
                logger.exception("log_upkeep_failed")
            await asyncio.sleep(UPKEEP_INTERVAL_SECONDS)

    async def _show_progress(self, now: datetime) -> None:
        due = select(LogStream.instance_id).where(col(LogStream.snapshot_due_at) <= now).limit(1)
        if await self._db.read(lambda session: session.exec(due).first()) is not None:
            while await self._db.write(lambda session: self._show_due(session, now)) == _BATCH:
                pass

    def _show_due(self, session: Session, now: datetime) -> int:
        """Shows the next due snapshots, and returns how many streams they were of.

        Jobs are locked in one order everywhere, so that no two of us wait for each other.
        """
        due = (
            select(LogStream, Instance)
            .join(Instance, col(Instance.id) == LogStream.instance_id)
            .where(col(LogStream.snapshot_due_at) <= now)
            .order_by(col(LogStream.job_id))
            .limit(_BATCH)
        )
        rows = session.exec(due).all()
        for seen, instance in rows:
            state = lock_state(session, instance.job_id)
            position = session.get_one(LogStream, (seen.instance_id, seen.stream), populate_existing=True)
            maker = LineMaker.unpack(position.line_state)
            self._store_user_lines(session, state, instance, position, maker, maker.tick(now), now)
        return len(rows)

    def _store_user_lines(
        self,
        session: Session,
        state: LogState,
        instance: Instance,
        position: LogStream,
        maker: LineMaker,
        made: MadeLines,
        now: datetime,
    ) -> None:
        position.line_state = maker.pack()
        position.snapshot_due_at = maker.snapshot_due_at
        session.add(position)
        self._store_lines(session, state, made, "user", cast(Stream, position.stream), instance.rank, now)

    def _store_lines(
        self,
        session: Session,
        state: LogState,
        made: MadeLines,
        source: Source,
        stream: Stream,
        rank: int | None,
        now: datetime,
    ) -> None:
        like = Run(0, to_microseconds(now), source, stream, rank)
        append_blocks(session, state, into_blocks(made, like, self._sizes.block), now, self._sizes)
        if state.hot_bytes >= self._sizes.segment_bytes or state.hot_rows >= _SEAL_AT_ROWS:
            self._crowded.add(state.job_id)


def _masked(position: LogStream, fresh: bytes, mask: OutputMask | None) -> bytes:
    """What may be shown of the stream; its end may have to wait in the row."""
    if mask is None:
        shown, position.held = ending(position.held) + fresh, None
    else:
        shown, position.held = mask.feed(position.stream, position.held, fresh)
    return shown


def _position(session: Session, instance: Instance, stream: str) -> LogStream:
    """Where a stream stands. The lock on the job's log is the lock on its streams."""
    if stream not in STREAMS:
        raise ValueError(f"{stream!r} is no stream: stdout or stderr")
    position = session.get(LogStream, (instance.id, stream))
    return position or LogStream(instance_id=instance.id, stream=stream, job_id=instance.job_id)


def _with_old_hot_lines(session: Session, cutoff: datetime) -> Sequence[str]:
    return session.exec(select(LogState.job_id).where(col(LogState.hot_since) <= cutoff).limit(_BATCH)).all()
