"""Sealing: hot chunks become one compressed object in the blob store, and one row that says where its blocks are.

The order makes every crash harmless: a row that announces the object, the object, then one transaction that swaps the
chunks for the sealed one and takes the announcement away. Lines that come meanwhile are later chunks, and stay hot.
"""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, update
from sqlmodel import Session, col, select

from domain.clock import Clock
from store.db import Database
from store.logs.blobs import BlobStore
from store.logs.blocks import Block, BlockLimits, decode, encode, join
from store.logs.rows import LIGHT, Sizes, lock_state
from store.tables import LogBlob, LogChunk, LogState

SEGMENT_SPAN = timedelta(hours=6)
"""No segment holds lines further apart: by so much a line may outlive its time, which ends by whole segments."""

_MAX_CHUNKS = 4_096
_SEALED_LEVEL = 3


@dataclass(frozen=True, slots=True)
class _Batch:
    """Consecutive hot chunks that become one segment, as they were read."""

    chunks: Sequence[LogChunk]
    data: Sequence[bytes]
    """The block of each chunk."""

    @property
    def ids(self) -> list[int | None]:
        return [chunk.id for chunk in self.chunks]

    @property
    def byte_count(self) -> int:
        return sum(chunk.byte_count for chunk in self.chunks)


async def seal(db: Database, blobs: BlobStore, clock: Clock, job_id: str, sizes: Sizes) -> int:
    """Seals what is hot now. Returns how many segments were made.

    Another sealer of the same job may win some of them; then those are its segments.
    """
    end = await db.read(lambda session: _next_seq(session, job_id))
    sealed = 0
    while (batch := await db.read(lambda session: _take(session, job_id, end, sizes))) is not None:
        name = f"{job_id}/{batch.chunks[0].first_seq:012d}-{secrets.token_hex(6)}"
        sealed += await _seal_batch(db, blobs, clock, batch, name, sizes.block)
    return sealed


def _next_seq(session: Session, job_id: str) -> int:
    state = session.get(LogState, job_id)
    return state.next_seq if state else 0


def _take(session: Session, job_id: str, end: int, sizes: Sizes) -> _Batch | None:
    """The oldest hot chunks that fit into a segment, at least one; None when none is left before `end`."""
    hot = (
        select(LogChunk)
        .options(*LIGHT)
        .where(LogChunk.job_id == job_id, col(LogChunk.segment).is_(None), LogChunk.first_seq < end)
        .order_by(col(LogChunk.first_seq))
        .limit(_MAX_CHUNKS)
    )
    taken: list[LogChunk] = []
    size = 0
    for chunk in session.exec(hot):
        size += chunk.byte_count
        if taken and (size > sizes.segment_bytes or chunk.last_at - taken[0].first_at > SEGMENT_SPAN):
            break
        taken.append(chunk)
    if not taken:
        return None
    blocks = (
        select(LogChunk.data)
        .where(col(LogChunk.id).in_([chunk.id for chunk in taken]), col(LogChunk.data).is_not(None))
        .order_by(col(LogChunk.first_seq))
    )
    return _Batch(taken, [data for data in session.exec(blocks) if data is not None])


async def _seal_batch(
    db: Database, blobs: BlobStore, clock: Clock, batch: _Batch, name: str, limits: BlockLimits
) -> bool:
    """Makes one segment; False when other sealers or trimming changed the chunks meanwhile."""
    if len(batch.data) != len(batch.chunks):
        return False
    segment, index = await asyncio.to_thread(_encode, batch.data, limits)
    now = clock()
    await db.write(lambda session: session.add(LogBlob(segment=name, doomed=False, created_at=now)))
    await asyncio.to_thread(blobs.put, name, segment)
    return await db.write(lambda session: _swap(session, batch, name, index))


def _encode(data: Sequence[bytes], limits: BlockLimits) -> tuple[bytes, list[list[int]]]:
    """The object, and its index: lines, user lines, offset and length of each block."""
    parts: list[bytes] = []
    index: list[list[int]] = []
    offset = 0
    for blocks in _grouped([decode(block) for block in data], limits):
        block = join(blocks)
        part = encode(block, _SEALED_LEVEL)
        index.append([block.line_count, block.user_lines, offset, len(part)])
        parts.append(part)
        offset += len(part)
    return b"".join(parts), index


def _grouped(blocks: Sequence[Block], limits: BlockLimits) -> Iterator[list[Block]]:
    """Neighbours that together stay within the limits of a block."""
    group: list[Block] = []
    lines = size = 0
    for block in blocks:
        lines += block.line_count
        size += len(block.body)
        if group and (lines > limits.lines or size > limits.text_bytes):
            yield group
            group, lines, size = [], block.line_count, len(block.body)
        group.append(block)
    yield group


def _swap(session: Session, batch: _Batch, name: str, index: list[list[int]]) -> bool:
    chunks = batch.chunks
    state = lock_state(session, chunks[0].job_id)
    still_hot = select(func.count()).where(col(LogChunk.id).in_(batch.ids), col(LogChunk.segment).is_(None))
    announced = session.get(LogBlob, name, with_for_update=True)
    if announced is None or announced.doomed or session.exec(still_hot).one() != len(chunks):
        session.exec(update(LogBlob).where(col(LogBlob.segment) == name).values(doomed=True))
        return False
    session.exec(delete(LogChunk).where(col(LogChunk.id).in_(batch.ids)))
    session.exec(delete(LogBlob).where(col(LogBlob.segment) == name))
    session.add(
        LogChunk(
            job_id=chunks[0].job_id,
            first_seq=chunks[0].first_seq,
            line_count=sum(chunk.line_count for chunk in chunks),
            user_lines=sum(chunk.user_lines for chunk in chunks),
            byte_count=batch.byte_count,
            first_at=chunks[0].first_at,
            last_at=chunks[-1].last_at,
            segment=name,
            blocks=index,
        )
    )
    state.hot_rows -= len(chunks)
    state.hot_bytes -= batch.byte_count
    # What is still hot came later than the last line that was sealed.
    state.hot_since = chunks[-1].last_at if state.hot_rows else None
    session.add(state)
    return True
