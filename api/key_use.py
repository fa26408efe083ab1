"""When each key was last used: noted in memory, written once a minute, never in the way of a request."""

import asyncio
from datetime import datetime
from functools import partial

import structlog

from store.access import note_use
from store.db import Database

logger = structlog.get_logger(__name__)

INTERVAL_SECONDS = 60.0


class KeyUse:
    """The uses that this process has seen and not yet written: one time a key, whatever the number of requests."""

    def __init__(self) -> None:
        self._used: dict[str, datetime] = {}

    def note(self, key_id: str, now: datetime) -> None:
        """Remembers that the key was just used."""
        self._used[key_id] = now

    async def flush(self, db: Database) -> None:
        """Writes what was noted. What cannot be written is noted still."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await db.write(partial(note_use, used=used))
        except Exception:
            logger.exception("key_use_not_written", keys=len(used))
            self._used = used | self._used

    async def run(self, db: Database) -> None:
        """Writes until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.flush(db)
