"""The price of volume storage: immutable versions, changed by whoever knows the current one."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from api.auth import ClusterAdmin, OnBehalfOf, Reader, ServicesOf
from api.bodies import documented
from api.compute.documentation import errors
from api.encoding import canonical_json, dotted, json_response, number, parse_json
from api.idempotency import IdempotencyKey, idempotency_key
from domain.errors import InvalidRequest, NotFound, PreconditionRequired
from domain.pricing import LEAST, MOST, storage_rate
from store import audit, pricing
from store.tables import StoragePrice

router = APIRouter(prefix="/pricing", tags=["Pricing"])

_FIELD = "volume_storage_usd_per_gib_hour"
_DESCRIPTION = (
    "USD for a GiB-hour: an exact decimal from 1e-18 to 1e10 in steps of 1e-18, with at most 38 digits, 64 characters "
    "and an exponent of 128."
)

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description='Required: the current version, `"3"` or `3`; `0` before the first.'),
]
"""Documents the header; its absence is a 428 and not a 422."""


class Pricing(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"example": {"version": 3, "effective_at": "2026-07-29T13:00:00Z", _FIELD: 0.000137}}
    )

    version: int
    effective_at: datetime = Field(description="The beginning of the UTC hour that followed the change.")
    volume_storage_usd_per_gib_hour: float = Field(description=_DESCRIPTION)


class PricingUpdate(BaseModel):
    """Documents the body, which is read with the digits of its number as they were written."""

    model_config = ConfigDict(extra="forbid")

    volume_storage_usd_per_gib_hour: float = Field(ge=float(LEAST), le=float(MOST), description=_DESCRIPTION)


class _Literal(str):
    """A JSON number as it was written."""


@router.get("", summary="Get storage pricing", response_model=Pricing, responses=errors(404))
async def get_pricing(_principal: Reader, services: ServicesOf, _on_behalf_of: OnBehalfOf) -> Response:
    """The newest version, which may come into effect at the next hour only; `ETag` is its number. Before the first one:
    404 `pricing_not_configured`."""
    price = await services.db.read(pricing.current)
    if price is None:
        raise NotFound("no price of volume storage was set yet", code="pricing_not_configured")
    return _answer(price)


@router.put(
    "",
    summary="Put storage pricing",
    response_model=Pricing,
    responses=errors(400, 403, 408, 409, 412, 413, 422, 428),
    openapi_extra=documented(PricingUpdate, {_FIELD: 0.000137}),
)
async def put_pricing(
    request: Request,
    principal: ClusterAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    if_match: IfMatch = None,
    _idempotency_key: IdempotencyKey = None,
) -> Response:
    """A new version, in effect from the next UTC hour on. An equal request with the same key answers with the version
    that it made, before the version in `If-Match` is compared."""
    key = idempotency_key(request)
    if if_match is None:
        raise PreconditionRequired(
            "the header If-Match is required: the version that is to be replaced, or 0", code="if_match_required"
        )
    rate, canonical = _read(await request.body())
    claim, now = pricing.Claim(key, canonical, services.vault), services.clock()

    def put(session: Session) -> StoragePrice:
        price, replayed = pricing.put(session, principal, rate, if_match.strip(), claim, now)
        if not replayed:
            data = {_FIELD: str(price.usd_per_gib_hour)}
            audit.write(session, principal, "pricing.put", str(price.version), now, data)
        return price

    return _answer(await services.db.write(put))


def _read(raw: bytes) -> tuple[Decimal, bytes]:
    """The rate of a body, and its canonical form."""
    body = _literals(raw)
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    unknown = next((name for name in body if name != _FIELD), None)
    if unknown is not None:
        name = dotted((unknown.encode(errors="replace").decode(),))
        raise InvalidRequest(f"{name}: unknown field", field=name)
    if _FIELD not in body:
        raise InvalidRequest(f"{_FIELD}: required", field=_FIELD)
    if not isinstance(body[_FIELD], _Literal):
        raise InvalidRequest(f"{_FIELD}: must be a number", field=_FIELD)
    rate = storage_rate(body[_FIELD], _FIELD)
    return rate, canonical_json({_FIELD: rate})


def _literals(raw: bytes) -> Any:
    """The body, numbers as they were written. Numbers that no double can hold are for `storage_rate` to refuse."""
    try:
        value = json.loads(raw.decode(), parse_float=_Literal, parse_int=_Literal, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return parse_json(raw)  # says what is wrong
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _answer(price: StoragePrice) -> Response:
    shown = {
        "version": price.version,
        "effective_at": price.effective_at,
        _FIELD: number(price.usd_per_gib_hour),
    }
    return json_response(shown, headers={"ETag": f'"{price.version}"'})
