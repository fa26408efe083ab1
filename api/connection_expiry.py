"""Wipes credentials that no worker verified in time: this process is there even where no worker is."""

import asyncio
from functools import partial

import structlog

from api.services import Services
from store import connections

logger = structlog.get_logger(__name__)

_PAUSE_SECONDS = 30.0


async def wipe_unverified(services: Services) -> None:
    """Until cancelled."""
    while True:
        try:
            await services.db.write(partial(connections.expire_candidates, now=services.clock()))
        except Exception:
            logger.exception("unverified_connections_not_wiped")
        await asyncio.sleep(_PAUSE_SECONDS)
