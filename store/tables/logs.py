"""The log store: counters, chunks, objects, streams."""

from datetime import datetime

from sqlalchemy import BigInteger, Column, Index
from sqlmodel import Field, SQLModel

from store.tables import fields


class LogState(SQLModel, table=True):
    """Counters of a job's log, so that totals never need a COUNT; its row lock orders everything that changes the log.

    `next_seq` is the next line's number. Lines, bytes and hot counters are of what is still kept.
    """

    job_id: str = Field(primary_key=True)
    next_seq: int = Field(default=1, sa_column=Column(BigInteger, nullable=False))
    user_lines: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    system_lines: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    stored_bytes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    """Text plus 400 bytes a line."""
    hot_rows: int = 0
    hot_bytes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    """What of `stored_bytes` is not sealed yet."""
    hot_since: datetime | None = fields.time(index=True)
    """No hot line is older; None when all are sealed."""
    trimmed_lines: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    trimmed_through: datetime | None = fields.time()
    """The time of the newest deleted line; None while none was deleted."""


class LogChunk(SQLModel, table=True):
    """A run of consecutive lines: hot (one block in `data`) or sealed (blocks of the object that `segment` names)."""

    __table_args__ = (Index("ix_logchunk_job_seq", "job_id", "first_seq", unique=True),)

    id: int | None = fields.serial()
    job_id: str
    first_seq: int = Field(sa_column=Column(BigInteger, nullable=False))
    line_count: int
    user_lines: int
    """How many of `line_count` are the workload's."""
    byte_count: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Text plus 400 bytes a line."""
    first_at: datetime = fields.time(nullable=False)
    last_at: datetime = fields.time(nullable=False, index=True)
    data: bytes | None = fields.blob()
    segment: str | None = None
    blocks: list[list[int]] | None = fields.json()
    """Of a sealed chunk: lines, user lines, offset and length in bytes of each block of its object."""


class LogBlob(SQLModel, table=True):
    """An object that may exist in the blob store without a chunk that names it: about to be written, or to be deleted.

    It is written before the object, so that no crash leaves an object that nobody knows.
    """

    segment: str = Field(primary_key=True)
    doomed: bool
    """False while a sealer writes it, who takes the row away with its commit. True: delete the object, then the row."""
    created_at: datetime = fields.time(nullable=False, index=True)


class LogStream(SQLModel, table=True):
    """Where one stream of one instance stands: how many bytes are acknowledged, and the unfinished line."""

    instance_id: str = Field(primary_key=True)
    stream: str = Field(primary_key=True)
    job_id: str
    acked_offset: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    line_state: bytes | None = fields.blob()
    """The line maker's state, as `domain.lines` packs it."""
    held: bytes | None = fields.blob()
    """Acknowledged bytes that the line maker has not seen, since they may begin a secret (`store.logs.output_mask`)."""
    snapshot_due_at: datetime | None = fields.time(index=True)
    """When the state of a progress bar must be shown although nothing more came; None when there is none."""
