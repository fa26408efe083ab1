"""Documented operations that this version does not have: 501 `not_implemented`, to known callers only."""

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response

from api.auth import Reader
from api.compute.documentation import errors
from domain.errors import NotImplementedYet

router = APIRouter(tags=["Not implemented yet"])

_OPERATIONS = """
GET    /services                         List services
POST   /services                         Create a service
GET    /services/{id}                    Get a service
GET    /services/{id}/events             List a service's events
GET    /services/{id}/logs               List a service's log lines
GET    /services/{id}/instances          List a service's instances
PATCH  /services/{id}/scaling            Update a service's scaling
POST   /services/{id}/terminate          Terminate a service
GET    /volumes                          List volumes
POST   /volumes                          Create a volume
GET    /volumes/{id}                     Get a volume
DELETE /volumes/{id}                     Delete a volume
GET    /volumes/{id}/attachments         List a volume's attachments
"""


def operations() -> Iterator[tuple[str, str, str]]:
    """Method, path and summary of each."""
    for line in _OPERATIONS.strip().splitlines():
        method, path, summary = line.split(maxsplit=2)
        yield method, path, summary


async def _refuse(request: Request, _principal: Reader) -> Response:
    raise NotImplementedYet(f"{request.method} {request.scope['route'].path} is not implemented yet")


for _method, _path, _summary in operations():
    router.add_api_route(
        _path,
        _refuse,
        methods=[_method],
        summary=_summary,
        status_code=501,
        responses=errors(501),
        operation_id="not_implemented_" + _summary.lower().replace(" ", "_").replace("'", ""),
    )
