"""API keys: create, list, get, revoke. A key's token is in the answer to its creation and nowhere else."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from api.admin.scope import NO_NUL, OrgIdQuery, scope, target
from api.auth import OnBehalfOf, OrgAdmin, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.moments import Moment
from api.compute.requests import Name, Slug
from api.compute.requests import Request as StrictRequest
from api.compute.schemas import Page
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from domain.errors import Forbidden, NotFound
from domain.roles import Role
from store import access, audit, directory
from store.access import NewKey, Principal
from store.tables import ApiKey

router = APIRouter(prefix="/keys", tags=["Keys"])

_KEY_ID = re.compile(r"key_[0-9A-Za-z]{16}")

KeyIdParameter = Annotated[str, Path(alias="id", examples=["key_9f2kQxWv3bT8mLpZ"])]
# Whoever is handed a token must not find it in a cache.
_NO_STORE = {"Cache-Control": "no-store"}


class KeyCreate(StrictRequest):
    """A key for a person or a program. Its role is at most that of the key which makes it."""

    owner: Name = Field(description="Whom its requests are from.")
    role: Literal["viewer", "member", "org_admin", "cluster_admin"] = Field(
        description="viewer reads; member also creates and terminates; org_admin also manages its organization; "
        "cluster_admin manages all."
    )
    name: Name | None = Field(default=None, description="For people.")
    project: Slug | None = Field(
        default=None, description="A project's name: the key reaches that one only. Not for admins."
    )
    expires_at: Moment | None = Field(
        default=None, description="In the future: from then on it is refused. Absent or null is never."
    )
    org_id: Slug | None = Field(default=None, description="Absent or null is the key's own organization.")


_KEY: dict[str, Any] = {
    "id": "key_9f2kQxWv3bT8mLpZ",
    "org_id": "org_9f2kQxWv3bT8mLpZ",
    "project": None,
    "owner": "ada@example.org",
    "name": "laptop",
    "role": "member",
    "created_at": "2026-07-29T12:01:00Z",
    "expires_at": None,
    "last_used_at": "2026-07-30T08:12:00Z",
    "revoked_at": None,
}


class Key(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _KEY})

    id: str
    org_id: str
    project: str | None = Field(description="The name of the one project that it reaches; null is all.")
    owner: str
    name: str | None
    role: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="Up to some minutes late.")
    revoked_at: datetime | None


class CreatedKey(Key):
    model_config = ConfigDict(json_schema_extra={"example": _KEY | {"last_used_at": None, "token": "hr_..."}})

    token: str = Field(description="Send it as `Authorization: Bearer`. It is never shown again.")


class KeyList(Page):
    data: list[Key]


@router.post(
    "",
    summary="Create a key",
    status_code=201,
    response_model=CreatedKey,
    responses=errors(400, 403, 404, 408, 413, 422),
    openapi_extra=documented(KeyCreate, {"owner": "ada@example.org", "role": "member", "name": "laptop"}),
)
async def create_key(
    request: Request, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Makes a key; its token is in this answer only. When the answer is lost, revoke the key and make another."""
    wanted, now = await parsed(request, KeyCreate), services.clock()
    role, org_id = Role(wanted.role), target(principal, wanted.org_id)
    _require_reach(principal, role)

    def create(session: Session) -> tuple[NewKey, tuple[ApiKey, str | None]]:
        project_id = None if wanted.project is None else directory.project_id(session, org_id, wanted.project)
        made = access.create_key(
            session,
            org_id,
            wanted.owner,
            role,
            now,
            project_id=project_id,
            name=wanted.name,
            expires_at=wanted.expires_at,
        )
        data = {"owner": wanted.owner, "role": role, "project": wanted.project, "expires_at": wanted.expires_at}
        audit.write(session, principal, "key.create", made.key_id, now, data, org_id=org_id)
        return made, directory.key(session, made.key_id, org_id)

    made, found = await services.db.write(create)
    return json_response({**_render(*found), "token": made.token}, 201, _NO_STORE)


@router.get("", summary="List keys", response_model=KeyList, responses=errors(400, 403, 404, 422))
async def list_keys(
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    owner: Annotated[str | None, Query(max_length=128, pattern=NO_NUL, description="Only this owner's.")] = None,
    active: Annotated[bool | None, Query(description="Only those that are valid, or are not.")] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Keys without their tokens, the newest first; revoked and expired ones too."""
    wanted = directory.KeyFilter(scope(principal, org_id), owner, active, services.clock())
    traversal = Traversal(services.vault, "keys", wanted.org_id, owner, active)
    position = traversal.position(cursor)
    before = None if position is None else (moment_of(position[0]), position[1])

    def read(session: Session) -> tuple[list[tuple[ApiKey, str | None]], int]:
        found = directory.keys(session, wanted, before=before, limit=limit + 1)
        return found, directory.count_keys(session, wanted)

    found, total = await services.db.read(read)
    next_cursor = None
    if len(found) > limit:
        last, _ = found[limit - 1]
        next_cursor = traversal.cursor([moment_key(last.created_at), last.id])
    return json_response(page([_render(*entry) for entry in found[:limit]], next_cursor, total))


@router.get("/{id}", summary="Get a key", response_model=Key, responses=errors(403, 404))
async def get_key(
    key_id: KeyIdParameter, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    _require_key_id(key_id)
    of = scope(principal, None)
    return json_response(_render(*await services.db.read(lambda session: directory.key(session, key_id, of))))


@router.post("/{id}/revoke", summary="Revoke a key", response_model=Key, responses=errors(403, 404))
async def revoke_key(
    key_id: KeyIdParameter, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """The key is refused from now on, by every process. A repeat changes nothing; a revoked key stays in the list."""
    _require_key_id(key_id)
    of, now = scope(principal, None), services.clock()

    def revoke(session: Session) -> tuple[ApiKey, str | None]:
        key, project = directory.key(session, key_id, of)
        _require_reach(principal, Role(key.role))
        if access.revoke_key(session, key_id, now):
            audit.write(session, principal, "key.revoke", key_id, now, {"owner": key.owner}, org_id=key.org_id)
            session.refresh(key)
        return key, project

    return json_response(_render(*await services.db.write(revoke)))


def _require_reach(principal: Principal, role: Role) -> None:
    """Raises Forbidden for a role above the principal's own: nobody raises itself, nor ends those above it."""
    if not principal.role.includes(role):
        raise Forbidden(f"a key with the role {principal.role} makes and revokes none with the role {role}")


def _require_key_id(key_id: str) -> None:
    if not _KEY_ID.fullmatch(key_id):
        raise NotFound(f"no key {key_id[:64]!r}")


def _render(key: ApiKey, project: str | None) -> dict[str, Any]:
    return {
        "id": key.id,
        "org_id": key.org_id,
        "project": project,
        "owner": key.owner,
        "name": key.name,
        "role": key.role,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "revoked_at": key.revoked_at,
    }
