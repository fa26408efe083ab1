"""The audit log: who did what, when, on whose behalf."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from api.admin.scope import NO_NUL, OrgIdQuery, scope
from api.auth import OnBehalfOf, OrgAdmin, ServicesOf
from api.compute.documentation import errors
from api.compute.moments import Moment
from api.compute.schemas import Page
from api.encoding import json_response, timestamp
from api.pagination import CursorParameter, Traversal, page
from store import audit

router = APIRouter(prefix="/audit", tags=["Audit"])


class AuditEntry(BaseModel):
    """One mutating operation; never changed and never deleted."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "aud_0000000000000412",
                "timestamp": "2026-07-29T12:01:00Z",
                "org_id": "org_9f2kQxWv3bT8mLpZ",
                "key_id": "key_9f2kQxWv3bT8mLpZ",
                "owner": "ada@example.org",
                "role": "member",
                "on_behalf_of": "end-user-7",
                "action": "job.create",
                "resource": "job_9f2kQxWv3bT8mLpZ",
                "request_id": "req_9f2kQxWv3bT8mLpZ",
                "data": {"project": "default"},
            }
        }
    )

    id: str
    timestamp: datetime
    org_id: str = Field(description="Whose resource it is.")
    key_id: str
    owner: str = Field(description="Of the key.")
    role: str
    on_behalf_of: str | None
    action: str
    resource: str
    request_id: str = Field(description="As in `X-Request-Id` of the answer.")
    data: dict[str, Any]


class AuditList(Page):
    data: list[AuditEntry]


@router.get("", summary="List audit entries", response_model=AuditList, responses=errors(400, 403, 404, 422))
async def list_audit_entries(
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    action: Annotated[
        str | None, Query(max_length=64, pattern=NO_NUL, description="Only this one, such as `job.create`.")
    ] = None,
    resource: Annotated[
        str | None, Query(max_length=128, pattern=NO_NUL, description="Only on the resource with this id.")
    ] = None,
    since: Annotated[Moment | None, Query(description="Only from this time on, RFC 3339.")] = None,
    until: Annotated[Moment | None, Query(description="Only before this time, RFC 3339.")] = None,
    order: Literal["asc", "desc"] = "desc",
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """Entries about the organization's resources, newest first; a cluster admin sees those of all organizations."""
    wanted = audit.Filter(scope(principal, org_id), action, resource, since, until)
    parts = (wanted.org_id, action, resource, timestamp(since), timestamp(until), order)
    traversal = Traversal(services.vault, "audit", *parts)
    position = traversal.position(cursor)

    def read(session: Session) -> tuple[list[audit.Entry], int]:
        found = audit.entries(session, wanted, ascending=order == "asc", after=position, limit=limit + 1)
        return found, audit.count(session, wanted)

    found, total = await services.db.read(read)
    next_cursor = traversal.cursor(found[limit - 1].id) if len(found) > limit else None
    return json_response(page([_render(entry) for entry in found[:limit]], next_cursor, total))


def _render(entry: audit.Entry) -> dict[str, Any]:
    return {
        "id": f"aud_{entry.id:016d}",
        "timestamp": entry.at,
        "org_id": entry.org_id,
        "key_id": entry.key_id,
        "owner": entry.owner,
        "role": entry.role,
        "on_behalf_of": entry.on_behalf_of,
        "action": entry.action,
        "resource": entry.resource,
        "request_id": entry.request_id,
        "data": entry.data or {},
    }
