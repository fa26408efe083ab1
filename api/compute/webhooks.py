"""Webhooks: where an organization wants to be told of its jobs' ends and its budgets' alerts. An extension of ours."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from sqlmodel import Session

from api.admin.scope import OrgIdQuery, target
from api.auth import OnBehalfOf, OrgAdmin, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.requests import Request as StrictRequest
from api.compute.schemas import Page
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from domain.errors import NotFound
from domain.notices import NoticeType
from egress import MOST_URL_CHARACTERS, EgressRefused, check_url
from store import audit, tenants, webhooks
from store.tables import Webhook as WebhookRow
from store.tables import WebhookDelivery

router = APIRouter(prefix="/webhooks", tags=["Webhooks"])

_WEBHOOK_ID, _DELIVERY_ID = re.compile(r"wh_[0-9A-Za-z]{16}"), re.compile(r"whd_[0-9A-Za-z]{16}")
# Whoever is handed a secret must not find it in a cache.
_NO_STORE = {"Cache-Control": "no-store"}

WebhookIdParameter = Annotated[str, Path(alias="id", examples=["wh_9f2kQxWv3bT8mLpZ"])]
DeliveryIdParameter = Annotated[str, Path(alias="id", examples=["whd_9f2kQxWv3bT8mLpZ"])]
EventName = Literal[
    "job.succeeded",
    "job.failed",
    "job.terminated",
    "budget.threshold_reached",
    "budget.exhausted",
    "budget.overspent",
]
assert set(get_args(EventName)) == {kind.value for kind in NoticeType} - {NoticeType.TEST.value}
_MOST_EVENTS = len(get_args(EventName))


def _reachable(url: str) -> str:
    try:
        check_url(url)
    except EgressRefused as error:
        raise ValueError(str(error)) from None
    return url


Url = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MOST_URL_CHARACTERS),
    AfterValidator(_reachable),
    Field(description="https, on the public Internet or in a network that the administrators allowed."),
]
Events = Annotated[
    list[EventName], Field(max_length=_MOST_EVENTS, description="The types that are told; none means all.")
]


class WebhookCreate(StrictRequest):
    url: Url
    events: Events = Field(default=[])
    enabled: bool = True


class WebhookUpdate(StrictRequest):
    """What is absent stays."""

    url: Url | None = None
    events: Events | None = None
    enabled: bool | None = None


_WEBHOOK: dict[str, Any] = {
    "id": "wh_9f2kQxWv3bT8mLpZ",
    "org_id": "org_9f2kQxWv3bT8mLpZ",
    "url": "https://hooks.example.com/headrace",
    "events": ["job.failed", "budget.exhausted"],
    "enabled": True,
    "created_at": "2026-07-29T12:01:00Z",
    "updated_at": "2026-07-29T12:01:00Z",
}


class Webhook(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _WEBHOOK})

    id: str
    org_id: str
    url: str
    events: list[str]
    enabled: bool
    created_at: datetime
    updated_at: datetime


class CreatedWebhook(Webhook):
    model_config = ConfigDict(json_schema_extra={"example": _WEBHOOK | {"secret": "whsec_..."}})

    secret: str = Field(description="What deliveries are signed with. It is never shown again.")


class WebhookList(Page):
    data: list[Webhook]


class Delivery(BaseModel):
    id: str
    type: str
    state: str = Field(description="`pending`, `delivered`, or `dead` when it was given up.")
    tries: int
    created_at: datetime
    next_try_at: datetime | None
    settled_at: datetime | None
    last_status: int | None = Field(description="What the receiver answered the last time.")
    last_error: str | None
    data: dict[str, Any]


class DeliveryList(Page):
    data: list[Delivery]


@router.post(
    "",
    summary="Create a webhook",
    status_code=201,
    response_model=CreatedWebhook,
    responses=errors(400, 403, 404, 408, 413, 422),
    openapi_extra=documented(WebhookCreate, {"url": _WEBHOOK["url"], "events": _WEBHOOK["events"]}),
)
async def create_webhook(
    request: Request, principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf, org_id: OrgIdQuery = None
) -> Response:
    """The secret is in this answer only. What happened before is not told."""
    wanted, now, of_org = await parsed(request, WebhookCreate), services.clock(), target(principal, org_id)

    def create(session: Session) -> webhooks.NewWebhook:
        tenants.get(session, of_org)
        made = webhooks.create(session, services.vault, of_org, wanted.url, wanted.events, wanted.enabled, now)
        data = {"events": wanted.events, "enabled": wanted.enabled}
        audit.write(session, principal, "webhook.create", made.webhook.id, now, data, org_id=of_org)
        return made

    made = await services.db.write(create)
    return json_response({**_render(made.webhook), "secret": made.secret}, 201, _NO_STORE)


@router.get("", summary="List webhooks", response_model=WebhookList, responses=errors(403, 404))
async def list_webhooks(
    principal: OrgAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf, org_id: OrgIdQuery = None
) -> Response:
    """All of them; an organization has few. Oldest first."""
    of_org = target(principal, org_id)
    found = await services.db.read(lambda session: webhooks.list_all(session, of_org))
    return json_response(page([_render(webhook) for webhook in found], None, len(found)))


@router.get("/{id}", summary="Get a webhook", response_model=Webhook, responses=errors(403, 404))
async def get_webhook(
    webhook_id: WebhookIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """Without its secret."""
    of_org = target(principal, org_id)
    return json_response(_render(await services.db.read(lambda session: _find(session, of_org, webhook_id))))


@router.put(
    "/{id}",
    summary="Update a webhook",
    response_model=Webhook,
    responses=errors(400, 403, 404, 408, 413, 422),
    openapi_extra=documented(WebhookUpdate, {"enabled": False}),
)
async def update_webhook(
    webhook_id: WebhookIdParameter,
    request: Request,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """One that is not enabled is told nothing new, and keeps what waits for it until it is enabled again."""
    wanted, now, of_org = await parsed(request, WebhookUpdate), services.clock(), target(principal, org_id)

    def update(session: Session) -> WebhookRow:
        webhook = _find(session, of_org, webhook_id)
        webhooks.change(session, webhook, wanted.url, wanted.events, wanted.enabled, now)
        data = {"events": list(webhook.events), "enabled": webhook.enabled}
        audit.write(session, principal, "webhook.update", webhook.id, now, data, org_id=of_org)
        return webhook

    return json_response(_render(await services.db.write(update)))


@router.delete("/{id}", summary="Delete a webhook", status_code=204, responses=errors(403, 404))
async def delete_webhook(
    webhook_id: WebhookIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """With all deliveries that it had or was to have."""
    now, of_org = services.clock(), target(principal, org_id)

    def delete(session: Session) -> None:
        webhook = _find(session, of_org, webhook_id)
        audit.write(session, principal, "webhook.delete", webhook.id, now, org_id=of_org)
        webhooks.remove(session, webhook)

    await services.db.write(delete)
    return Response(status_code=204)


@router.post(
    "/{id}/test", summary="Test a webhook", status_code=202, response_model=Delivery, responses=errors(403, 404)
)
async def send_test(
    webhook_id: WebhookIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """Sends it a `webhook.test`, whatever it filters. How that went is in its deliveries."""
    now, of_org = services.clock(), target(principal, org_id)

    def emit(session: Session) -> WebhookDelivery:
        delivery = webhooks.emit_test(session, _find(session, of_org, webhook_id), now)
        audit.write(session, principal, "webhook.test", webhook_id, now, org_id=of_org)
        return delivery

    return json_response(_render_delivery(await services.db.write(emit)), 202)


@router.get(
    "/{id}/deliveries",
    summary="List a webhook's deliveries",
    response_model=DeliveryList,
    responses=errors(400, 403, 404, 422),
)
async def list_deliveries(
    webhook_id: WebhookIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    state: Annotated[
        Literal["pending", "delivered", "dead"] | None, Query(description="`dead` lists what was given up.")
    ] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Newest first. Settled ones are kept for 30 days."""
    of_org = target(principal, org_id)
    traversal = Traversal(services.vault, "deliveries", of_org, webhook_id, state)
    position = traversal.position(cursor)
    before = None if position is None else (moment_of(position[0]), position[1])

    def read(session: Session) -> tuple[list[WebhookDelivery], int]:
        webhook = _find(session, of_org, webhook_id)
        found = webhooks.deliveries(session, webhook.id, state=state, before=before, limit=limit + 1)
        return found, webhooks.count_deliveries(session, webhook.id, state=state)

    found, total = await services.db.read(read)
    shown, next_cursor = found[:limit], None
    if len(found) > limit:
        next_cursor = traversal.cursor([moment_key(shown[-1].created_at), shown[-1].id])
    return json_response(page([_render_delivery(delivery) for delivery in shown], next_cursor, total))


@router.post(
    "/deliveries/{id}/resend",
    summary="Send a delivery again",
    status_code=202,
    response_model=Delivery,
    responses=errors(403, 404),
)
async def resend_delivery(
    delivery_id: DeliveryIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """Under its own id, with all tries before it: for what is dead, and for a receiver that lost what it had taken."""
    now, of_org = services.clock(), target(principal, org_id)
    if not _DELIVERY_ID.fullmatch(delivery_id):
        raise NotFound(f"no delivery {delivery_id[:64]!r}")

    def resend(session: Session) -> WebhookDelivery:
        delivery = webhooks.send_again(session, of_org, delivery_id, now)
        audit.write(session, principal, "webhook.resend", delivery.id, now, org_id=of_org)
        return delivery

    return json_response(_render_delivery(await services.db.write(resend)), 202)


def _find(session: Session, org_id: str, webhook_id: str) -> WebhookRow:
    if not _WEBHOOK_ID.fullmatch(webhook_id):
        raise NotFound(f"no webhook {webhook_id[:64]!r}")
    return webhooks.find(session, org_id, webhook_id)


def _render(webhook: WebhookRow) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "org_id": webhook.org_id,
        "url": webhook.url,
        "events": webhook.events,
        "enabled": webhook.enabled,
        "created_at": webhook.created_at,
        "updated_at": webhook.updated_at,
    }


def _render_delivery(delivery: WebhookDelivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "type": delivery.type,
        "state": delivery.state,
        "tries": delivery.tries,
        "created_at": delivery.created_at,
        "next_try_at": delivery.due_at if delivery.settled_at is None else None,
        "settled_at": delivery.settled_at,
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        "data": delivery.data,
    }
