"""Pages of a log, from the database's hot chunks and the blob store's sealed ones.

A line's number never changes and numbers are assigned in commit order, so the number of the last line seen is a cursor
that appending, sealing and trimming leave valid.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from domain.errors import HeadraceError
from store.db import Database
from store.logs.blobs import BlobMissing, BlobStore
from store.logs.blocks import decode, lines_of
from store.logs.records import LogLine, LogPage
from store.tables import LogChunk, LogState

_TRIES = 5
# Most pages need few chunks; many small ones are read in fewer queries.
_FIRST_BATCH = 16
_NEXT_BATCH = 1_000
_PAGE_CHARACTERS = 2 << 20
"""A page of long lines ends here, with fewer than its limit: an answer is in memory as long as its reader takes."""


class _Moved(HeadraceError):
    """A chunk was sealed or trimmed while it was read."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block: where it is, what it holds. Hot when `segment` is None."""

    first_seq: int
    lines: int
    matching: int
    chunk_id: int
    segment: str | None
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class _Query:
    job_id: str
    source: str | None
    ascending: bool
    after: int | None
    limit: int

    def reaches(self, piece: _Piece) -> bool:
        """Whether a line of the piece comes after the last one seen."""
        if self.after is None:
            return True
        last_seq = piece.first_seq + piece.lines - 1
        return last_seq > self.after if self.ascending else piece.first_seq < self.after

    def is_whole(self, piece: _Piece) -> bool:
        """Whether all its lines do."""
        if self.after is None:
            return True
        last_seq = piece.first_seq + piece.lines - 1
        return piece.first_seq > self.after if self.ascending else last_seq < self.after


@dataclass(slots=True)
class _Plan:
    """What a page is made of: pieces in the order of the traversal, more than enough for it."""

    pieces: list[_Piece] = field(default_factory=list)
    hot: dict[int, bytes] = field(default_factory=dict)
    counting_line: LogLine | None = None
    total: int = 0


async def read_page(
    db: Database, blobs: BlobStore, job_id: str, *, source: str | None, ascending: bool, after: int | None, limit: int
) -> LogPage:
    """The next `limit` lines after the number `after`, oldest or newest first; of one source if it is given. Fewer when
    they are very long."""
    if limit < 1:
        raise ValueError(f"a page of {limit} lines: at least 1")
    query = _Query(job_id, source, ascending, after, limit)
    for remaining in reversed(range(_TRIES)):
        try:
            plan = await db.read(lambda session: _plan(session, query))
            return await asyncio.to_thread(_collect, plan, query, blobs)
        except (_Moved, BlobMissing):
            # Sealing or trimming overtook us: what was here is elsewhere now, or gone.
            if not remaining:
                raise
    raise AssertionError("unreachable")


def _plan(session: Session, query: _Query) -> _Plan:
    state = session.get(LogState, query.job_id)
    if state is None:
        return _Plan()
    plan = _Plan(counting_line=_counting_line(state) if query.source != "user" else None)
    plan.total = (plan.counting_line is not None) + sum(
        count
        for source, count in (("user", state.user_lines), ("system", state.system_lines))
        if query.source in (None, source)
    )
    known = 0
    for piece in _pieces(session, query):
        if not piece.matching or not query.reaches(piece):
            continue
        plan.pieces.append(piece)
        known += piece.matching if query.is_whole(piece) else 0
        if known > query.limit:
            break
    hot = [piece.chunk_id for piece in plan.pieces if piece.segment is None]
    if hot:
        rows = session.exec(select(LogChunk.id, LogChunk.data).where(col(LogChunk.id).in_(hot))).all()
        plan.hot = {row_id: data for row_id, data in rows if row_id is not None and data is not None}
    return plan


def _counting_line(state: LogState) -> LogLine | None:
    if not state.trimmed_lines or state.trimmed_through is None:
        return None
    lines = "1 earlier line was" if state.trimmed_lines == 1 else f"{state.trimmed_lines} earlier lines were"
    message = f"{lines} deleted: a log keeps a limited size for a limited time"
    return LogLine(0, state.trimmed_through, "system", "stdout", message, None, False)


def _pieces(session: Session, query: _Query) -> Iterator[_Piece]:
    """The blocks of the job's chunks in the order of the traversal, from about where it stands."""
    columns = (
        LogChunk.id, LogChunk.first_seq, LogChunk.line_count, LogChunk.user_lines, LogChunk.segment, LogChunk.blocks
    )  # fmt: skip
    first_seq = col(LogChunk.first_seq)
    base = select(*columns).where(LogChunk.job_id == query.job_id)  # type: ignore[call-overload]
    if query.source is not None:
        matching = LogChunk.user_lines > 0 if query.source == "user" else LogChunk.line_count > LogChunk.user_lines
        base = base.where(matching)
    base = base.order_by(first_seq if query.ascending else first_seq.desc())
    if query.after is None:
        bound = None
    elif query.ascending:
        # The chunk that holds the last line seen, or else the first one after it.
        holder = select(func.max(first_seq)).where(LogChunk.job_id == query.job_id, first_seq <= query.after)
        bound = first_seq >= (session.exec(holder).one() or 0)
    else:
        bound = first_seq < query.after
    size = _FIRST_BATCH
    while True:
        rows = session.exec((base if bound is None else base.where(bound)).limit(size)).all()
        for row in rows:
            yield from _pieces_of(row, query)
        if len(rows) < size:
            return
        bound = first_seq > rows[-1].first_seq if query.ascending else first_seq < rows[-1].first_seq
        size = _NEXT_BATCH


def _pieces_of(row: Any, query: _Query) -> Sequence[_Piece]:
    """The blocks of one chunk, in the order of the traversal."""
    blocks = row.blocks or [[row.line_count, row.user_lines, 0, 0]]
    pieces = []
    first_seq = row.first_seq
    for lines, user_lines, offset, length in blocks:
        matching = {None: lines, "user": user_lines, "system": lines - user_lines}[query.source]
        pieces.append(_Piece(first_seq, lines, matching, row.id, row.segment, offset, length))
        first_seq += lines
    return pieces if query.ascending else pieces[::-1]


def _collect(plan: _Plan, query: _Query, blobs: BlobStore) -> LogPage:
    """Reads the plan's pieces until the page is full. Blocks: for the blob store."""
    found = (
        lines_of(decode(data), piece.first_seq, source=query.source, ascending=query.ascending, after=query.after)
        for piece, data in _with_data(plan, blobs)
    )
    lines: list[LogLine] = []
    characters, more = 0, False
    for line in chain.from_iterable(found):
        characters += len(line.message)
        more = len(lines) == query.limit or (characters > _PAGE_CHARACTERS and bool(lines))
        if more:
            break
        lines.append(line)
    if plan.counting_line is not None:
        if query.ascending and query.after is None:
            lines.insert(0, plan.counting_line)
        elif not query.ascending and query.after != 0 and not more:
            lines.append(plan.counting_line)
    more = more or len(lines) > query.limit
    del lines[query.limit :]
    return LogPage(lines, lines[-1].seq if more else None, plan.total)


def _with_data(plan: _Plan, blobs: BlobStore) -> Iterator[tuple[_Piece, bytes]]:
    """Each piece with its bytes: those of one object are fetched together."""
    for segment, group in groupby(plan.pieces, key=lambda piece: piece.segment):
        pieces = list(group)
        if segment is None:
            for piece in pieces:
                if piece.chunk_id not in plan.hot:
                    raise _Moved(f"log chunk {piece.chunk_id} is no longer in the database")
                yield piece, plan.hot[piece.chunk_id]
            continue
        start = min(piece.offset for piece in pieces)
        end = max(piece.offset + piece.length for piece in pieces)
        data = blobs.get(segment, start, end - start)
        for piece in pieces:
            yield piece, data[piece.offset - start :][: piece.length]
