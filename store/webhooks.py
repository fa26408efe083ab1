"""Webhooks and their outbox. A notice is written in the transaction of what it tells, for each webhook that wants it;
`api.webhook_delivery` sends it. All runs inside `Database.read` or `Database.write`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Integer, Select, bindparam, delete, func, or_, update
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from domain.errors import InvalidRequest, NotFound
from domain.ids import new_id, new_token
from domain.notices import DeliveryState, NoticeType
from domain.states import JobState
from store.columns import UtcDateTime
from store.db import publish
from store.tables import Job, Organization, Project, Webhook, WebhookDelivery
from store.vault import Vault

TOPIC = "webhooks"
MOST_WEBHOOKS = 20
"""Of one organization: each event is a row for each of them."""
_MOST_CHARACTERS = 500

_WANTED_BY = select_columns(col(Webhook.id), col(Webhook.events)).where(
    col(Webhook.org_id) == bindparam("org"), col(Webhook.enabled).is_(True)
)
_JOB_COLUMNS: list[Any] = [
    *(col(c) for c in (Job.org_id, Job.name, Job.kind, Job.labels, Job.created_at, Job.exit_code)),
    col(Project.name).label("project"),
    col(Organization.provider_anonymity),
]
# Each job's end asks this: one statement, and for most organizations no row.
_WANTED_BY_OF_JOB: Select[Any] = (
    select_columns(col(Webhook.id), col(Webhook.events), *_JOB_COLUMNS)
    .join_from(Job, Webhook, col(Webhook.org_id) == col(Job.org_id))
    .join(Organization, col(Organization.id) == col(Job.org_id))
    .outerjoin(Project, col(Project.id) == col(Job.project_id))
    .where(col(Job.id) == bindparam("job"), col(Webhook.enabled).is_(True))
)
_IS_DUE: list[Any] = [
    col(WebhookDelivery.settled_at).is_(None),
    col(WebhookDelivery.due_at) <= bindparam("now", type_=UtcDateTime),
    col(Webhook.enabled).is_(True),
]
_ORDER: list[Any] = [col(WebhookDelivery.due_at), col(WebhookDelivery.id)]
# The organizations take turns: one with thousands of deliveries that nobody answers must not keep the others waiting.
_TURNS = (
    select_columns(
        col(WebhookDelivery.id),
        func.row_number().over(partition_by=col(WebhookDelivery.org_id), order_by=_ORDER).label("turn"),
    )
    .join(Webhook, col(Webhook.id) == col(WebhookDelivery.webhook_id))
    .where(*_IS_DUE)
    .subquery()
)
_DUE = (
    select(WebhookDelivery)
    .join(_TURNS, _TURNS.c.id == col(WebhookDelivery.id))
    .join(Webhook, col(Webhook.id) == col(WebhookDelivery.webhook_id))
    # Asked again: what another process has claimed meanwhile is not due any more.
    .where(*_IS_DUE)
    .order_by(_TURNS.c.turn, *_ORDER)
    .limit(bindparam("most", type_=Integer))
    .with_for_update(of=WebhookDelivery, skip_locked=True)
)


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A webhook just made; its secret is never shown again."""

    webhook: Webhook
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery that is due, with where it goes."""

    delivery: WebhookDelivery
    url: str
    secret_sealed: bytes = field(repr=False)


# The endpoints -------------------------------------------------------------------------------------------------------


def create(
    session: Session, vault: Vault, org_id: str, url: str, events: Sequence[str], enabled: bool, now: datetime
) -> NewWebhook:
    """A webhook with a new secret.

    Raises:
        InvalidRequest: the organization has as many as it may.
    """
    held = session.exec(select(func.count()).select_from(Webhook).where(Webhook.org_id == org_id)).one()
    if held >= MOST_WEBHOOKS:
        raise InvalidRequest(
            f"the organization has {held} webhooks, and may have {MOST_WEBHOOKS}", field="url", limit=MOST_WEBHOOKS
        )
    webhook_id, secret = new_id("wh"), f"whsec_{new_token()}"
    webhook = Webhook(
        id=webhook_id,
        org_id=org_id,
        url=url,
        events=list(events),
        enabled=enabled,
        secret_sealed=vault.seal(secret.encode(), secret_context(webhook_id)),
        created_at=now,
        updated_at=now,
    )
    session.add(webhook)
    session.flush()
    return NewWebhook(webhook, secret)


def secret_context(webhook_id: str) -> str:
    """What a webhook's secret is sealed for."""
    return f"webhook:{webhook_id}"


def find(session: Session, org_id: str, webhook_id: str) -> Webhook:
    """Raises NotFound when the organization has none of this id."""
    webhook = session.get(Webhook, webhook_id)
    if webhook is None or webhook.org_id != org_id:
        raise NotFound(f"no webhook {webhook_id[:64]!r}")
    return webhook


def list_all(session: Session, org_id: str) -> list[Webhook]:
    """At most `MOST_WEBHOOKS`, oldest first."""
    query = select(Webhook).where(Webhook.org_id == org_id).order_by(col(Webhook.created_at), col(Webhook.id))
    return list(session.exec(query).all())


def change(
    session: Session,
    webhook: Webhook,
    url: str | None,
    events: Sequence[str] | None,
    enabled: bool | None,
    now: datetime,
) -> None:
    """Changes what is given. What waits for a webhook that is enabled again is delivered then."""
    webhook.url = webhook.url if url is None else url
    webhook.events = webhook.events if events is None else list(events)
    webhook.enabled = webhook.enabled if enabled is None else enabled
    webhook.updated_at = now
    session.add(webhook)
    publish(session, TOPIC)


def remove(session: Session, webhook: Webhook) -> None:
    """The webhook, and all that was or was to be sent to it."""
    session.exec(delete(WebhookDelivery).where(col(WebhookDelivery.webhook_id) == webhook.id))
    session.delete(webhook)


# Notices -------------------------------------------------------------------------------------------------------------


def emit(session: Session, org_id: str, kind: NoticeType, data: dict[str, Any], now: datetime) -> None:
    """Puts the notice into the outbox for each enabled webhook that wants it. `data` must hold no secret."""
    rows = session.connection().execute(_WANTED_BY, {"org": org_id}).all()
    _put(session, [row.id for row in rows if not row.events or kind in row.events], org_id, kind, data, now)


def emit_test(session: Session, webhook: Webhook, now: datetime) -> WebhookDelivery:
    """A notice for one webhook, to try it out."""
    [delivery] = _put(session, [webhook.id], webhook.org_id, NoticeType.TEST, {"message": "it works"}, now)
    return delivery


def job_ended(
    session: Session, job_id: str, state: JobState, reason: str | None, message: str | None, now: datetime
) -> None:
    """Tells of a job's end, in the transaction of its terminal transition."""
    rows = session.connection().execute(_WANTED_BY_OF_JOB, {"job": job_id}).all()
    kind = NoticeType(f"job.{state.value}")
    wanted = [row for row in rows if not row.events or kind in row.events]
    if not wanted:
        return
    job = wanted[0]
    if job.provider_anonymity:
        # A sentence may name the provider: whoever may read it asks the API.
        message = None
    data = {
        "job": {
            "id": job_id,
            "name": job.name,
            "project": job.project,
            "kind": job.kind,
            "labels": job.labels or {},
            "state": state.value,
            "reason": None if reason is None else {"code": reason, "message": message or reason},
            "exit_code": job.exit_code,
            "created_at": _text(job.created_at),
            "terminal_at": _text(now),
        }
    }
    _put(session, [row.id for row in wanted], job.org_id, kind, data, now)


def _put(
    session: Session, webhook_ids: Sequence[str], org_id: str, kind: NoticeType, data: dict[str, Any], now: datetime
) -> list[WebhookDelivery]:
    rows = [
        WebhookDelivery(
            id=new_id("whd"),
            webhook_id=webhook_id,
            org_id=org_id,
            type=kind.value,
            data=data,
            state=DeliveryState.PENDING,
            created_at=now,
            due_at=now,
        )
        for webhook_id in webhook_ids
    ]
    session.add_all(rows)
    if rows:
        session.flush()
        publish(session, TOPIC)
    return rows


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# Delivery ------------------------------------------------------------------------------------------------------------


def claim_due(session: Session, now: datetime, *, limit: int, lease_seconds: float) -> list[Parcel]:
    """Takes up to `limit` deliveries that are due, the organizations in turn, and hides them from others for the lease:
    a process that dies leaves them due again."""
    rows = list(session.execute(_DUE, {"now": now, "most": limit}).scalars())
    webhooks = {
        webhook.id: webhook
        for webhook in session.exec(select(Webhook).where(col(Webhook.id).in_({row.webhook_id for row in rows}))).all()
    } if rows else {}  # fmt: skip
    for row in rows:
        row.due_at, row.tries = now + timedelta(seconds=lease_seconds), row.tries + 1
        session.add(row)
    session.flush()
    return [Parcel(row, webhooks[row.webhook_id].url, webhooks[row.webhook_id].secret_sealed) for row in rows]


def delivered(session: Session, delivery_id: str, status: int | None, now: datetime) -> None:
    """The receiver took it."""
    _settle(session, delivery_id, state=DeliveryState.DELIVERED, settled_at=now, last_status=status, last_error=None)


def failed(
    session: Session, delivery_id: str, status: int | None, error: str, now: datetime, retry_at: datetime | None
) -> None:
    """The receiver did not take it: it is due again at `retry_at`, or dead where that is None."""
    noted: dict[str, Any] = {"last_status": status, "last_error": error[:_MOST_CHARACTERS]}
    if retry_at is None:
        _settle(session, delivery_id, state=DeliveryState.DEAD, settled_at=now, **noted)
    else:
        _settle(session, delivery_id, due_at=retry_at, **noted)


def _settle(session: Session, delivery_id: str, **values: Any) -> None:
    """A delivery that was settled meanwhile, by another process or a removal, stays as it is."""
    unsettled = (col(WebhookDelivery.id) == delivery_id, col(WebhookDelivery.settled_at).is_(None))
    session.exec(update(WebhookDelivery).where(*unsettled).values(**values))


def deliveries(
    session: Session, webhook_id: str, *, state: str | None, before: tuple[datetime, str] | None, limit: int
) -> list[WebhookDelivery]:
    """Up to `limit` deliveries of a webhook, newest first, from the one that follows `before`."""
    query = select(WebhookDelivery).where(*_of_webhook(webhook_id, state))
    if before is not None:
        moment, last = before
        query = query.where(
            or_(
                col(WebhookDelivery.created_at) < moment,
                (col(WebhookDelivery.created_at) == moment) & (col(WebhookDelivery.id) < last),
            )
        )
    query = query.order_by(col(WebhookDelivery.created_at).desc(), col(WebhookDelivery.id).desc()).limit(limit)
    return list(session.exec(query).all())


def count_deliveries(session: Session, webhook_id: str, *, state: str | None) -> int:
    """How many `deliveries` would list in all."""
    query = select(func.count()).select_from(WebhookDelivery).where(*_of_webhook(webhook_id, state))
    return int(session.exec(query).one())


def send_again(session: Session, org_id: str, delivery_id: str, now: datetime) -> WebhookDelivery:
    """Sends a delivery once more, under its own id, as if it were new. One that is pending is due at once.

    Raises:
        NotFound: the organization has none of this id.
    """
    row = session.get(WebhookDelivery, delivery_id)
    if row is None or row.org_id != org_id:
        raise NotFound(f"no delivery {delivery_id[:64]!r}")
    row.state, row.settled_at, row.due_at, row.tries = DeliveryState.PENDING, None, now, 0
    session.add(row)
    session.flush()
    publish(session, TOPIC)
    return row


def prune(session: Session, before: datetime) -> int:
    """Forgets what was settled before `before`; says how many."""
    return session.exec(delete(WebhookDelivery).where(col(WebhookDelivery.settled_at) < before)).rowcount


def _of_webhook(webhook_id: str, state: str | None) -> list[Any]:
    conditions: list[Any] = [col(WebhookDelivery.webhook_id) == webhook_id]
    return [*conditions, col(WebhookDelivery.state) == state] if state is not None else conditions
