"""Connected backends: accounts at providers that jobs may be run with. Their credentials go in and never come out."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from sqlmodel import Session

from api.admin.scope import OrgIdQuery, scope, target
from api.auth import OnBehalfOf, OrgAdmin, Reader, ServicesOf
from api.bodies import documented, parsed
from api.compute.backend_access import BackendIdParameter, administered, find, require_sight, sight_of
from api.compute.backend_render import form, render
from api.compute.backend_schemas import (
    BackendConnect,
    BackendForms,
    BackendUpdate,
    ConnectedBackend,
    ConnectedBackends,
)
from api.compute.documentation import errors
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from api.services import Services
from domain.backends import Backend, backend_of, catalog, check_fields
from domain.errors import Conflict, Forbidden, InvalidRequest, NotFound, PreconditionFailed
from domain.roles import Role
from store import audit, connections, directory, fleets, tenants
from store.access import Principal
from store.connections import ConnectionState, Scope, Sight
from store.db import woken
from store.tables import Connection

router = APIRouter(prefix="/backends", tags=["Backends"])

_WAIT_SECONDS = 25.0
_LOOK_SECONDS = 0.25

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=64, description="The `version` that the edit is of; absent: whatever it is."),
]


@router.get("/catalog", summary="List backends that can be connected", response_model=BackendForms, responses=errors())
async def list_backend_forms(_principal: Reader, _services: ServicesOf, _on_behalf_of: OnBehalfOf) -> Response:
    """Each with the fields of its form."""
    found = [form(backend) for backend in catalog().values()]
    return json_response(page(found, None, len(found)))


@router.get(
    "", summary="List connected backends", response_model=ConnectedBackends, responses=errors(400, 403, 404, 422)
)
async def list_connected_backends(
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Those of the cluster first, then by age."""
    sight = sight_of(principal, scope(principal, org_id))
    require_sight(principal)
    traversal = Traversal(services.vault, "backends", sight.org_id, sight.project_id, sight.cluster)
    position = traversal.position(cursor)
    after = None if position is None else (position[0], moment_of(position[1]), position[2])

    def read(session: Session) -> tuple[list[dict[str, Any]], str | None, int]:
        found = connections.listed(session, sight, after=after, limit=limit + 1)
        shown, next_cursor = found[:limit], None
        if len(found) > limit:
            rank, created_at, id_ = connections.position_of(shown[-1])
            next_cursor = traversal.cursor([rank, moment_key(created_at), id_])
        return render(session, services, principal, shown), next_cursor, connections.count(session, sight)

    return json_response(page(*await services.db.read(read)))


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
        fleets.require_free_hosts(session, _sight(principal), backend, values)
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
    require_sight(principal)

    def read(session: Session) -> dict[str, Any]:
        return render(session, services, principal, [find(session, principal, backend_id)], in_full=True)[0]

    return json_response(await services.db.read(read))


@router.put(
    "/{id}",
    summary="Edit a connected backend",
    response_model=ConnectedBackend,
    responses={
        **errors(400, 403, 404, 408, 409, 412, 413, 422),
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
    if_match: IfMatch = None,
) -> Response:
    """Until the provider accepts what was changed, and if it does not, all stays as it was. With `If-Match` an edit
    that somebody else made meanwhile is not lost (412)."""
    wanted, now = await parsed(request, BackendUpdate), services.clock()

    def write(session: Session) -> tuple[Connection, int | None]:
        found = administered(session, principal, backend_id)
        _require_version(found, if_match)
        if wanted.name is not None and wanted.name != found.name:
            connections.rename(session, found, wanted.name, now)
        asked = None
        if wanted.fields is not None:
            _require_not_removing(found)
            backend = backend_of(found.provider)
            _require_public_url(services, backend)
            values = check_fields(backend, wanted.fields, kept=connections.values_of(services.vault, found))
            fleets.require_free_hosts(session, _sight(principal), backend, values, found)
            fleets.require_idle_hosts(session, backend, values, found)
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
        found = administered(session, principal, backend_id)
        _require_not_removing(found)
        if found.credentials_sealed is None and found.candidate_sealed is None:
            raise Conflict(f"{found.name} has no credentials: edit it, or connect it again", code="not_connected")
        backend = backend_of(found.provider)
        if (asked := connections.under_way(found, now)) is not None:
            # Whoever asks again and again has one answer, and one look at the provider.
            return found, asked
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
        found = administered(session, principal, backend_id)
        data = {"provider": found.provider, "name": found.name, "force": force}
        audit.write(session, principal, "connection.remove", found.id, now, data, org_id=found.org_id)
        return None if connections.remove(session, found, now, terminate=force is not None) else found

    left = await services.db.write(write)
    if left is None:
        return Response(status_code=204)
    return json_response(await _shown(services, principal, left), 202)


# What is refused ------------------------------------------------------------------------------------------------------


def _sight(principal: Principal) -> Sight:
    return sight_of(principal, None if principal.role is Role.CLUSTER_ADMIN else principal.org_id)


def _require_version(connection: Connection, if_match: str | None) -> None:
    if if_match is not None and if_match.strip().strip('"') != str(connection.verification):
        raise PreconditionFailed(
            f"{connection.name} has version {connection.verification}: somebody edited or verified it meanwhile",
            details={"version": connection.verification},
        )


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
        if connection.verified_number > asked and done == 200 and refused == 422:
            # What was asked for here never came to be, or only by what came after it: no success is to be claimed.
            raise Conflict(
                f"{connection.name} was edited or verified meanwhile by somebody else: see what is in use",
                code="superseded",
                details={"version": connection.verification},
            )
        if not pending and connection.verified_status != "ok" and refused == 422:
            title = catalog()[connection.provider].title
            raise InvalidRequest(
                f"{title} did not accept it ({connection.verified_status}): {connection.verified_message}",
                field="fields",
                code="verification_failed",
                details={"id": connection.id, "hosts": connection.verified_hosts},
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
            # The worker is another process mostly.
            await woken(wakeup, _LOOK_SECONDS)
    finally:
        services.db.unsubscribe(connections.TOPIC, wakeup)


async def _shown(services: Services, principal: Principal, connection: Connection) -> dict[str, Any]:
    return (await services.db.read(lambda s: render(s, services, principal, [connection], in_full=True)))[0]
