"""The dispatcher outlives what it depends on: a database that is away delays deliveries, and ends nothing."""

import asyncio
from typing import Any, cast

from sqlalchemy import text
from sqlmodel import Session
from structlog.testing import capture_logs
from temporalio.client import Client

from api.dispatcher import Dispatcher
from api.services import Services
from store import inbox
from store.tables import InboxRow
from tests.support.control_plane import until


class Temporal:
    """As much of Temporal as takes signals."""

    def __init__(self) -> None:
        self.signalled: list[tuple[str, str]] = []

    def get_workflow_handle(self, workflow_id: str) -> "_Handle":
        return _Handle(self, workflow_id)


class _Handle:
    def __init__(self, temporal: Temporal, workflow_id: str) -> None:
        self._temporal, self._id = temporal, workflow_id

    async def signal(self, name: str, *_arguments: Any, **_options: Any) -> None:
        self._temporal.signalled.append((self._id, name))


async def test_after_the_database_was_away_it_delivers_what_is_due(services: Services) -> None:
    temporal = Temporal()
    services.temporal = cast(Client, temporal)
    services.settings.sweep_interval_seconds = 0.01
    db, now = services.db, services.clock()
    await db.write(lambda session: inbox.put(session, "job_1", inbox.PRICE, now))
    await db.write(lambda session: session.connection().execute(text("ALTER TABLE workflow_inbox RENAME TO away")))
    with capture_logs() as said:
        running = asyncio.create_task(Dispatcher(services).run())

        async def failed() -> bool:
            return "inbox_not_read" in [entry["event"] for entry in said]

        await until(failed, what="it did not notice that the database is away")
    await db.write(lambda session: session.connection().execute(text("ALTER TABLE away RENAME TO workflow_inbox")))

    await until(lambda: db.read(_delivered), what=lambda: f"not delivered; the dispatcher: {running}")
    running.cancel()

    assert temporal.signalled == [("job_1", "price_changed")]


def _delivered(session: Session) -> bool:
    return session.get_one(InboxRow, 1).delivered_at is not None
