"""The host keys that are pinned for a fleet: a host that shows another one is not connected to."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, OrgAdmin, ServicesOf
from api.bodies import documented, parsed
from api.compute.backend_access import BackendIdParameter, administered
from api.compute.backend_render import host_key
from api.compute.backend_schemas import HostKeyForget, HostKeys
from api.compute.documentation import errors
from api.encoding import json_response
from api.pagination import page
from domain.errors import NotFound
from store import audit, host_keys

router = APIRouter(prefix="/backends/{id}/host-keys", tags=["Backends"])


@router.get("", summary="List pinned host keys", response_model=HostKeys, responses=errors(403, 404))
async def list_host_keys(
    backend_id: BackendIdParameter, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """The keys that hosts have to show, by address, all on one page."""

    def read(session: Session) -> list[dict[str, Any]]:
        found = administered(session, principal, backend_id, for_update=False)
        return [host_key(row) for row in host_keys.of(session, found.id)]

    shown = await services.db.read(read)
    return json_response(page(shown, None, len(shown)))


@router.post(
    "/forget",
    summary="Forget a host's pinned key",
    response_model=HostKeys,
    responses=errors(400, 403, 404, 408, 413, 422),
    openapi_extra=documented(HostKeyForget, {"host": "10.20.0.11"}),
)
async def forget_host_key(
    backend_id: BackendIdParameter,
    request: Request,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
) -> Response:
    """For a host that was installed anew. Answers what is pinned still; the key that the host shows next is pinned."""
    wanted, now = await parsed(request, HostKeyForget), services.clock()

    def write(session: Session) -> list[dict[str, Any]]:
        found = administered(session, principal, backend_id)
        forgotten = host_keys.forget(session, found.id, wanted.host)
        if not forgotten:
            raise NotFound(f"no host key of {wanted.host!r} is pinned for {found.name}")
        data = {"hosts": forgotten}
        audit.write(session, principal, "connection.forget_host_key", found.id, now, data, org_id=found.org_id)
        session.flush()
        return [host_key(row) for row in host_keys.of(session, found.id)]

    shown = await services.db.write(write)
    return json_response(page(shown, None, len(shown)))
