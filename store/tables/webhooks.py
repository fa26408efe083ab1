"""Webhooks: where an organization wants to be told, and the outbox of what it is told."""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Index, LargeBinary
from sqlmodel import Field, SQLModel

from store.columns import Prose
from store.tables import fields


class Webhook(SQLModel, table=True):
    id: str = Field(primary_key=True)
    org_id: str = Field(index=True)
    url: str
    events: list[str] = fields.json(nullable=False)
    """Types of `domain.notices.NoticeType`; empty: all."""
    enabled: bool = True
    secret_sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """What its deliveries are signed with."""
    created_at: datetime = fields.time(nullable=False)
    updated_at: datetime = fields.time(nullable=False)


class WebhookDelivery(SQLModel, table=True):
    """One event for one webhook, written in the transaction of what it tells, delivered by `api.webhook_delivery`."""

    __table_args__ = (
        Index("ix_webhookdelivery_due", "settled_at", "due_at"),
        Index("ix_webhookdelivery_webhook", "webhook_id", "created_at", "id"),
    )

    id: str = Field(primary_key=True)
    """Also in the body, so that a receiver knows a repeated delivery."""
    webhook_id: str
    org_id: str
    type: str
    data: dict[str, Any] = fields.json(nullable=False)
    state: str = "pending"
    """`pending`, `delivered`, `dead`."""
    created_at: datetime = fields.time(nullable=False)
    due_at: datetime = fields.time(nullable=False)
    settled_at: datetime | None = fields.time()
    """When it was delivered or given up; None while it is to be delivered."""
    tries: int = 0
    last_status: int | None = None
    last_error: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
