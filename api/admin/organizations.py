"""Organizations: create, list, get. What can be changed of one is changed as a tenant, `PUT /compute/tenants/{id}`."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlmodel import Session

from api.admin.scope import NO_NUL, scope
from api.auth import ClusterAdmin, OnBehalfOf, OrgAdmin, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.requests import Slug
from api.compute.tenants import OrgIdParameter, Tenant, TenantList, TenantUpdate, require_org_id, tenant
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, page
from domain.ids import new_id
from store import audit, tenants
from store.tables import Organization

router = APIRouter(prefix="/organizations", tags=["Organizations"])


class OrganizationCreate(TenantUpdate):
    """An organization; it may do nothing until it is enabled."""

    name: Slug = Field(description="Unique.")


_EXAMPLE = {"name": "acme", "enabled": True, "max_live_jobs": 20}


@router.post(
    "",
    summary="Create an organization",
    status_code=201,
    response_model=Tenant,
    responses=errors(400, 403, 408, 409, 413, 422),
    openapi_extra=documented(OrganizationCreate, _EXAMPLE),
)
async def create_organization(
    request: Request, principal: ClusterAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Makes an organization with an id of our choice and a project `default` (409 `organization_name_conflict`)."""
    wanted, now, org_id = await parsed(request, OrganizationCreate), services.clock(), new_id("org")
    values = wanted.model_dump(include=wanted.model_fields_set)

    def create(session: Session) -> Organization:
        made = tenants.put(session, org_id, values, now).organization
        audit.write(session, principal, "organization.create", org_id, now, values, org_id=org_id)
        return made

    return json_response(tenant(await services.db.write(create)), 201)


@router.get("", summary="List organizations", response_model=TenantList, responses=errors(400, 403, 422))
async def list_organizations(
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    name: Annotated[str | None, Query(max_length=63, pattern=NO_NUL, description="Only the one of this name.")] = None,
    enabled: Annotated[bool | None, Query(description="Only those that are enabled, or are not.")] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The organizations that the key administrates, by id."""
    seen: dict[str, Any] = {"enabled": enabled, "name": name, "only": scope(principal, None)}
    traversal = Traversal(services.vault, "organizations", *seen.values())
    after = traversal.position(cursor)

    def read(session: Session) -> tuple[Sequence[Organization], int]:
        return tenants.listed(session, after=after, limit=limit + 1, **seen), tenants.count(session, **seen)

    found, total = await services.db.read(read)
    next_cursor = traversal.cursor(found[limit - 1].id) if len(found) > limit else None
    return json_response(page([tenant(organization) for organization in found[:limit]], next_cursor, total))


@router.get("/{org_id}", summary="Get an organization", response_model=Tenant, responses=errors(403, 404))
async def get_organization(
    org_id: OrgIdParameter, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    require_org_id(org_id)
    scope(principal, org_id)
    return json_response(tenant(await services.db.read(lambda session: tenants.get(session, org_id))))
