"""Connections: accounts at providers that jobs may be run with."""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, UniqueConstraint
from sqlmodel import Field, SQLModel

from store.columns import Prose
from store.tables import fields


class Connection(SQLModel, table=True):
    """An account at a backend. It belongs to the cluster, an organization or a project; jobs see those of their
    ancestors."""

    __table_args__ = (UniqueConstraint("scope", "name"),)

    id: str = Field(primary_key=True)
    provider: str
    """`domain.backends.Backend.key`."""
    name: str
    scope: str = Field(index=True)
    """`cluster`, or the id of the organization or the project that it belongs to."""
    org_id: str | None = Field(default=None, index=True)
    """None: the cluster's."""
    project_id: str | None = None
    state: str
    """`store.connections.ConnectionState`."""
    options: dict[str, Any] = fields.json(nullable=False)
    """What was filled in and is not secret."""
    credentials_sealed: bytes | None = fields.blob()
    """What is in use; None until a verification succeeded."""
    candidate_options: dict[str, Any] | None = fields.json()
    candidate_sealed: bytes | None = fields.blob()
    """What is to be verified before it takes the place of the others; emptied by the outcome, or after a while."""
    candidate_at: datetime | None = fields.time()
    revision: int = 0
    """Counts what was put into use: workers build the provider anew."""
    verification: int = 0
    """The number of the latest verification: an earlier one decides nothing."""
    verified_number: int = 0
    """The number of the latest verification that has an outcome."""
    verified_status: str | None = None
    """`ok`, `auth`, `permission`, `unreachable`, `rejected`, `in_use` where jobs live on what an edit takes away, or
    `expired` for one that had no outcome in time."""
    verified_message: str | None = Field(default=None, sa_column=Column(Prose, nullable=True))
    verified_at: datetime | None = fields.time()
    verified_hosts: list[dict[str, Any]] | None = fields.json()
    """What the verification found out of each host, where the backend is made of hosts: bounded, nothing secret."""
    created_at: datetime = fields.time(nullable=False)
    updated_at: datetime = fields.time(nullable=False)


class HostKey(SQLModel, table=True):
    """The first public key that a host of a connection showed: it has to show it ever after."""

    connection_id: str = Field(primary_key=True)
    address: str = Field(primary_key=True)
    """`host:port`."""
    key: str
    """In OpenSSH's form, without a comment."""
    first_seen_at: datetime = fields.time(nullable=False)
