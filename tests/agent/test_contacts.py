"""Signs of life reach the rows and Temporal in batches, and never say more than is true."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from api.agent.contacts import Contacts
from api.services import Services
from domain.states import JobState
from settings import Settings
from store.db import Database
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.tables import Instance
from store.vault import Vault
from tests.agent.site import Site, until
from tests.support.clock import SettableClock
from tests.support.factory import Factory


class Temporal:
    """Takes heartbeats; is away on demand."""

    def __init__(self) -> None:
        self.beats: list[tuple[str, str, str, Mapping[str, int]]] = []
        self.away = False

    async def heartbeat(self, run_id: str, activity_id: str, job_id: str, details: Mapping[str, int]) -> None:
        if self.away:
            raise ConnectionError("no Temporal here")
        self.beats.append((run_id, activity_id, job_id, details))


@pytest.fixture
def temporal() -> Temporal:
    return Temporal()


@pytest.fixture
def services(database: Database, vault: Vault, clock: SettableClock, tmp_path: Path) -> Services:
    settings = Settings(data_dir=tmp_path)
    return Services(settings, database, vault, LogStore(database, open_blob_store(settings.segment_url), clock), clock)


@pytest.fixture
def instance(factory: Factory) -> Instance:
    job = factory.job(JobState.RUNNING)
    return factory.instance(job, stream_run_id="run", stream_activity_id="stream-1")


async def flushed(contacts: Contacts) -> None:
    await contacts.flush()
    await contacts.settled()


async def test_a_contact_is_stored_and_beaten_once_per_interval(
    services: Services, temporal: Temporal, instance: Instance, clock: SettableClock, database: Database
) -> None:
    contacts = Contacts(services, temporal.heartbeat)
    services.db.run_write(lambda s: services.logs.append_chunk(s, instance, "stdout", 0, b"a\nb\n", clock()))
    for _ in range(20):
        services.presence.note(instance.id, clock())
        await flushed(contacts)
        clock.advance(1)
    assert temporal.beats == [("run", "stream-1", instance.job_id, {"log_offset": 4, "lines": 2})]
    services.presence.note(instance.id, clock())
    await flushed(contacts)
    assert len(temporal.beats) == 2
    assert database.run_read(lambda s: s.get_one(Instance, instance.id)).last_contact_at == clock()


async def test_a_silent_agent_is_not_beaten_for_and_a_held_one_is(
    services: Services, temporal: Temporal, instance: Instance, clock: SettableClock, database: Database
) -> None:
    contacts = Contacts(services, temporal.heartbeat)
    heard_at = clock()
    with services.presence.held(instance.id, clock):
        await flushed(contacts)
        heard_at = clock.advance(30)
        await flushed(contacts)
    assert len(temporal.beats) == 2
    clock.advance(30)
    await flushed(contacts)
    assert len(temporal.beats) == 2
    assert database.run_read(lambda s: s.get_one(Instance, instance.id)).last_contact_at == heard_at


async def test_a_heartbeat_that_fails_is_tried_again_and_the_row_is_right(
    services: Services, temporal: Temporal, instance: Instance, clock: SettableClock
) -> None:
    contacts = Contacts(services, temporal.heartbeat)
    temporal.away = True
    services.presence.note(instance.id, clock())
    await flushed(contacts)
    temporal.away = False
    clock.advance(20)
    services.presence.note(instance.id, clock())
    await flushed(contacts)
    assert len(temporal.beats) == 1


async def test_an_instance_without_an_open_activity_is_stored_and_beaten_once_it_has_one(
    services: Services, temporal: Temporal, factory: Factory, clock: SettableClock, database: Database
) -> None:
    early = factory.instance(factory.job(JobState.PROVISIONING))
    contacts = Contacts(services, temporal.heartbeat)
    services.presence.note(early.id, clock())
    await flushed(contacts)
    assert temporal.beats == []

    def open_stream(session: object) -> None:
        row = session.get_one(Instance, early.id)  # type: ignore[attr-defined]
        row.stream_run_id, row.stream_activity_id = "run", "stream-1"

    database.run_write(open_stream)
    clock.advance(1)
    services.presence.note(early.id, clock())
    await flushed(contacts)
    assert len(temporal.beats) == 1


async def test_many_instances_are_stored_in_one_transaction(
    services: Services, temporal: Temporal, factory: Factory, clock: SettableClock
) -> None:
    job = factory.job(JobState.RUNNING)
    instances = [
        factory.instance(job, number=number, stream_run_id="run", stream_activity_id=f"stream-{number}")
        for number in range(1, 101)
    ]
    contacts = Contacts(services, temporal.heartbeat)
    for instance in instances:
        services.presence.note(instance.id, clock())
    await flushed(contacts)
    assert len({activity_id for _, activity_id, *_ in temporal.beats}) == 100


async def test_an_agent_that_hangs_up_is_held_no_longer(site: Site) -> None:
    attempt = await site.run("sleep", "300")

    def holds() -> int:
        contact = site.services.presence.contacts.get(attempt.instance.id)
        return contact.held if contact else 0

    await until(holds, what="the poll is held")
    assert attempt.process is not None
    site.kill(attempt)
    await until(lambda: not holds(), seconds=5, what="the poll is let go")
