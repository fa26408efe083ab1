"""Connected backends: accounts at providers that jobs may be run with. Their credentials go in and never come out."""

import asyncio
import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session, col, select

from api.admin.scope import OrgIdQuery, scope, target
from api.auth import OnBehalfOf, OrgAdmin, Reader, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.requests import Name, Slug
from api.compute.requests import Request as StrictRequest
from api.compute.schemas import Page
from api.encoding import json_response, number
from api.pagination import page
from api.services import Services
from domain.backends import Backend, backend_of, catalog, check_fields
from domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from domain.money import cents
from domain.roles import Role
from store import audit, connections, directory, offers, tenants
from store.access import Principal
from store.connections import ConnectionState, Scope, Use
from store.tables import Connection, ConnectionHealth, Project

router = APIRouter(prefix="/backends", tags=["Backends"])

_ID = re.compile(r"conn_[0-9A-Za-z]{16}")
_WAIT_SECONDS = 25.0
_LOOK_SECONDS = 0.25
_MOST_FIELDS = 32

BackendIdParameter = Annotated[str, Path(alias="id", examples=["conn_9f2kQxWv3bT8mLpZ"])]
Fields = Annotated[
    dict[str, Any],
    Field(max_length=_MOST_FIELDS, description="What the backend's form asks for, by field; see the catalog."),
]


class BackendConnect(StrictRequest):
    """Nothing is kept unless the provider accepts the credentials."""

    provider: Slug
    name: Name | None = Field(default=None, description="For people; by default the backend's title.")
    fields: Fields
    project: Slug | None = Field(default=None, description="For the jobs of this project only.")
    cluster: bool = Field(default=False, description="For all organizations; wants a cluster admin's key.")


class BackendUpdate(StrictRequest):
    """What is absent stays, and so does a secret that is blank. Changed fields are verified before they are used."""

    name: Name | None = None
    fields: Fields | None = None


class FormField(BaseModel):
    name: str
    label: str
    kind: str = Field(description="`text`, `secret`, `file`, `boolean` or `list`.")
    required: bool
    secret: bool
    help: str


class BackendForm(BaseModel):
    provider: str
    title: str
    tagline: str
    available: bool = Field(description="Whether this version can connect it.")
    billed_to_you: bool = Field(
        description="Whether connecting it lets jobs rent hardware that is billed to you there."
    )
    fields: list[FormField]


class BackendForms(Page):
    data: list[BackendForm]


class Verification(BaseModel):
    pending: bool
    status: str | None = Field(description="`ok`, `auth`, `permission`, `unreachable`, `rejected` or `expired`.")
    message: str | None = Field(description="The provider's words; for administrators.")
    at: datetime | None


class Health(BaseModel):
    status: str = Field(description="`healthy`, `degraded`, `unhealthy`, or `unknown` before the first poll.")
    error: str | None = Field(description="For administrators.")
    last_poll_at: datetime | None
    offer_count: int


_EXAMPLE: dict[str, Any] = {
    "id": "conn_9f2kQxWv3bT8mLpZ",
    "provider": "runpod",
    "title": "RunPod",
    "name": "RunPod",
    "scope": "organization",
    "org_id": "org_9f2kQxWv3bT8mLpZ",
    "project": None,
    "state": "connected",
    "fields": {"include_community": True},
    "verification": {"pending": False, "status": "ok", "message": "", "at": "2026-07-29T12:01:00Z"},
    "health": {"status": "healthy", "error": None, "last_poll_at": "2026-07-29T12:05:00Z", "offer_count": 31},
    "live_instances": 2,
    "hourly_cost_usd": 1.38,
    "created_at": "2026-07-29T12:01:00Z",
    "updated_at": "2026-07-29T12:01:00Z",
}


class ConnectedBackend(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    id: str
    provider: str
    title: str
    name: str
    scope: str = Field(description="`cluster`, `organization` or `project`: whose jobs it serves.")
    org_id: str | None
    project: str | None
    state: str = Field(description="`pending`, `connected`, `failed` or `removing`.")
    fields: dict[str, Any] | None = Field(description="What is in use and not secret; for administrators.")
    verification: Verification
    health: Health
    live_instances: int = Field(description="Of the caller's organization; of all for a cluster admin.")
    hourly_cost_usd: float = Field(description="What these cost an hour now.")
    created_at: datetime
    updated_at: datetime


class ConnectedBackends(Page):
    data: list[ConnectedBackend]


@router.get("/catalog", summary="List backends that can be connected", response_model=BackendForms, responses=errors())
async def list_backend_forms(_principal: Reader, _services: ServicesOf, _on_behalf_of: OnBehalfOf) -> Response:
    """Each with the fields of its form."""
    found = [_form(backend) for backend in catalog().values()]
    return json_response(page(found, None, len(found)))


@router.get("", summary="List connected backends", response_model=ConnectedBackends, responses=errors(403, 404))
async def list_connected_backends(
    principal: Reader, services: ServicesOf, _on_behalf_of: OnBehalfOf, org_id: OrgIdQuery = None
) -> Response:
    """Those of the cluster first, then by age."""
    of_org = scope(principal, org_id)
    _require_sight(principal)

    def read(session: Session) -> list[dict[str, Any]]:
        found = connections.listed(session, of_org, project_id=principal.project_id)
        return _render_all(session, services, principal, [row for row in found if _sees(principal, row)])

    shown = await services.db.read(read)
    return json_response(page(shown, None, len(shown)))


@router.post(
    "",
    summary="Connect a backend",
    status_code=201,
    response_model=ConnectedBackend,
    responses={
        **errors(400, 403, 404, 408, 409, 413, 422),
        202: {"description": "The verification goes on.", "model": ConnectedBackend},
    },
    openapi_extra=documented(BackendConnect, {"provider": "runpod", "fields": {"api_key": "..."}}),
)
async def connect_backend(
    request: Request, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf, org_id: OrgIdQuery = None
) -> Response:
    """Asks the provider first: 422 `verification_failed` has its words, and nothing secret is kept then. 202 when it
    takes long: the state tells later."""
    wanted, now, of_org = await parsed(request, BackendConnect), services.clock(), target(principal, org_id)
    if wanted.cluster and principal.role is not Role.CLUSTER_ADMIN:
        raise Forbidden(f"a connection for the cluster needs a key with the role {Role.CLUSTER_ADMIN}")
    if wanted.cluster and wanted.project is not None:
        raise InvalidRequest("project: a connection for the cluster is of no project", field="project")
    backend = backend_of(wanted.provider)
    _require_public_url(services, backend)
    values = check_fields(backend, wanted.fields)

    def write(session: Session) -> Connection:
        owner = Scope()
        if not wanted.cluster:
            tenants.get(session, of_org)
            named = directory.project_id(session, of_org, wanted.project) if wanted.project else None
            owner = Scope(of_org, named)
        name = wanted.name or backend.title
        made = connections.connect(session, services.vault, owner, backend, name, values, now)
        data = {"provider": backend.key, "name": name, "scope": owner.key}
        audit.write(session, principal, "connection.connect", made.id, now, data, org_id=owner.org_id)
        return made

    made = await services.db.write(write)
    return await _answer(services, principal, made, made.verification, done=201)


@router.get("/{id}", summary="Get a connected backend", response_model=ConnectedBackend, responses=errors(403, 404))
async def get_connected_backend(
    backend_id: BackendIdParameter, principal: Reader, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Without its credentials."""
    _require_sight(principal)

    def read(session: Session) -> dict[str, Any]:
        return _render_all(session, services, principal, [_find(session, principal, backend_id)])[0]

    return json_response(await services.db.read(read))


@router.put(
    "/{id}",
    summary="Edit a connected backend",
    response_model=ConnectedBackend,
    responses={
        **errors(400, 403, 404, 408, 409, 413, 422),
        202: {"description": "The verification goes on.", "model": ConnectedBackend},
    },
    openapi_extra=documented(BackendUpdate, {"fields": {"include_community": False}}),
)
async def edit_backend(
    backend_id: BackendIdParameter,
    request: Request,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
) -> Response:
    """Until the provider accepts what was changed, and if it does not, all stays as it was."""
    wanted, now = await parsed(request, BackendUpdate), services.clock()

    def write(session: Session) -> tuple[Connection, int | None]:
        found = _administered(session, principal, backend_id)
        if wanted.name is not None and wanted.name != found.name:
            connections.rename(session, found, wanted.name, now)
        asked = None
        if wanted.fields is not None:
            _require_not_removing(found)
            backend = backend_of(found.provider)
            _require_public_url(services, backend)
            values = check_fields(backend, wanted.fields, kept=connections.values_of(services.vault, found))
            if found.state == ConnectionState.FAILED:
                found.state = ConnectionState.PENDING
            asked = connections.begin_verification(session, services.vault, found, backend, values, now)
        data = {"name": found.name, "fields": sorted(wanted.fields or ())}
        audit.write(session, principal, "connection.edit", found.id, now, data, org_id=found.org_id)
        return found, asked

    found, asked = await services.db.write(write)
    return await _answer(services, principal, found, asked, done=200)


@router.post(
    "/{id}/verify",
    summary="Verify a connected backend",
    response_model=ConnectedBackend,
    responses={
        **errors(403, 404, 409),
        202: {"description": "The verification goes on.", "model": ConnectedBackend},
    },
)
async def verify_backend(
    backend_id: BackendIdParameter, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Asks the provider about the credentials in use. What it said is in `verification`; refused ones stay, and nothing
    is rented with them until they are accepted."""
    now = services.clock()

    def write(session: Session) -> tuple[Connection, int]:
        found = _administered(session, principal, backend_id)
        _require_not_removing(found)
        if found.credentials_sealed is None and found.candidate_sealed is None:
            raise Conflict(f"{found.name} has no credentials: edit it, or connect it again", code="not_connected")
        backend = backend_of(found.provider)
        asked = connections.begin_verification(session, services.vault, found, backend, None, now)
        audit.write(session, principal, "connection.verify", found.id, now, org_id=found.org_id)
        return found, asked

    found, asked = await services.db.write(write)
    return await _answer(services, principal, found, asked, done=200, refused=200)


@router.delete(
    "/{id}",
    summary="Remove a connected backend",
    status_code=204,
    responses={
        **errors(403, 404, 409, 422),
        202: {"description": "It goes once its machines are confirmed gone.", "model": ConnectedBackend},
    },
)
async def remove_backend(
    backend_id: BackendIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    force: Annotated[Literal["terminate"] | None, Query(description="Ends the jobs that run on it first.")] = None,
) -> Response:
    """409 `connection_in_use` names the jobs whose instances are live there. With `force=terminate` they are ended,
    nothing new is rented, and it is removed once all that was rented is confirmed gone: 202 until then."""
    now = services.clock()

    def write(session: Session) -> Connection | None:
        found = _administered(session, principal, backend_id)
        data = {"provider": found.provider, "name": found.name, "force": force}
        audit.write(session, principal, "connection.remove", found.id, now, data, org_id=found.org_id)
        return None if connections.remove(session, found, now, terminate=force is not None) else found

    left = await services.db.write(write)
    if left is None:
        return Response(status_code=204)
    return json_response(await _shown(services, principal, left), 202)


# Who may --------------------------------------------------------------------------------------------------------------


def _require_sight(principal: Principal) -> None:
    """Raises Forbidden for those whose organization is not told of providers; its admins know what they connected."""
    if not principal.sees_providers and not principal.role.includes(Role.ORG_ADMIN):
        raise Forbidden("this organization is not told which providers there are; ask an administrator")


def _sees(principal: Principal, connection: Connection) -> bool:
    if principal.project_id is not None and connection.project_id not in {None, principal.project_id}:
        return False
    return principal.sees_providers or connection.org_id == principal.org_id


def _administers(principal: Principal, connection: Connection) -> bool:
    if principal.role is Role.CLUSTER_ADMIN:
        return True
    return principal.role.includes(Role.ORG_ADMIN) and connection.org_id == principal.org_id


def _find(session: Session, principal: Principal, connection_id: str, *, for_update: bool = False) -> Connection:
    of_org = None if principal.role is Role.CLUSTER_ADMIN else principal.org_id
    if _ID.fullmatch(connection_id):
        found = connections.find(session, connection_id, of_org, for_update=for_update)
        if _sees(principal, found):
            return found
    raise NotFound(f"no connection {connection_id[:64]!r}")


def _administered(session: Session, principal: Principal, connection_id: str) -> Connection:
    found = _find(session, principal, connection_id, for_update=True)
    if not _administers(principal, found):
        raise Forbidden(f"this connection is the cluster's; it needs a key with the role {Role.CLUSTER_ADMIN}")
    return found


def _require_not_removing(connection: Connection) -> None:
    if connection.state == ConnectionState.REMOVING:
        raise NotFound(f"the connection {connection.id} is being removed")


def _require_public_url(services: Services, backend: Backend) -> None:
    """Raises InvalidRequest where agents on the backend's machines could not reach this control plane."""
    if backend.remote and services.settings.public_url is None:
        raise InvalidRequest(
            f"machines of {backend.title} could not reach this control plane: set HEADRACE_PUBLIC_URL to the https"
            " address at which they can, for the API and for workers, and restart them",
            field="provider",
            code="public_url_not_set",
        )


# Answers --------------------------------------------------------------------------------------------------------------


async def _answer(
    services: Services,
    principal: Principal,
    connection: Connection,
    asked: int | None,
    *,
    done: int,
    refused: int = 422,
) -> Response:
    """Once the verification has an outcome, or when one does not want to wait any longer."""
    pending = False
    if asked is not None:
        connection = await _settled(services, connection.id, asked)
        pending = connection.verified_number < asked
        if not pending and connection.verified_status != "ok" and refused == 422:
            title = catalog()[connection.provider].title
            raise InvalidRequest(
                f"{title} did not accept it ({connection.verified_status}): {connection.verified_message}",
                field="fields",
                code="verification_failed",
            )
    return json_response(await _shown(services, principal, connection), 202 if pending else done)


async def _settled(services: Services, connection_id: str, asked: int) -> Connection:
    """The row, once verification `asked` has an outcome; or as it stands after a while."""
    loop, wakeup = asyncio.get_running_loop(), services.db.subscribe(connections.TOPIC)
    # Nobody could verify it meanwhile.
    until = loop.time() + (_WAIT_SECONDS if services.temporal is not None else 0)
    try:
        while True:
            wakeup.clear()
            found = await services.db.read(lambda session: connections.find(session, connection_id, None))
            if found.verified_number >= asked or loop.time() >= until:
                return found
            with suppress(TimeoutError):
                # The worker is another process mostly.
                await asyncio.wait_for(wakeup.wait(), _LOOK_SECONDS)
    finally:
        services.db.unsubscribe(connections.TOPIC, wakeup)


async def _shown(services: Services, principal: Principal, connection: Connection) -> dict[str, Any]:
    return (await services.db.read(lambda s: _render_all(s, services, principal, [connection])))[0]


def _render_all(
    session: Session, services: Services, principal: Principal, found: list[Connection]
) -> list[dict[str, Any]]:
    ids = [row.id for row in found]
    of_org = None if principal.role is Role.CLUSTER_ADMIN else principal.org_id
    used = connections.uses(session, ids, of_org)
    health = {row.connection_id: row for row in offers.health(session) if row.connection_id in ids}
    projects = _project_names(session, found)
    now, valid_for = services.clock(), timedelta(seconds=services.settings.offers_valid_seconds)
    return [
        _render(
            row, used.get(row.id, Use()), projects.get(row.project_id or ""),
            _health(health.get(row.id), now, valid_for, told=_administers(principal, row)),
            told=_administers(principal, row),
        )
        for row in found
    ]  # fmt: skip


def _render(row: Connection, use: Use, project: str | None, health: dict[str, Any], *, told: bool) -> dict[str, Any]:
    """`told`: with what is for administrators."""
    backend = catalog().get(row.provider)
    return {
        "id": row.id,
        "provider": row.provider,
        "title": backend.title if backend else row.provider,
        "name": row.name,
        "scope": "project" if row.project_id else "organization" if row.org_id else "cluster",
        "org_id": row.org_id,
        "project": project,
        "state": row.state,
        "fields": {name: row.options[name] for name in _shown_fields(backend, row)} if told else None,
        "verification": {
            "pending": row.verified_number < row.verification,
            "status": row.verified_status,
            "message": row.verified_message if told else None,
            "at": row.verified_at,
        },
        "health": health,
        "live_instances": use.instances,
        "hourly_cost_usd": number(cents(use.usd_per_hour)),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _shown_fields(backend: Backend | None, row: Connection) -> list[str]:
    """Those of the form: what an edit may send back."""
    return [field.name for field in backend.fields if field.name in row.options] if backend else []


def _health(row: ConnectionHealth | None, now: datetime, valid_for: timedelta, *, told: bool) -> dict[str, Any]:
    if row is None or (row.last_poll_at is None and not row.blocked):
        return {"status": "unknown", "error": None, "last_poll_at": None, "offer_count": 0}
    usable, failed = offers.is_usable(row, now, valid_for), row.error_kind is not None
    status = ("degraded" if failed else "healthy") if usable else "unhealthy"
    return {
        "status": status,
        "error": row.error if told and failed else None,
        "last_poll_at": row.last_poll_at,
        "offer_count": row.offer_count if usable else 0,
    }


def _project_names(session: Session, found: list[Connection]) -> dict[str, str]:
    wanted = {row.project_id for row in found if row.project_id}
    query = select(Project.id, Project.name).where(col(Project.id).in_(wanted))
    return dict(session.exec(query).all()) if wanted else {}


def _form(backend: Backend) -> dict[str, Any]:
    return {
        "provider": backend.key,
        "title": backend.title,
        "tagline": backend.tagline,
        "available": backend.available,
        "billed_to_you": backend.remote,
        "fields": [
            {
                "name": field.name,
                "label": field.label,
                "kind": field.kind,
                "required": field.required,
                "secret": field.secret,
                "help": field.help,
            }
            for field in backend.fields
        ],
    }
