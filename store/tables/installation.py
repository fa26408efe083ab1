"""What concerns this control plane as a whole."""

from datetime import datetime

from sqlalchemy import Column, Index, Integer
from sqlmodel import Field, SQLModel

from store.tables import fields


class Installation(SQLModel, table=True):
    """One row: who this control plane is towards providers (`owner_id`)."""

    id: int = Field(default=1, sa_column=Column(Integer, primary_key=True, autoincrement=False))
    owner_id: str
    created_at: datetime = fields.time(nullable=False)
    fence: str | None = None
    """`store.fence`: what is kept beside the database too, so that a copy or a backup of it is known as one."""
    fence_before: str | None = None
    fence_at: datetime | None = fields.time()
    fenced: bool = False
    """Whether this database is taken for a copy or a backup: unknown machines are told of, and not deleted."""
    fence_confirmed: bool = False
    """An administrator said that it is the one; the next reconciliation goes by it."""


class Liveness(SQLModel, table=True):
    """A stretch of time in which a process of `kind` (`api`, `worker`) was there to be reached."""

    __table_args__ = (Index("ix_liveness_kind_until", "kind", "until"),)

    id: str = Field(primary_key=True)
    kind: str
    since: datetime = fields.time(nullable=False)
    until: datetime = fields.time(nullable=False)


class AgentScript(SQLModel, table=True):
    """An agent's text that machines are told to fetch by its digest. Written once, and kept: there is one a version."""

    sha256: str = Field(primary_key=True)
    text: str
    kept_at: datetime = fields.time(nullable=False)


class OrphanSighting(SQLModel, table=True):
    """An instance at a provider that carries our owner id and that no row explains; deleted after a grace."""

    provider_id: str = Field(primary_key=True)
    connection_id: str = Field(primary_key=True)
    first_seen_at: datetime = fields.time(nullable=False)


class ConnectionSweep(SQLModel, table=True):
    """How the reconciliations of a connection went; one row each."""

    connection_id: str = Field(primary_key=True)
    provider: str
    began_at: datetime = fields.time(nullable=False)
    """The first one: until a list was read, how long none could be."""
    read_at: datetime | None = fields.time()
    """The last time that the provider's list could be read."""
    orphans_deleted: int = 0
    """So far: machines that no row explained, and whose deletion was asked for."""
    missing: int = 0
    """In the last list: machines that should be in it and are not."""
