"""What the connected providers offer, as it was last polled."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, ProviderReader, ServicesOf
from api.compute.documentation import errors
from api.compute.schemas import OFFER_CAPABILITIES, OfferList
from api.encoding import json_response, number
from api.pagination import CursorParameter, Traversal, page
from store import connection_reach, offers
from store.tables import ConnectionHealth

router = APIRouter(prefix="/catalog/offers", tags=["Catalog"])

_Name = Annotated[str | None, Query(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]


@router.get("", summary="List compute offers", response_model=OfferList, responses=errors(400, 403, 422))
async def list_compute_offers(
    principal: ProviderReader,
    _on_behalf_of: OnBehalfOf,
    services: ServicesOf,
    accelerator: _Name = None,
    gpu_count: Annotated[int | None, Query(ge=0, le=1024)] = None,
    interconnect: Literal["pcie", "nvlink", "infinity_fabric"] | None = None,
    provider: _Name = None,
    region: _Name = None,
    available: Annotated[bool | None, Query(description="Only what can be had now, or only what cannot.")] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The offers of every connection whose last good poll is recent enough, in the order of connection and offer."""
    wanted = {
        "accelerator": accelerator,
        "gpu_count": gpu_count,
        "interconnect": interconnect,
        "region": region,
        "available": available,
    }
    filters = {name: value for name, value in wanted.items() if value is not None}
    traversal = Traversal(services.vault, "offers", provider, *(f"{name}={value}" for name, value in filters.items()))
    position = traversal.position(cursor)
    after = None if position is None else (position[0], position[1])
    now, valid_for = services.clock(), timedelta(seconds=services.settings.offers_valid_seconds)

    def read(session: Session) -> tuple[dict[str, ConnectionHealth], list[tuple[str, dict[str, Any]]], int]:
        usable = {
            row.connection_id: row
            for row in offers.health(session, connection_reach.reach_of_lists(session, principal))
            if offers.is_usable(row, now, valid_for) and provider in (None, row.provider)
        }
        found = offers.page(session, usable, filters, after=after, limit=limit + 1)
        return usable, found, offers.count(session, usable, filters)

    listed, found, total = await services.db.read(read)
    shown = found[:limit]
    next_cursor = None
    if len(found) > limit:
        last_connection, last = shown[-1]
        next_cursor = traversal.cursor([last_connection, last["id"]])
    return json_response(page([_render(listed[id_], offer) for id_, offer in shown], next_cursor, total))


def _render(connection: ConnectionHealth, offer: dict[str, Any]) -> dict[str, Any]:
    observed_at: datetime | None = connection.observed_at
    can = connection.capabilities or {}
    return {
        "provider": connection.provider,
        "provider_sku": offer["provider_sku"],
        "available": offer["available"],
        **({"unavailable_reason": reason} if (reason := offer.get("over_quota")) else {}),
        "price_usd_hr": number(Decimal(offer["price_usd_hr"])),
        "observed_at": observed_at,
        "expires_at": None,
        "region": {"name": offer["region"], **({"country": offer["country"]} if offer["country"] else {})},
        "compute": {
            "accelerator": offer["accelerator"],
            "gpu_count": offer["gpu_count"],
            "gpu_memory_gb": offer["gpu_memory_gb"],
            "instance_count": 1,
            "memory_gb": int(offer["memory_gb"]),
            "vcpus": offer["vcpus"],
            "ephemeral_disk_gb": offer["ephemeral_disk_gb"],
            **({"interconnect": offer["interconnect"]} if offer["interconnect"] else {}),
        },
        "capabilities": {name: can.get(name, False) for name in OFFER_CAPABILITIES},
        "spot": offer["spot"],
        **{name: False for name in ("disk_enforced", "network_isolated") if offer.get(name) is False},
    }
