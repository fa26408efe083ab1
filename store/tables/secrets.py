"""Stored secrets, and which live jobs use them."""

from datetime import datetime

from sqlalchemy import Column, Index, LargeBinary, UniqueConstraint
from sqlmodel import Field, SQLModel

from store.tables import fields


class Secret(SQLModel, table=True):
    """A named set of values of an organization. Only the newest version is kept."""

    __table_args__ = (
        UniqueConstraint("org_id", "name"),
        Index("ix_secret_org_created", "org_id", "created_at", "id"),
    )

    id: str = Field(primary_key=True)
    org_id: str
    name: str
    key_names: list[str] = fields.json(nullable=False)
    version: int
    """1, and one more with each rotation."""
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """The values by their keys, as JSON; the context names id and version."""
    expires_at: datetime | None = fields.time()
    """From then on it resolves for no new launch; None is never."""
    key_id: str
    """The API key that created it."""
    on_behalf_of: str | None = None
    created_at: datetime = fields.time(nullable=False)
    updated_at: datetime = fields.time(nullable=False)
    """When the current version was written."""


class SecretUse(SQLModel, table=True):
    """A live job refers to keys of a secret: written with the job, deleted by its terminal transition."""

    __table_args__ = (Index("ix_secretuse_secret", "secret_id"),)

    job_id: str = Field(primary_key=True)
    secret_id: str = Field(primary_key=True)
    key_names: list[str] = fields.json(nullable=False)


class RetiredKey(SQLModel, table=True):
    """What is left of a master key that sealed things once: enough to compare fingerprints that name it."""

    key_id: str = Field(primary_key=True)
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """The key of its fingerprints."""
    retired_at: datetime = fields.time(nullable=False)
