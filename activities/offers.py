"""`poll_offers`: asks a connection what it would rent, and keeps the answer for quotes and lists."""

import asyncio
import time
from collections.abc import Sequence

from sqlmodel import Session
from temporalio import activity

from activities.context import Context, heartbeating, log
from activities.failures import bounded
from domain.errors import Ambiguous, AuthError, ProviderError
from domain.offers import Offer
from providers.base import OfferQuery, Provider
from store import offers, sweeps
from store.connections import is_stored

_POLL_SECONDS = 90.0
_MOST_OFFERS = 100_000
_ID_CHARACTERS = 256


class OffersActivities:
    """One poll per connection and interval."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def poll_offers(self, connection_id: str) -> str:
        """Replaces the connection's snapshot, or notes why that failed. Answers what it found."""
        async with heartbeating():
            db = self._context.db
            provider = self._context.providers.by_connection.get(connection_id)
            if provider is None:
                if is_stored(connection_id):
                    # It goes with its row, or this process has not heard of it yet.
                    return f"{connection_id}: not loaded here"
                # Its schedule has outlived its configuration.
                await db.write(lambda session: _forget(session, connection_id))
                return f"{connection_id}: not configured here any more"
            began = time.monotonic()
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    found = await self._ask(connection_id, provider)
                    # Of a local engine it is found out by running a container.
                    capabilities = await asyncio.to_thread(lambda: provider.capabilities)
            except TimeoutError:
                error: ProviderError = Ambiguous(f"offers: no answer within {_POLL_SECONDS:g} s")
            except ProviderError as refused:
                error = refused
            else:
                took, now = _milliseconds_since(began), self._context.clock()
                snapshot = await asyncio.to_thread(offers.Snapshot.of, found)
                changed = await db.write(
                    lambda s: offers.replace(s, connection_id, provider.name, capabilities, snapshot, took, now)
                )
                return f"{connection_id}: {len(found)} offers, {changed} changed, in {took} ms"
            took, now, message = _milliseconds_since(began), self._context.clock(), bounded(error.message)
            log.warning("offers_unavailable", connection=connection_id, kind=error.kind, message=message)
            await db.write(
                lambda s: offers.poll_failed(s, connection_id, provider.name, error.kind, message, took, now)
            )
            return f"{connection_id}: the offers could not be read ({error.kind}): {message}"

    async def _ask(self, connection_id: str, provider: Provider) -> list[Offer]:
        if connection_id in await self._context.db.read(offers.blocked):
            # Price lists are often public: that one can be read does not mean that the account is well again.
            report = await provider.verify()
            if report.status != "ok":
                raise AuthError(f"verify: {report.status}: {report.message}")
        found = await provider.offers(OfferQuery())
        _check(connection_id, found)
        return found


def _forget(session: Session, connection_id: str) -> None:
    offers.forget(session, connection_id)
    sweeps.forget(session, connection_id)


def _check(connection_id: str, found: Sequence[Offer]) -> None:
    """Raises Ambiguous for an answer that cannot be kept: half a list is worse than an older one."""
    if len(found) > _MOST_OFFERS:
        raise Ambiguous(f"offers: {len(found)} of them, at most {_MOST_OFFERS} are kept")
    seen: set[str] = set()
    for offer in found:
        if (
            offer.connection_id != connection_id
            or not 0 < len(offer.id) <= _ID_CHARACTERS
            or not offer.id.isprintable()
        ):
            raise Ambiguous(f"offers: {offer.id[:_ID_CHARACTERS]!r} is not the id of an offer of {connection_id}")
        if offer.id in seen:
            raise Ambiguous(f"offers: {offer.id!r} is there twice")
        seen.add(offer.id)


def _milliseconds_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
