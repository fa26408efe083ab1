"""Who did what."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlmodel import SQLModel

from store.append_only import append_only
from store.tables import fields


class AuditEntry(SQLModel, table=True):
    """One mutating operation, written in its own transaction; never changed and never deleted."""

    __table_args__ = (Index("ix_auditentry_org", "org_id", "id"), Index("ix_auditentry_resource", "resource", "id"))

    id: int | None = fields.serial()
    at: datetime = fields.time(nullable=False)
    org_id: str
    """Whose resource it is; a cluster admin's own organization may be another one."""
    key_id: str
    owner: str
    role: str
    on_behalf_of: str | None = None
    action: str
    """The kind of resource and what was done to it: `job.create`."""
    resource: str
    """The id of the resource."""
    request_id: str
    """As in the answer's `X-Request-Id` and the server's log."""
    data: dict[str, Any] | None = fields.json()
    """A few words more, such as new values. Never a secret."""


append_only(AuditEntry)
