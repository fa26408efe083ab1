"""What the log store hands out, and how much a line counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

Source = Literal["user", "system"]
Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")

LINE_OVERHEAD_BYTES = 400
"""A line counts as its text plus this."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One row of a job's log. `seq` grows with ingest and is never used twice; 0 is the line that counts the deleted
    ones. `instance_rank` is None on lines that no run wrote. `continued`: the line goes on in the next row of its
    stream."""

    seq: int
    timestamp: datetime
    source: Source
    stream: Stream
    message: str
    instance_rank: int | None
    continued: bool


@dataclass(frozen=True, slots=True)
class LogPage:
    """`next_after` continues the traversal; None at the end of what exists now. `total` counts under the filter."""

    lines: Sequence[LogLine]
    next_after: int | None
    total: int


@dataclass(frozen=True, slots=True)
class Ack:
    """How many bytes of a stream are stored, and how many of them are new. `gap`: the chunk began past that and was
    refused."""

    offset: int
    gap: bool
    fresh: int = 0


def to_microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def from_microseconds(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)
