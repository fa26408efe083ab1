"""Projects of an organization."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from api.admin.scope import OrgIdQuery, scope, target
from api.auth import OnBehalfOf, OrgAdmin, Reader, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.requests import Request as StrictRequest
from api.compute.requests import Slug
from api.compute.schemas import Page
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, page
from store import access, audit, directory, tenants
from store.tables import Project as ProjectRow

router = APIRouter(prefix="/projects", tags=["Projects"])


class ProjectCreate(StrictRequest):
    """A project: what a key, a budget or a job can belong to inside an organization."""

    name: Slug = Field(description="Unique in the organization.")
    org_id: Slug | None = Field(default=None, description="Absent or null is the key's own organization.")


class Project(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "prj_9f2kQxWv3bT8mLpZ",
                "org_id": "org_9f2kQxWv3bT8mLpZ",
                "name": "research",
                "created_at": "2026-07-29T12:01:00Z",
            }
        }
    )

    id: str
    org_id: str
    name: str
    created_at: datetime


class ProjectList(Page):
    data: list[Project]


@router.post(
    "",
    summary="Create a project",
    status_code=201,
    response_model=Project,
    responses=errors(400, 403, 404, 408, 409, 413, 422),
    openapi_extra=documented(ProjectCreate, {"name": "research"}),
)
async def create_project(
    request: Request, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Makes a project (409 `project_name_conflict`)."""
    wanted, now = await parsed(request, ProjectCreate), services.clock()
    org_id = target(principal, wanted.org_id)

    def create(session: Session) -> ProjectRow:
        tenants.get(session, org_id)
        made = access.create_project(session, org_id, wanted.name, now)
        audit.write(session, principal, "project.create", made.id, now, {"name": made.name}, org_id=org_id)
        return made

    return json_response(_render(await services.db.write(create)), 201)


@router.get("", summary="List projects", response_model=ProjectList, responses=errors(400, 404, 422))
async def list_projects(
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Projects by name: those of the organization, or the one to which the key is limited."""
    of, only = scope(principal, org_id), principal.project_id
    traversal = Traversal(services.vault, "projects", of, only)
    position = traversal.position(cursor)
    after = None if position is None else (position[0], position[1])

    def read(session: Session) -> tuple[Sequence[ProjectRow], int]:
        found = directory.projects(session, of, only, after=after, limit=limit + 1)
        return found, directory.count_projects(session, of, only)

    found, total = await services.db.read(read)
    shown = found[:limit]
    next_cursor = traversal.cursor([shown[-1].name, shown[-1].id]) if len(found) > limit else None
    return json_response(page([_render(project) for project in shown], next_cursor, total))


def _render(project: ProjectRow) -> dict[str, Any]:
    return {"id": project.id, "org_id": project.org_id, "name": project.name, "created_at": project.created_at}
