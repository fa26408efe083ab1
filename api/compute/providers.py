"""How the connections to providers do, by their latest poll."""

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, ProviderReader, ServicesOf
from api.compute.documentation import errors
from api.compute.schemas import ProviderHealthList
from api.encoding import json_response, timestamp
from api.pagination import CursorParameter, Traversal, page
from store import connection_reach, offers
from store.tables import ConnectionHealth

router = APIRouter(prefix="/catalog/providers", tags=["Catalog"])


@router.get("", summary="List compute providers", response_model=ProviderHealthList, responses=errors(400, 403, 422))
async def list_compute_providers(
    principal: ProviderReader,
    _on_behalf_of: OnBehalfOf,
    services: ServicesOf,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Every connection that was polled, in the order of its id. Healthy: its last poll succeeded. Degraded: it failed,
    and the offers of the one before still count. Neither: nothing is rented from it now, and `error` says why."""
    traversal = Traversal(services.vault, "providers")
    after = traversal.position(cursor)

    def read(session: Session) -> list[ConnectionHealth]:
        return offers.health(session, connection_reach.reach_of_lists(session, principal))

    found = [row for row in await services.db.read(read) if row.last_poll_at is not None]
    left = [row for row in found if after is None or row.connection_id > after]
    next_cursor = traversal.cursor(left[limit - 1].connection_id) if len(left) > limit else None
    now, valid_for = services.clock(), timedelta(seconds=services.settings.offers_valid_seconds)
    return json_response(page([_render(row, now, valid_for) for row in left[:limit]], next_cursor, len(found)))


def _render(row: ConnectionHealth, now: datetime, valid_for: timedelta) -> dict[str, Any]:
    usable, failed = offers.is_usable(row, now, valid_for), row.error_kind is not None
    error = row.error if failed else None
    if not usable and not failed:
        error = f"not polled since {timestamp(row.last_poll_at)}: is a worker running?"
    return {
        "provider": row.provider,
        "healthy": usable and not failed,
        "degraded": usable and failed,
        "error": error,
        "last_poll_at": row.last_poll_at,
        "latency_ms": row.latency_ms,
        "offer_count": row.offer_count if usable else 0,
    }
