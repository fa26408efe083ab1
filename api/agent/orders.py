"""Orders to agents: a poll that is held until there is one, or its time is over.

One task per process looks for all held polls with one query, twice a second, and at once when a transaction of this
process may have given an order.
"""

from collections.abc import Sequence

import structlog
from sqlalchemy import or_
from sqlmodel import Session, col, select

from api.presence import Order
from api.services import Services
from store.db import woken
from store.lifecycle import ORDERS
from store.tables import Instance

logger = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
_IDS_IN_A_QUERY = 500


def order_of(instance: Instance) -> Order:
    """What the agent of `instance` is told now. One that counts as absent has nothing to go on for."""
    stopped = instance.stop_requested_at is not None or instance.confirmed_absent_at is not None
    return Order.STOP if stopped else Order.NONE


class OrderBoard:
    """Answers the polls that are held in this process."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self) -> None:
        """Until cancelled; then every held poll is released."""
        wakeup = self._services.db.subscribe(ORDERS)
        try:
            while True:
                wakeup.clear()
                try:
                    await self.look()
                except Exception:
                    logger.exception("orders_not_read")
                await woken(wakeup, LOOK_SECONDS)
        finally:
            self._services.db.unsubscribe(ORDERS, wakeup)
            self._services.presence.release()

    async def look(self) -> None:
        """Answers every held poll for which there is an order."""
        held = self._services.presence.awaiting_orders()
        if not held:
            return
        for instance_id in await self._services.db.read(lambda session: _stopped(session, held)):
            self._services.presence.give(instance_id, Order.STOP)


def _stopped(session: Session, instance_ids: Sequence[str]) -> list[str]:
    stopped = or_(col(Instance.stop_requested_at).is_not(None), col(Instance.confirmed_absent_at).is_not(None))
    found: list[str] = []
    for start in range(0, len(instance_ids), _IDS_IN_A_QUERY):
        some = instance_ids[start : start + _IDS_IN_A_QUERY]
        found += session.exec(select(Instance.id).where(col(Instance.id).in_(some), stopped)).all()
    return found
