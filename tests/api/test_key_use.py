"""When a key was last used: written by itself, once for many requests, and never earlier than what is known."""

from datetime import timedelta

from api.services import Services
from store.access import note_use
from store.db import Database
from store.tables import ApiKey
from tests.api.conftest import Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory


def last_used(database: Database, key_id: str) -> object:
    return database.run_read(lambda s: s.get_one(ApiKey, key_id)).last_used_at


async def test_requests_are_noted_and_written_together(api: Api, services: Services, clock: SettableClock) -> None:
    for _ in range(3):
        clock.advance(1)
        assert api.get("/jobs").status_code == 200
    assert last_used(services.db, api.key.key_id) is None
    await services.key_use.flush(services.db)
    assert last_used(services.db, api.key.key_id) == clock()


async def test_what_cannot_be_written_is_kept_for_the_next_time(
    api: Api, services: Services, clock: SettableClock, monkeypatch: object
) -> None:
    api.get("/jobs")

    class Broken:
        async def write(self, _change: object) -> None:
            raise OSError("the disk is full")

    await services.key_use.flush(Broken())  # type: ignore[arg-type]
    await services.key_use.flush(services.db)
    assert last_used(services.db, api.key.key_id) == clock()


def test_an_earlier_use_of_another_process_changes_nothing(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    key = factory.key()
    database.run_write(lambda s: note_use(s, {key.key_id: clock()}))
    database.run_write(lambda s: note_use(s, {key.key_id: clock() - timedelta(minutes=1), "key_unknown": clock()}))
    assert last_used(database, key.key_id) == clock()
