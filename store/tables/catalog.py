"""What connections offer, as their last good poll found it, and how they do."""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Index
from sqlmodel import Field, SQLModel

from store.columns import Prose
from store.tables import fields


class OfferRow(SQLModel, table=True):
    """An offer of a connection's latest snapshot. When it was observed stands in `ConnectionHealth`, so that a poll
    writes only what has changed."""

    __table_args__ = (
        # Filters and counts are answered from the index alone; the offers themselves are read for one page.
        Index(
            "ix_offerrow_listing",
            "connection_id",
            "offer_id",
            "accelerator",
            "gpu_count",
            "interconnect",
            "region",
            "available",
        ),
        Index("ix_offerrow_hardware", "accelerator", "gpu_count", "connection_id", "offer_id"),
    )

    connection_id: str = Field(primary_key=True)
    offer_id: str = Field(primary_key=True)
    accelerator: str
    gpu_count: int
    interconnect: str | None = None
    region: str
    available: bool
    offer: dict[str, Any] = fields.json(nullable=False)
    """`domain.offers.Offer`, without `observed_at`."""
    digest: str
    """Of `offer`: tells whether a poll found it changed."""


class ConnectionHealth(SQLModel, table=True):
    """How a connection does: its latest poll, and whether a create was refused for its account's sake."""

    connection_id: str = Field(primary_key=True)
    provider: str
    capabilities: dict[str, Any] | None = fields.json()
    """`domain.offers.Capabilities`; None until a poll succeeded."""
    last_poll_at: datetime | None = fields.time()
    """None: only a create told of it so far."""
    observed_at: datetime | None = fields.time()
    """The last poll that succeeded: the age of the offers."""
    latency_ms: int = 0
    offer_count: int = 0
    error_kind: str | None = None
    """`domain.errors.ProviderError.kind` of the last poll, or of what blocks the connection; None when all is well."""
    error: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    blocked: bool = False
    """Credentials, permissions or billing were refused: nothing is asked of it until a poll finds it well again."""
