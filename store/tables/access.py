"""Organizations, projects, API keys."""

from datetime import datetime

from sqlalchemy import UniqueConstraint
from sqlmodel import Field, SQLModel

from store.tables import fields


class Organization(SQLModel, table=True):
    id: str = Field(primary_key=True)
    name: str = Field(unique=True)
    enabled: bool = True
    """Fail-closed allowlist: creates of an organization that is not enabled get 403 `tenant_disabled`."""
    provider_anonymity: bool = False
    """Whether its keys, those of cluster admins excepted, are not told which providers its jobs run on."""
    max_live_jobs: int | None = None
    """Caps on what is not terminal, counted from the rows whenever one is made; None is unlimited, 0 blocks."""
    max_live_services: int | None = None
    max_live_service_replicas: int | None = None
    max_live_volumes: int | None = None
    time_zone: str = "UTC"
    """IANA name: the months of its budgets are this zone's."""
    created_at: datetime = fields.time(nullable=False)
    updated_at: datetime = fields.time(nullable=False)


class Project(SQLModel, table=True):
    __table_args__ = (UniqueConstraint("org_id", "name"),)

    id: str = Field(primary_key=True)
    org_id: str = Field(index=True)
    name: str
    created_at: datetime = fields.time(nullable=False)


class ApiKey(SQLModel, table=True):
    """A key's SHA-256: the key itself has 256 random bits, so a slow hash would add nothing."""

    id: str = Field(primary_key=True)
    org_id: str = Field(index=True)
    project_id: str | None = None
    owner: str
    name: str | None = None
    """For people."""
    role: str
    """`member`, `org_admin`, `cluster_admin`, or `viewer`, which may read only."""
    key_hash: str = Field(unique=True)
    created_at: datetime = fields.time(nullable=False)
    expires_at: datetime | None = fields.time()
    """From then on it is refused; None is never."""
    last_used_at: datetime | None = fields.time()
    """Coalesced: up to a minute late."""
    revoked_at: datetime | None = fields.time()
