"""The curated accelerator catalog."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from api.auth import OnBehalfOf, Reader, ServicesOf
from api.compute import render
from api.compute.documentation import errors
from api.compute.schemas import Accelerator, AcceleratorList
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, page
from domain.catalog import BY_NAME, CATALOG, Gpu
from domain.errors import NotFound

router = APIRouter(prefix="/catalog/accelerators", tags=["Catalog"])


@router.get("", summary="List accelerators", response_model=AcceleratorList, responses=errors(400, 422))
async def list_accelerators(
    _principal: Reader,
    _on_behalf_of: OnBehalfOf,
    services: ServicesOf,
    vendor: Annotated[Literal["nvidia", "amd"] | None, Query(description="Only this vendor's GPUs.")] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """All entries of the catalog, or those of one vendor."""
    entries = [e for e in CATALOG if vendor is None or (isinstance(e, Gpu) and e.vendor == vendor)]
    traversal = Traversal(services.vault, "accelerators", vendor)
    start = traversal.position(cursor) or 0
    following = start + limit
    next_cursor = traversal.cursor(following) if following < len(entries) else None
    return json_response(page([render.accelerator(e) for e in entries[start:following]], next_cursor, len(entries)))


@router.get("/{name}", summary="Get an accelerator", response_model=Accelerator, responses=errors(404))
async def get_accelerator(name: str, _principal: Reader, _on_behalf_of: OnBehalfOf) -> Response:
    entry = BY_NAME.get(name)
    if entry is None:
        raise NotFound(f"no accelerator {name[:128]!r} in the catalog")
    return json_response(render.accelerator(entry))
