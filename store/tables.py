"""The tables. One row is one fact; what can be derived is not stored, except counters that are documented as such.

Money is `ExactDecimal` in USD, times are UTC, sealed columns hold AES-GCM blobs of `store.vault`.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, UniqueConstraint
from sqlmodel import Field, SQLModel

from store.columns import ExactDecimal, Json, Prose, UtcDateTime


def _time(nullable: bool = True, index: bool = False) -> Any:
    return Field(default=None, sa_column=Column(UtcDateTime, nullable=nullable, index=index))


def _json(nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(Json, nullable=nullable))


def _blob() -> Any:
    return Field(default=None, sa_column=Column(LargeBinary, nullable=True))


# BIGINT on PostgreSQL; on SQLite only INTEGER PRIMARY KEY numbers itself.
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def _serial() -> Any:
    return Field(default=None, sa_column=Column(_SERIAL, primary_key=True, autoincrement=True))


class Installation(SQLModel, table=True):
    """One row: who this control plane is towards providers (`owner_id`)."""

    id: int = Field(default=1, sa_column=Column(Integer, primary_key=True, autoincrement=False))
    owner_id: str
    created_at: datetime = _time(nullable=False)


class Organization(SQLModel, table=True):
    id: str = Field(primary_key=True)
    name: str = Field(unique=True)
    enabled: bool = True
    """Fail-closed allowlist: creates of an organization that is not enabled get 403 `tenant_disabled`."""
    created_at: datetime = _time(nullable=False)


class Project(SQLModel, table=True):
    __table_args__ = (UniqueConstraint("org_id", "name"),)

    id: str = Field(primary_key=True)
    org_id: str = Field(index=True)
    name: str
    created_at: datetime = _time(nullable=False)


class ApiKey(SQLModel, table=True):
    """A key's SHA-256: the key itself has 256 random bits, so a slow hash would add nothing."""

    id: str = Field(primary_key=True)
    org_id: str = Field(index=True)
    project_id: str | None = None
    owner: str
    role: str
    """`member`, `org_admin`, `cluster_admin`, or `viewer`, which may read only."""
    key_hash: str = Field(unique=True)
    created_at: datetime = _time(nullable=False)
    revoked_at: datetime | None = _time()


class Job(SQLModel, table=True):
    __table_args__ = (
        Index("ix_job_org_created", "org_id", "created_at", "id"),
        Index("ix_job_org_state_created", "org_id", "state", "created_at", "id"),
    )

    id: str = Field(primary_key=True)
    org_id: str
    project_id: str
    key_id: str
    on_behalf_of: str | None = None
    name: str | None = None
    kind: str = "task"
    labels: dict[str, str] | None = _json()
    spec: dict[str, Any] = _json(nullable=False)
    """`domain.spec.JobSpec`, the public part of the request."""
    workload_sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """`domain.spec.Workload`: argv or script, env, references to secrets."""
    registry_sealed: bytes | None = _blob()
    """`registry_credential`; emptied by the terminal transition."""
    trace_context: dict[str, str] | None = _json()

    state: str = Field(index=True)
    reason_code: str | None = None
    reason_message: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    reason_details: dict[str, Any] | None = _json()
    exit_code: int | None = None
    created_at: datetime = _time(nullable=False)
    allocated_at: datetime | None = _time()
    """First allocation of any attempt: `max_runtime_hours` runs from here."""
    started_at: datetime | None = _time()
    terminal_at: datetime | None = _time(index=True)

    history_exported_at: datetime | None = _time()
    """When the workflow's history of a failed job was put into the file store."""
    workflow_started_at: datetime | None = _time()
    """Set once Temporal accepted the start; from then on a missing workflow is a case for `Recover`."""
    run_token: int = 0
    """Fencing: the number of the latest run that claimed the job. Writes of an older run are refused."""
    run_id: str | None = None


class JobEvent(SQLModel, table=True):
    """What happened, in order. `transition_id` makes a repeated writer's event appear once."""

    __table_args__ = (UniqueConstraint("job_id", "transition_id"), Index("ix_jobevent_job", "job_id", "seq"))

    seq: int | None = _serial()
    id: str = Field(unique=True)
    job_id: str
    transition_id: str
    type: str
    data: dict[str, Any] = _json(nullable=False)
    at: datetime = _time(nullable=False)


class Instance(SQLModel, table=True):
    """One attempt to run a job on one offer: written before the provider's create, final once absence is confirmed."""

    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_instance_open", "connection_id", "confirmed_absent_at"),
    )

    id: str = Field(primary_key=True)
    """The attempt id: the instance's name, tag or label at the provider."""
    job_id: str = Field(index=True)
    org_id: str
    number: int
    """1 for the first attempt of the job."""
    rank: int = 0
    connection_id: str
    provider: str
    offer: dict[str, Any] = _json(nullable=False)
    """`domain.offers.Offer` as it was taken."""
    handle: dict[str, Any] | None = _json()
    """`providers.base.Handle`; None until the provider's create answered."""
    state: str = Field(index=True)
    reason_code: str | None = None
    reason_message: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    endpoints: list[dict[str, Any]] | None = _json()

    created_at: datetime = _time(nullable=False)
    create_settled_at: datetime | None = _time()
    """When the provider's create call ended, whatever it answered. None: it may still be under way somewhere."""
    allocated_at: datetime | None = _time()
    hello_at: datetime | None = _time()
    started_at: datetime | None = _time()
    exited_at: datetime | None = _time()
    draining_at: datetime | None = _time()
    terminal_at: datetime | None = _time()
    delete_requested_at: datetime | None = _time()
    delete_accepted_at: datetime | None = _time()
    confirmed_absent_at: datetime | None = _time()
    last_contact_at: datetime | None = _time()

    nonce: str | None = None
    """Bound by the first fetch of the launch spec; another one is refused."""
    session_hash: str | None = Field(default=None, index=True)
    stop_requested_at: datetime | None = _time()
    """The agent's stop order: its poll for orders answers `stop` from then on."""
    exit_report: dict[str, Any] | None = _json()
    """`domain.outcome.ExitReport`; the first one counts."""
    drained_at: datetime | None = _time()
    """All bytes up to the exit report's offsets are stored."""

    stream_run_id: str | None = None
    stream_activity_id: str | None = None
    """The open `stream_logs` activity of this attempt: the exit completes it, contact heartbeats it."""


class PriceRecord(SQLModel, table=True):
    """From `since` on the instance costs `usd_per_hour`; append-only."""

    __table_args__ = (Index("ix_price_instance", "instance_id", "since"),)

    id: int | None = _serial()
    instance_id: str
    since: datetime = _time(nullable=False)
    usd_per_hour: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    source: str


class InboxRow(SQLModel, table=True):
    """An input to a workflow, stored with the state change that caused it, delivered by `api.dispatcher`."""

    __tablename__ = "workflow_inbox"
    __table_args__ = (
        UniqueConstraint("job_id", "dedupe_key"),
        Index("ix_inbox_due", "delivered_at", "due_at", "id"),
    )

    id: int | None = _serial()
    job_id: str
    kind: str
    """`start`, `terminate`, `exit`, `price`, `capacity`."""
    dedupe_key: str
    payload: dict[str, Any] = _json(nullable=False)
    created_at: datetime = _time(nullable=False)
    due_at: datetime = _time(nullable=False)
    delivered_at: datetime | None = _time()
    tries: int = 0
    last_error: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))


class SlotWaiter(SQLModel, table=True):
    """A job whose workflow waits to be told of a free slot; its message takes it out of the line."""

    __table_args__ = (Index("ix_slotwaiter_line", "job_created_at", "job_id"),)

    job_id: str = Field(primary_key=True)
    job_created_at: datetime = _time(nullable=False)


class IdempotencyKey(SQLModel, table=True):
    """Per (organization, operation with path ids, key); kept as long as the record that it made."""

    __table_args__ = (UniqueConstraint("org_id", "operation", "key"),)

    id: int | None = _serial()
    org_id: str
    operation: str
    key: str
    fingerprint: str
    """HMAC of the canonical JSON: it may cover a password."""
    resource_id: str
    created_at: datetime = _time(nullable=False)


class Liveness(SQLModel, table=True):
    """A stretch of time in which a process of `kind` (`api`, `worker`) was there to be reached."""

    __table_args__ = (Index("ix_liveness_kind_until", "kind", "until"),)

    id: str = Field(primary_key=True)
    kind: str
    since: datetime = _time(nullable=False)
    until: datetime = _time(nullable=False)


class OrphanSighting(SQLModel, table=True):
    """An instance at a provider that carries our owner id and that no row explains; deleted after a grace."""

    provider_id: str = Field(primary_key=True)
    connection_id: str = Field(primary_key=True)
    first_seen_at: datetime = _time(nullable=False)


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
    hot_since: datetime | None = _time(index=True)
    """No hot line is older; None when all are sealed."""
    trimmed_lines: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    trimmed_through: datetime | None = _time()
    """The time of the newest deleted line; None while none was deleted."""


class LogChunk(SQLModel, table=True):
    """A run of consecutive lines: hot (one block in `data`) or sealed (blocks of the object that `segment` names)."""

    __table_args__ = (Index("ix_logchunk_job_seq", "job_id", "first_seq", unique=True),)

    id: int | None = _serial()
    job_id: str
    first_seq: int = Field(sa_column=Column(BigInteger, nullable=False))
    line_count: int
    user_lines: int
    """How many of `line_count` are the workload's."""
    byte_count: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Text plus 400 bytes a line."""
    first_at: datetime = _time(nullable=False)
    last_at: datetime = _time(nullable=False, index=True)
    data: bytes | None = _blob()
    segment: str | None = None
    blocks: list[list[int]] | None = _json()
    """Of a sealed chunk: lines, user lines, offset and length in bytes of each block of its object."""


class LogBlob(SQLModel, table=True):
    """An object that may exist in the blob store without a chunk that names it: about to be written, or to be deleted.

    It is written before the object, so that no crash leaves an object that nobody knows.
    """

    segment: str = Field(primary_key=True)
    doomed: bool
    """False while a sealer writes it, who takes the row away with its commit. True: delete the object, then the row."""
    created_at: datetime = _time(nullable=False, index=True)


class LogStream(SQLModel, table=True):
    """Where one stream of one instance stands: how many bytes are acknowledged, and the unfinished line."""

    instance_id: str = Field(primary_key=True)
    stream: str = Field(primary_key=True)
    job_id: str
    acked_offset: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    line_state: bytes | None = _blob()
    """The line maker's state, as `domain.lines` packs it."""
    snapshot_due_at: datetime | None = _time(index=True)
    """When the state of a progress bar must be shown although nothing more came; None when there is none."""
