"""Secrets of an organization: create, list, get, rotate, delete. What is in them leaves only with a launch.

They belong to the organization: a key that is limited to a project shares them, as its jobs may use them.
"""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, Reader, ServicesOf, Writer
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.schemas import Secret, SecretList
from api.compute.secret_requests import EXAMPLE_ROTATION, EXAMPLE_SECRET, SecretCreate, SecretRotate, values_of
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from domain.errors import NotFound
from store import audit, secrets
from store.tables import Secret as SecretRow

router = APIRouter(prefix="/secrets", tags=["Secrets"])

_SECRET_ID = re.compile(r"sec_[0-9A-Za-z]{16}")

SecretIdParameter = Annotated[str, Path(alias="id", examples=["sec_Vb3nRk8sQw1xYz2M"])]


@router.post(
    "",
    summary="Create a secret",
    status_code=201,
    response_model=Secret,
    responses=errors(400, 403, 408, 409, 413, 422),
    openapi_extra=documented(SecretCreate, EXAMPLE_SECRET),
)
async def create_secret(
    request: Request, principal: Writer, services: ServicesOf, on_behalf_of: OnBehalfOf
) -> Response:
    """Stores values under a name that is unique in the organization, as version 1. A request that is repeated because
    its answer was lost meets its own secret: 409 `secret_name_conflict`."""
    wanted, now = await parsed(request, SecretCreate), services.clock()
    values = values_of(wanted, now)

    def create(session: Session) -> SecretRow:
        secret = secrets.create(session, principal, wanted.name, values, services.vault, now, on_behalf_of)
        audit.write(session, principal, "secret.create", secret.id, now, _audited(secret))
        return secret

    return json_response(_render(await services.db.write(create)), 201)


@router.get("", summary="List secrets", response_model=SecretList, responses=errors(400, 422))
async def list_secrets(
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The organization's secrets, oldest first."""
    traversal = Traversal(services.vault, "secrets", principal.org_id)
    position = traversal.position(cursor)
    after = None if position is None else (moment_of(position[0]), position[1])

    def read(session: Session) -> tuple[list[SecretRow], int]:
        found = secrets.oldest(session, principal, after=after, limit=limit + 1)
        return list(found), secrets.count(session, principal)

    found, total = await services.db.read(read)
    shown = found[:limit]
    next_cursor = None
    if len(found) > limit:
        next_cursor = traversal.cursor([moment_key(shown[-1].created_at), shown[-1].id])
    return json_response(page([_render(secret) for secret in shown], next_cursor, total))


@router.get("/{id}", summary="Get a secret", response_model=Secret, responses=errors(404))
async def get_secret(
    secret_id: SecretIdParameter, principal: Reader, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """What there is to know of a secret but its values."""
    _require_secret_id(secret_id)
    return json_response(_render(await services.db.read(lambda session: secrets.find(session, principal, secret_id))))


@router.post(
    "/{id}/rotate",
    summary="Rotate a secret",
    response_model=Secret,
    responses=errors(400, 403, 404, 408, 409, 413, 422),
    openapi_extra=documented(SecretRotate, EXAMPLE_ROTATION),
)
async def rotate_secret(
    request: Request,
    secret_id: SecretIdParameter,
    principal: Writer,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
) -> Response:
    """Replaces all values under the same id. Running workloads keep what they started with; the next launch reads the
    new version. Keys that live jobs refer to must be kept (409 `secret_key_in_use`)."""
    _require_secret_id(secret_id)
    wanted, now = await parsed(request, SecretRotate), services.clock()
    values = values_of(wanted, now)

    def rotate(session: Session) -> SecretRow:
        secret = secrets.rotate(session, principal, secret_id, values, services.vault, now)
        audit.write(session, principal, "secret.rotate", secret.id, now, _audited(secret))
        return secret

    return json_response(_render(await services.db.write(rotate)))


@router.delete("/{id}", summary="Delete a secret", status_code=204, responses=errors(403, 404, 409))
async def delete_secret(
    secret_id: SecretIdParameter, principal: Writer, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """Forgets the secret and its values, unless a live job uses it (409 `secret_in_use`)."""
    _require_secret_id(secret_id)
    now = services.clock()

    def delete(session: Session) -> None:
        secret = secrets.remove(session, principal, secret_id)
        audit.write(session, principal, "secret.delete", secret.id, now, {"name": secret.name})

    await services.db.write(delete)
    return Response(status_code=204)


def _require_secret_id(secret_id: str) -> None:
    """Raises NotFound for what cannot be a secret's id, before any database sees it."""
    if not _SECRET_ID.fullmatch(secret_id):
        raise NotFound(f"no secret {secret_id[:64]!r}")


def _audited(secret: SecretRow) -> dict[str, Any]:
    return {"name": secret.name, "version": secret.version, "keys": secret.key_names}


def _render(secret: SecretRow) -> dict[str, Any]:
    return {
        "id": secret.id,
        "name": secret.name,
        "keys": secret.key_names,
        "version": secret.version,
        "created_at": secret.created_at,
        "updated_at": secret.updated_at,
        "expires_at": secret.expires_at,
    }
