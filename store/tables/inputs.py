"""What workflows are told, and what they wait to be told."""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from store.columns import Prose
from store.tables import fields


class InboxRow(SQLModel, table=True):
    """An input to a workflow, stored with the state change that caused it, delivered by `api.dispatcher`."""

    __tablename__ = "workflow_inbox"
    __table_args__ = (
        UniqueConstraint("job_id", "dedupe_key"),
        Index("ix_inbox_due", "delivered_at", "due_at", "id"),
    )

    id: int | None = fields.serial()
    job_id: str
    kind: str
    """`start`, `terminate`, `exit`, `price`, `capacity`; `budget`, whose `job_id` is a budget workflow's."""
    dedupe_key: str
    payload: dict[str, Any] = fields.json(nullable=False)
    created_at: datetime = fields.time(nullable=False)
    due_at: datetime = fields.time(nullable=False)
    delivered_at: datetime | None = fields.time()
    tries: int = 0
    last_error: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))


class SlotWaiter(SQLModel, table=True):
    """A job whose workflow waits to be told of a free slot; its message takes it out of the line."""

    __table_args__ = (Index("ix_slotwaiter_line", "job_created_at", "job_id"),)

    job_id: str = Field(primary_key=True)
    job_created_at: datetime = fields.time(nullable=False)
