"""Two workers on one database: what is connected, edited or removed by one reaches the other within its interval."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from activities.connections import ConnectionKeeper
from activities.context import Context
from providers.connected import ConnectedProvider
from providers.fake.provider import FakeProvider
from providers.registry import Providers
from settings import Settings
from store import connections
from store.connections import Scope
from store.db import Database
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.tables import Connection
from store.vault import Vault
from tests.providers.connectable import SIMULATED, installed
from tests.support.clock import SettableClock
from tests.support.control_plane import until

INTERVAL_SECONDS = 0.05


@pytest.fixture(autouse=True)
def _third_party(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("site"), monkeypatch):
        yield


class NoSchedules:
    """What each worker wants kept and dropped."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.dropped: list[str] = []

    async def keep(self, connection_id: str) -> None:
        self.kept.append(connection_id)

    async def drop(self, connection_id: str) -> None:
        self.dropped.append(connection_id)

    async def drop_stale(self, stored: set[str]) -> None:
        pass


class WorkerProcess:
    """A keeper with a database connection of its own, as in a process of its own: it hears of nothing at once."""

    def __init__(self, url: str, directory: Path, vault: Vault, clock: SettableClock) -> None:
        settings = Settings(data_dir=directory, connections_interval_seconds=INTERVAL_SECONDS)
        self.db, blobs = Database(url), open_blob_store(settings.segment_url)
        logs = LogStore(self.db, blobs, clock)
        self.context = Context(settings, self.db, vault, logs, blobs, clock, Providers({}), "owner")
        self.schedules = NoSchedules()

    def key_of(self, connection_id: str) -> str | None:
        """The key that it would rent with; None while it does not know the connection."""
        provider: Any = self.context.providers.by_connection.get(connection_id)
        if provider is None:
            return None
        assert isinstance(provider, ConnectedProvider)
        assert isinstance(provider._held.provider, FakeProvider)
        return str(provider._held.provider._context.options["api_key"])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(ConnectionKeeper(self.context).run(self.schedules))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.context.providers.close()
            self.db.close()


async def test_a_connection_an_edit_and_a_removal_reach_every_worker(
    database: Database, tmp_path: Path, vault: Vault, clock: SettableClock
) -> None:
    workers = [WorkerProcess(database.url, tmp_path / name, vault, clock) for name in ("one", "two")]
    values = {"url": "http://127.0.0.1:9", "api_key": "first"}

    def accepted(session: Session, connection_id: str) -> None:
        number = session.get_one(Connection, connection_id).verification
        connections.verified(session, connection_id, number, "ok", "", clock())

    def edit(session: Session, connection_id: str) -> None:
        row = session.get_one(Connection, connection_id)
        changed = {**values, "api_key": "second"}
        connections.begin_verification(session, vault, row, SIMULATED, changed, clock())

    async def everywhere(id_: str, key: str | None) -> None:
        async def there() -> bool:
            return all(worker.key_of(id_) == key for worker in workers)

        await until(there, seconds=20, what=f"{key} in both")

    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker.running())
        # In the first one, as its activity does; the second one has only the database to learn it from.
        db = workers[0].db
        id_ = await db.write(lambda s: connections.connect(s, vault, Scope(), SIMULATED, "x", values, clock()).id)
        await asyncio.sleep(4 * INTERVAL_SECONDS)
        assert [worker.key_of(id_) for worker in workers] == [None, None]
        await db.write(lambda s: accepted(s, id_))
        await everywhere(id_, "first")
        held = [worker.context.providers.by_connection[id_] for worker in workers]
        await db.write(lambda s: edit(s, id_))
        await db.write(lambda s: accepted(s, id_))
        await everywhere(id_, "second")
        # Whoever holds it goes on with the new key.
        assert [worker.context.providers.by_connection[id_] for worker in workers] == held
        await db.write(lambda s: connections.remove(s, connections.find(s, id_, None), clock(), terminate=False))
        await everywhere(id_, None)

        async def forgotten() -> bool:
            return all(worker.schedules.dropped == [id_] for worker in workers)

        await until(forgotten, seconds=20)
        assert all(set(worker.schedules.kept) == {id_} for worker in workers)
