"""Jobs, their events and their attempts."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, Index, LargeBinary, UniqueConstraint, text
from sqlmodel import Field, SQLModel

from store.append_only import append_only
from store.columns import ExactDecimal, Prose
from store.tables import fields


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
    labels: dict[str, str] | None = fields.json()
    spec: dict[str, Any] = fields.json(nullable=False)
    """`domain.spec.JobSpec`, the public part of the request."""
    workload_sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """`domain.spec.Workload`: argv or script, env, references to secrets."""
    registry_sealed: bytes | None = fields.blob()
    """`registry_credential`; emptied by the terminal transition."""
    uses_secrets: bool = False
    """Whether `SecretUse` has rows of it, while it is live."""
    trace_context: dict[str, str] | None = fields.json()

    state: str = Field(index=True)
    reason_code: str | None = None
    reason_message: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    reason_details: dict[str, Any] | None = fields.json()
    exit_code: int | None = None
    created_at: datetime = fields.time(nullable=False)
    allocated_at: datetime | None = fields.time()
    """First allocation of any attempt: `max_runtime_hours` runs from here."""
    started_at: datetime | None = fields.time()
    terminal_at: datetime | None = fields.time(index=True)

    history_exported_at: datetime | None = fields.time()
    """When the workflow's history of a failed job was put into the file store."""
    workflow_started_at: datetime | None = fields.time()
    """Set once Temporal accepted the start; from then on a missing workflow is a case for `Recover`."""
    run_token: int = 0
    """Fencing: the number of the latest run that claimed the job. Writes of an older run are refused."""
    run_id: str | None = None


class JobEvent(SQLModel, table=True):
    """What happened, in order. `transition_id` makes a repeated writer's event appear once."""

    __table_args__ = (UniqueConstraint("job_id", "transition_id"), Index("ix_jobevent_job", "job_id", "seq"))

    seq: int | None = fields.serial()
    id: str = Field(unique=True)
    job_id: str
    transition_id: str
    type: str
    data: dict[str, Any] = fields.json(nullable=False)
    at: datetime = fields.time(nullable=False)


class Instance(SQLModel, table=True):
    """One attempt to run a job on one offer: written before the provider's create, final once absence is confirmed."""

    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_instance_open", "connection_id", "confirmed_absent_at"),
        Index("ix_instance_org_absent", "org_id", "confirmed_absent_at"),
        Index(
            "ux_instance_exclusive",
            "exclusive_ref",
            unique=True,
            sqlite_where=text("confirmed_absent_at IS NULL"),
            postgresql_where=text("confirmed_absent_at IS NULL"),
        ),
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
    offer: dict[str, Any] = fields.json(nullable=False)
    """`domain.offers.Offer` as it was taken."""
    exclusive_ref: str | None = None
    """The offer's `ref` where it is one machine: no two open attempts have it."""
    handle: dict[str, Any] | None = fields.json()
    """`providers.base.Handle`; None until the provider's create answered."""
    state: str = Field(index=True)
    reason_code: str | None = None
    reason_message: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    last_words: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    """The end of its console or log, where it did not come up; masked."""
    endpoints: list[dict[str, Any]] | None = fields.json()
    ssh_host_key: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    """The public key of its sshd, which its agent made and told; None where none serves."""

    created_at: datetime = fields.time(nullable=False)
    create_settled_at: datetime | None = fields.time()
    """When the provider's create call ended, whatever it answered. None: it may still be under way somewhere."""
    allocated_at: datetime | None = fields.time()
    hello_at: datetime | None = fields.time()
    started_at: datetime | None = fields.time()
    exited_at: datetime | None = fields.time()
    draining_at: datetime | None = fields.time()
    terminal_at: datetime | None = fields.time()
    delete_requested_at: datetime | None = fields.time()
    delete_accepted_at: datetime | None = fields.time()
    confirmed_absent_at: datetime | None = fields.time()
    last_contact_at: datetime | None = fields.time()

    nonce: str | None = None
    """Bound by the first fetch of the launch spec; another one is refused."""
    session_hash: str | None = Field(default=None, index=True)
    secrets_sealed: bytes | None = fields.blob()
    """The secrets that it was launched with (`store.launch_secrets`), for masking its output; emptied once it is
    gone."""
    stop_requested_at: datetime | None = fields.time()
    """The agent's stop order: its poll for orders answers `stop` from then on."""
    exit_report: dict[str, Any] | None = fields.json()
    """`domain.outcome.ExitReport`; the first one counts."""
    drained_at: datetime | None = fields.time()
    """All bytes up to the exit report's offsets are stored."""

    stream_run_id: str | None = None
    stream_activity_id: str | None = None
    """The open `stream_logs` activity of this attempt: the exit completes it, contact heartbeats it."""


class PriceRecord(SQLModel, table=True):
    """From `since` on the instance costs `usd_per_hour`; append-only."""

    __table_args__ = (Index("ix_price_instance", "instance_id", "since"),)

    id: int | None = fields.serial()
    instance_id: str
    since: datetime = fields.time(nullable=False)
    usd_per_hour: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    source: str


class IdempotencyKey(SQLModel, table=True):
    """Per (organization, operation with path ids, key); kept as long as the record that it made."""

    __table_args__ = (UniqueConstraint("org_id", "operation", "key"),)

    id: int | None = fields.serial()
    org_id: str
    operation: str
    key: str
    fingerprint: str
    """HMAC of the canonical JSON: it may cover a password."""
    resource_id: str
    created_at: datetime = fields.time(nullable=False)


append_only(PriceRecord)
