"""Tenants: which organizations may spend, how much of theirs may live at once, their settings. For cluster admins."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from sqlmodel import Session

from api.auth import ClusterAdmin, OnBehalfOf, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.requests import Request as StrictRequest
from api.compute.requests import Slug
from api.compute.schemas import Page
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, page
from domain.errors import NotFound
from store import audit, tenants
from store.tables import Organization

router = APIRouter(prefix="/tenants", tags=["Tenants"])

MAX_CAP = 2**31 - 1
ORG_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}")
# Files beside the zones, which differ between machines: an API and a worker must count the same months.
_NO_ZONES = {"localtime", "posixrules"}

OrgIdParameter = Annotated[str, Path(examples=["org_9f2kQxWv3bT8mLpZ"])]


def _zone(name: str) -> str:
    try:
        if not _ZONE_NAME.fullmatch(name) or name in _NO_ZONES or name.startswith(("posix/", "right/")):
            raise ValueError(name)
        ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        raise ValueError("must be an IANA time zone such as UTC or Europe/Berlin") from None
    return name


def _cap(of: str) -> Any:
    return Field(default=None, ge=0, le=MAX_CAP, description=f"Live {of} at once; null is unlimited, 0 blocks.")


class TenantUpdate(StrictRequest):
    """What is absent stays as it is; of an organization that does not exist yet, it is not enabled and has no caps."""

    enabled: bool = Field(default=False, description="Whether it may create, rotate, scale and quote.")
    max_live_jobs: int | None = _cap("jobs")
    max_live_services: int | None = _cap("services")
    max_live_service_replicas: int | None = _cap("replicas of services")
    max_live_volumes: int | None = _cap("volumes")
    name: Slug | None = Field(default=None, description="For people, unique; null is its id.")
    time_zone: Annotated[str, StringConstraints(max_length=64), AfterValidator(_zone)] = Field(
        default="UTC", description="IANA name: the months of its budgets are this zone's."
    )
    provider_anonymity: bool = Field(
        default=False, description="Whether its own keys are not told which providers its jobs run on."
    )


class Tenant(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "org_id": "org_9f2kQxWv3bT8mLpZ",
                "name": "acme",
                "enabled": True,
                "max_live_jobs": 20,
                "max_live_services": None,
                "max_live_service_replicas": None,
                "max_live_volumes": 0,
                "time_zone": "Europe/Berlin",
                "provider_anonymity": False,
                "created_at": "2026-07-29T12:01:00Z",
                "updated_at": "2026-07-30T08:12:44.120Z",
            }
        }
    )

    org_id: str
    name: str
    enabled: bool
    max_live_jobs: int | None
    max_live_services: int | None
    max_live_service_replicas: int | None
    max_live_volumes: int | None
    time_zone: str
    provider_anonymity: bool
    created_at: datetime
    updated_at: datetime


class TenantList(Page):
    data: list[Tenant]


_EXAMPLE = {"enabled": True, "max_live_jobs": 20, "max_live_volumes": 0, "time_zone": "Europe/Berlin"}


@router.get("", summary="List tenants", response_model=TenantList, responses=errors(400, 403, 422))
async def list_tenants(
    _principal: ClusterAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    enabled: Annotated[bool | None, Query(description="Only those that are enabled, or are not.")] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """All organizations, by id."""
    traversal = Traversal(services.vault, "tenants", enabled)
    after = traversal.position(cursor)
    seen: dict[str, Any] = {"enabled": enabled, "name": None, "only": None}

    def read(session: Session) -> tuple[Sequence[Organization], int]:
        return tenants.listed(session, after=after, limit=limit + 1, **seen), tenants.count(session, **seen)

    found, total = await services.db.read(read)
    next_cursor = traversal.cursor(found[limit - 1].id) if len(found) > limit else None
    return json_response(page([tenant(organization) for organization in found[:limit]], next_cursor, total))


@router.get("/{org_id}", summary="Get a tenant", response_model=Tenant, responses=errors(403, 404))
async def get_tenant(
    org_id: OrgIdParameter, _principal: ClusterAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    require_org_id(org_id)
    return json_response(tenant(await services.db.read(lambda session: tenants.get(session, org_id))))


@router.put(
    "/{org_id}",
    summary="Put a tenant",
    response_model=Tenant,
    responses=errors(400, 403, 408, 409, 413, 422),
    openapi_extra=documented(TenantUpdate, _EXAMPLE),
)
async def put_tenant(
    request: Request, org_id: OrgIdParameter, principal: ClusterAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Changes an organization, or makes it with the id of your choice: 1 to 63 letters, digits, dots, dashes or
    underscores. Effective at once: a create that begins after the answer is judged by it. Repeating it changes nothing.
    """
    wanted, now = await parsed(request, TenantUpdate), services.clock()
    values = wanted.model_dump(include=wanted.model_fields_set)
    if "name" in values:
        values["name"] = wanted.name or org_id

    def put(session: Session) -> Organization:
        done = tenants.put(session, org_id, values, now)
        if done.created or done.changed:
            data = {**done.changed, **({"created": True} if done.created else {})}
            audit.write(session, principal, "tenant.put", org_id, now, data, org_id=org_id)
        return done.organization

    return json_response(tenant(await services.db.write(put)))


def require_org_id(org_id: str) -> None:
    """Raises NotFound for what cannot be an organization's id, before any database sees it."""
    if not ORG_ID.fullmatch(org_id):
        raise NotFound(f"no organization {org_id[:64]!r}")


def tenant(organization: Organization) -> dict[str, Any]:
    """The answer for an organization."""
    return {
        "org_id": organization.id,
        "name": organization.name,
        "enabled": organization.enabled,
        "max_live_jobs": organization.max_live_jobs,
        "max_live_services": organization.max_live_services,
        "max_live_service_replicas": organization.max_live_service_replicas,
        "max_live_volumes": organization.max_live_volumes,
        "time_zone": organization.time_zone,
        "provider_anonymity": organization.provider_anonymity,
        "created_at": organization.created_at,
        "updated_at": organization.updated_at,
    }
