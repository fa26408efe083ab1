"""Delivers the webhooks' outbox: after each commit that put something into it, and by a sweep for what is due again.

A delivery happens at least once: a process that dies after the receiver took it sends it again, under the same id.
"""

import asyncio
import random
from functools import partial

import structlog

from api.encoding import encode
from api.services import Services
from domain.notices import retry_at, signature
from egress import Egress, EgressError, parse_networks
from store import webhooks
from store.db import woken
from store.tables import WebhookDelivery
from store.vault import VaultError
from store.webhooks import Parcel

log = structlog.get_logger()

# All of a batch are sent at once: receivers that do not answer hold up the others for one time-out at most.
_BATCH = 50
_LEASE_SECONDS = 60.0


class WebhookSender:
    """One per API process. Several share the work: what one has claimed is hidden from the others for a lease."""

    def __init__(self, services: Services, egress: Egress | None = None) -> None:
        settings = services.settings
        self._services = services
        self._egress = egress or Egress(parse_networks(settings.egress_allowed_networks))
        self._jitter = random.Random()  # noqa: S311 - spreads retries, protects nothing

    async def run(self) -> None:
        """Until cancelled."""
        wakeup = self._services.db.subscribe(webhooks.TOPIC)
        try:
            while True:
                wakeup.clear()
                sent = 0
                try:
                    sent = await self.send_due()
                except Exception:
                    # The database is away: what is due stays due.
                    log.exception("webhooks_not_read")
                if sent < _BATCH:
                    await woken(wakeup, self._services.settings.sweep_interval_seconds)
        finally:
            self._services.db.unsubscribe(webhooks.TOPIC, wakeup)

    async def send_due(self) -> int:
        """Sends what is due, and waits for all answers. Returns the number of deliveries that were tried."""
        now = self._services.clock()
        parcels = await self._services.db.write(
            lambda session: webhooks.claim_due(session, now, limit=_BATCH, lease_seconds=_LEASE_SECONDS)
        )
        await asyncio.gather(*(self._send(parcel) for parcel in parcels))
        return len(parcels)

    async def _send(self, parcel: Parcel) -> None:
        status, problem = await self._post(parcel)
        delivery, now = parcel.delivery, self._services.clock()
        if problem is None:
            await self._services.db.write(partial(webhooks.delivered, delivery_id=delivery.id, status=status, now=now))
            return
        again = retry_at(now, delivery.tries, self._services.settings.webhook_retry_seconds, self._jitter)
        failed = partial(
            webhooks.failed, delivery_id=delivery.id, status=status, error=problem, now=now, retry_at=again
        )
        await self._services.db.write(failed)
        log.warning("webhook_failed", delivery_id=delivery.id, tries=delivery.tries, dead=again is None, error=problem)

    async def _post(self, parcel: Parcel) -> tuple[int | None, str | None]:
        """The status that the receiver answered, and what was wrong; nothing was when it is a 2xx."""
        delivery = parcel.delivery
        body = body_of(delivery)
        try:
            context = webhooks.secret_context(delivery.webhook_id)
            secret = self._services.vault.open(parcel.secret_sealed, context).decode()
            headers = {
                "Content-Type": "application/json",
                "User-Agent": "Headrace-Webhook/1",
                "Headrace-Delivery": delivery.id,
                "Headrace-Event": delivery.type,
                # Of each try: an old signature is what a receiver refuses.
                "Headrace-Signature": signature(secret, self._services.clock(), body),
            }
            answer = await self._egress.post(parcel.url, body, headers)
        except (EgressError, VaultError) as error:
            return None, str(error)
        if 200 <= answer.status < 300:
            return answer.status, None
        return answer.status, f"the receiver answered {answer.status}"


def body_of(delivery: WebhookDelivery) -> bytes:
    """What is sent and signed: the same bytes at every try."""
    return encode({"id": delivery.id, "type": delivery.type, "created_at": delivery.created_at, "data": delivery.data})
