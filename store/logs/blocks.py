"""The block: some consecutive lines, compressed together; the unit in which lines are stored and read.

A block is a zstd frame (with checksum) around: the length of the header (4 bytes, little endian), the header, and the
texts joined by newlines, which no text contains. The header is a JSON list of runs: lines that share everything but
their text. Blocks are joined and cut without touching their lines.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson
import zstandard

from domain.errors import HeadraceError
from domain.lines import MadeLines
from store.logs.records import LINE_OVERHEAD_BYTES, LogLine, Source, Stream, from_microseconds

_HEADER_LENGTH_BYTES = 4
# Above any block that is written: one row of 64 KiB may be three times that as U+FFFD, and the headers of many runs.
_MAX_BLOCK_BYTES = 64 << 20


class CorruptBlock(HeadraceError):
    """Stored log bytes that are not a block, or that a checksum disproves."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` lines that came together. `continued` holds the indexes within the run of lines that go on."""

    count: int
    at_microseconds: int
    source: Source
    stream: Stream
    rank: int | None
    continued: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Lines in order, not compressed: `body` is their texts in UTF-8, joined by newlines."""

    runs: tuple[Run, ...]
    body: bytes

    @property
    def line_count(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def user_lines(self) -> int:
        return sum(run.count for run in self.runs if run.source == "user")

    @property
    def counted_bytes(self) -> int:
        """Text plus 400 bytes a line; the newlines between the texts are not text."""
        return len(self.body) + 1 + (LINE_OVERHEAD_BYTES - 1) * self.line_count - (not self.runs)


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """A block holds at most so many lines and bytes of text, or one line that is longer."""

    lines: int
    text_bytes: int


def into_blocks(made: MadeLines, like: Run, limits: BlockLimits) -> Iterator[Block]:
    """Cuts new lines into blocks of one run each; `like` says what the lines share, its count and flags aside."""
    for start in range(0, len(made.texts), limits.lines):
        yield from _cut(made, start, min(start + limits.lines, len(made.texts)), like, limits)


def _cut(made: MadeLines, start: int, end: int, like: Run, limits: BlockLimits) -> Iterator[Block]:
    body = "\n".join(made.texts[start:end]).encode()
    if len(body) > limits.text_bytes and end - start > 1:
        middle = (start + end) // 2
        yield from _cut(made, start, middle, like, limits)
        yield from _cut(made, middle, end, like, limits)
        return
    continued = tuple(index - start for index in made.continued if start <= index < end)
    yield Block((Run(end - start, like.at_microseconds, like.source, like.stream, like.rank, continued),), body)


def join(blocks: Sequence[Block]) -> Block:
    """One block with the lines of all."""
    return Block(tuple(run for block in blocks for run in block.runs), b"\n".join(block.body for block in blocks))


def lines_of(
    block: Block, first_seq: int, *, source: str | None, ascending: bool, after: int | None
) -> Iterator[LogLine]:
    """The lines of a block whose first one has the number `first_seq`, in the order of a traversal that has seen
    `after`; only those of `source` if it is given."""
    texts = block.body.decode().split("\n")
    if len(texts) != block.line_count:
        raise CorruptBlock(f"a block of {block.line_count} lines holds {len(texts)} texts")
    starts = accumulate((run.count for run in block.runs), initial=0)
    runs = list(zip(starts, block.runs, strict=False))
    for start, run in runs if ascending else reversed(runs):
        if source is not None and run.source != source:
            continue
        low, high = start, start + run.count
        if after is not None:
            low, high = (max(low, after + 1 - first_seq), high) if ascending else (low, min(high, after - first_seq))
        at, continued = from_microseconds(run.at_microseconds), frozenset(run.continued)
        for index in range(low, high) if ascending else range(high - 1, low - 1, -1):
            text, goes_on = texts[index], index - start in continued
            yield LogLine(first_seq + index, at, run.source, run.stream, text, run.rank, goes_on)


_local = threading.local()


def encode(block: Block, level: int) -> bytes:
    """Compressed: 1 is the fastest level."""
    # A compressor must not be shared between threads, and is dear to make.
    compressors: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = zstandard.ZstdCompressor(level=level, write_checksum=True)
    header = orjson.dumps(
        [(run.count, run.at_microseconds, run.source, run.stream, run.rank, run.continued) for run in block.runs]
    )
    length = len(header).to_bytes(_HEADER_LENGTH_BYTES, "little")
    return compressors[level].compress(length + header + block.body)


def decode(data: bytes) -> Block:
    """What `encode` was given. Raises CorruptBlock."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= _MAX_BLOCK_BYTES:
            raise CorruptBlock(f"a block claims to hold {size} bytes")
        raw = zstandard.ZstdDecompressor().decompress(data)
        end = _HEADER_LENGTH_BYTES + int.from_bytes(raw[:_HEADER_LENGTH_BYTES], "little")
        runs = tuple(
            Run(count, at, source, stream, rank, tuple(continued))
            for count, at, source, stream, rank, continued in orjson.loads(raw[_HEADER_LENGTH_BYTES:end])
        )
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        raise CorruptBlock(f"{len(data)} bytes are not a block of log lines: {error}") from error
    return Block(runs, raw[end:])
