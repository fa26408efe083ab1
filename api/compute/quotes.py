"""Quotes: whether a configuration can be had now, where, and for how much. A quote reserves nothing."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, ServicesOf, Writer
from api.bodies import documented, parsed
from api.compute.admission import check_compute, ports_of
from api.compute.anonymity import check_choice
from api.compute.documentation import errors
from api.compute.quote_requests import EXAMPLE_QUOTE, QuoteContainer, QuoteRequest
from api.compute.requests import refusal
from api.compute.schemas import Quote
from api.encoding import json_response, number
from domain import images, spec
from domain.placement import Menu, menu
from store import connection_reach, offers, tenants

router = APIRouter(prefix="/catalog/quotes", tags=["Catalog"])

_SOME_KEY = "ssh-ed25519 quoted"
"""Stands for the key that a create would bring: placement asks only whether there is one."""


@router.post(
    "",
    summary="Create a quote",
    response_model=Quote,
    responses=errors(400, 403, 408, 413, 422),
    openapi_extra=documented(QuoteRequest, EXAMPLE_QUOTE),
)
async def create_compute_quote(
    request: Request, principal: Writer, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """What a create with the same configuration would be offered, by the offers as they were last polled. What cannot
    be had is an answer too: `available` is false, the prices are null, and each provider says why."""
    wanted = await parsed(request, QuoteRequest)
    check_choice(principal, wanted.placement)
    asked = _spec(wanted)
    now, valid_for = services.clock(), timedelta(seconds=services.settings.offers_valid_seconds)

    def read(session: Session) -> tuple[Menu, datetime | None]:
        tenants.require_enabled_in(session, principal.org_id)
        reach = connection_reach.reach_of_principal(session, principal)
        market = offers.market(session, reach, asked.compute.accelerator, asked.compute.gpu_count, now, valid_for)
        found = menu(asked, market.offers, market.capabilities, reserved=market.reserved, unreadable=market.unreadable)
        return found, market.observed_at

    found, observed_at = await services.db.read(read)
    instances = asked.compute.instance_count or 1
    return json_response(_render(found, instances, observed_at or now, name_providers=principal.sees_providers))


def _spec(wanted: QuoteRequest) -> spec.JobSpec:
    """The configuration as a create's. Raises InvalidRequest where the create would."""
    if wanted.resource_type == "service":
        raise refusal("resource_type", "services are not supported yet")
    if wanted.volumes:
        raise refusal("volumes", "volumes are not supported yet")
    if wanted.service is not None:
        raise refusal("service", "goes with the resource type service")
    check_compute(wanted.compute)
    _check_image(wanted.container)
    return spec.JobSpec(
        image=wanted.container.image,
        compute=spec.ComputeRequest(**wanted.compute.model_dump()),
        ports=ports_of(wanted.container.ports),
        placement=spec.Placement(**(wanted.placement.model_dump() if wanted.placement else {})),
        ssh_public_key=_SOME_KEY if wanted.access and wanted.access.ssh else None,
        image_pull_secret=wanted.container.image_pull_secret,
    )


def _check_image(container: QuoteContainer) -> None:
    image = images.parse(container.image, field="container.image")
    if container.image_pull_secret is not None and not image.has_explicit_host:
        raise refusal("container.image", "must name its registry's host when it is pulled with a credential")


def _render(found: Menu, instances: int, observed_at: datetime, *, name_providers: bool) -> dict[str, Any]:
    prices: dict[str, list[Decimal]] = defaultdict(list)
    for offer in found.offers:
        prices[offer.provider].append(offer.price_usd_hr * instances)
    answer: dict[str, Any] = {
        "available": bool(found.offers),
        "price_usd_hr": _range(price for of_provider in prices.values() for price in of_provider),
        "observed_at": observed_at,
        "expires_at": None,
    }
    if name_providers:
        entries = [
            {"provider": name, "available": True, "price_usd_hr": _range(of_provider)}
            for name, of_provider in prices.items()
        ]
        entries += [
            {"provider": refused.provider, "available": False, "price_usd_hr": None, "reason": refused.message}
            for refused in found.refusals
        ]
        answer["providers"] = sorted(entries, key=lambda entry: str(entry["provider"]))
    return answer


def _range(prices: Iterable[Decimal]) -> dict[str, Any] | None:
    """Null when there are none."""
    known = list(prices)
    return {"min": number(min(known)), "max": number(max(known))} if known else None
