"""What a workload writes of its secrets is masked before it is stored, however its output was cut into chunks."""

from pathlib import Path

import orjson
import pytest
from sqlmodel import select

from domain.ids import new_job_id
from domain.masking import StreamMask
from store.db import Database
from store.logs.output_mask import OutputMask, OutputMasks, ending
from store.logs.store import LogStore, open_blob_store
from store.tables import Instance, LogStream
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.logs import LogWriter, texts

SECRET = "hunter-two/and+more"


@pytest.fixture
def logs(database: Database, clock: SettableClock, tmp_path: Path) -> LogStore:
    return LogStore(database, open_blob_store(f"file://{tmp_path}/logs"), clock)


def mask_of(
    database: Database, vault: Vault, instance: Instance, masks: OutputMasks | None = None
) -> OutputMask | None:
    chosen = masks or OutputMasks()
    return database.run_read(lambda s: chosen.of(s, vault, instance))


def launched(factory: Factory, vault: Vault, *secrets: str) -> Instance:
    """An instance whose workload knows `secrets`."""
    instance = factory.instance(factory.job())
    content = {"env": {f"S{n}": secret for n, secret in enumerate(secrets)}, "unseen": []}
    instance.secrets_sealed = vault.seal(orjson.dumps(content), f"launch:{instance.id}")
    return instance


@pytest.fixture
def writer(database: Database, logs: LogStore, factory: Factory, vault: Vault, clock: SettableClock) -> LogWriter:
    instance = launched(factory, vault, SECRET)
    writer = LogWriter(database, logs, instance, clock)
    writer.mask = mask_of(database, vault, instance)
    assert writer.mask is not None
    return writer


def held(database: Database) -> list[bytes | None]:
    return [row.held for row in database.run_read(lambda s: s.exec(select(LogStream)).all())]


async def test_a_secret_is_masked_wherever_the_chunks_were_cut(
    writer: LogWriter, logs: LogStore, database: Database
) -> None:
    data = f"it is {SECRET}.\n".encode()
    for place in range(len(data) + 1):
        writer.send(data[:place])
        writer.send(data[place:])
    assert await texts(logs, writer.instance.job_id) == ["it is ***."] * (len(data) + 1)
    assert held(database) == [None]
    assert writer.acked()["stdout"] == len(data) * (len(data) + 1)


async def test_what_may_begin_a_secret_waits_sealed(writer: LogWriter, database: Database) -> None:
    writer.send(b"it is " + SECRET.encode()[:-1])
    [kept] = held(database)
    assert kept is not None
    assert SECRET.encode()[:-1] not in kept
    [row] = database.run_read(lambda s: s.exec(select(LogStream)).all())
    assert SECRET.encode()[:4] not in (row.line_state or b"")


async def test_another_process_goes_on_where_one_was(writer: LogWriter, logs: LogStore, vault: Vault) -> None:
    writer.send(b"it is " + SECRET.encode()[:10])
    writer.mask = mask_of(writer.database, vault, writer.instance)
    writer.send(SECRET.encode()[10:] + b"\n")
    assert await texts(logs, writer.instance.job_id) == ["it is ***"]


@pytest.mark.parametrize(("characters", "shown"), [(1, "h"), (5, "hunte"), (6, "***"), (18, "***")])
async def test_a_secret_that_the_end_cut_off_is_one(
    writer: LogWriter, logs: LogStore, database: Database, characters: int, shown: str
) -> None:
    writer.send(b"it is " + SECRET.encode()[:characters])
    writer.finish()
    writer.finish()
    assert await texts(logs, writer.instance.job_id) == [f"it is {shown}"]
    assert held(database) == [None]


async def test_streams_are_told_apart(writer: LogWriter, logs: LogStore) -> None:
    half = SECRET.encode()[:9]
    writer.send(half)
    writer.send(half, "stderr")
    writer.send(SECRET.encode()[9:] + b"\n")
    writer.send(b"\n", "stderr")
    assert await texts(logs, writer.instance.job_id) == ["***", "hunter-tw"]


async def test_a_bar_that_holds_a_secret_shows_none(writer: LogWriter, logs: LogStore, database: Database) -> None:
    for percent in range(3):
        writer.send(f"\r{percent} % of {SECRET}".encode())
        writer.clock.advance(3)
        await logs.upkeep(writer.clock())
    writer.finish()
    assert all("hunter" not in text for text in await texts(logs, writer.instance.job_id))


async def test_output_without_secrets_is_stored_as_it_is(
    database: Database, logs: LogStore, factory: Factory, vault: Vault, clock: SettableClock
) -> None:
    writer = LogWriter(database, logs, factory.instance(factory.job()), clock)
    assert mask_of(database, vault, writer.instance) is None
    writer.send(SECRET.encode() + b"\n")
    assert await texts(logs, writer.instance.job_id) == [SECRET]


def test_masks_are_kept_within_their_bound(database: Database, factory: Factory, vault: Vault) -> None:
    instances = [launched(factory, vault, f"secret-number-{n:04}") for n in range(20)]
    one = OutputMasks()
    assert mask_of(database, vault, instances[0], one) is mask_of(database, vault, instances[0], one)
    small = OutputMasks(most_bytes=6000)
    first = mask_of(database, vault, instances[0], small)
    for instance in instances:
        assert mask_of(database, vault, instance, small) is not None
    assert mask_of(database, vault, instances[0], small) is not first
    assert len(small._masks) < 6
    small.forget(instances[0].id)
    small.forget("unknown")


def test_a_mask_that_nobody_uses_is_dropped(database: Database, factory: Factory, vault: Vault) -> None:
    clock = [0.0]
    masks = OutputMasks(idle_seconds=600, seconds=lambda: clock[0])
    busy, idle = (launched(factory, vault, SECRET) for _ in range(2))
    first, other = (mask_of(database, vault, instance, masks) for instance in (busy, idle))
    for seconds in (400.0, 800.0):
        clock[0] = seconds
        assert mask_of(database, vault, busy, masks) is first
    assert len(masks._masks) == 1
    assert mask_of(database, vault, idle, masks) is not other


def test_without_its_key_what_waits_is_taken_for_a_secret(vault: Vault) -> None:
    mask = OutputMask(StreamMask([SECRET]), vault, "inst-x")
    _, kept = mask.feed("stdout", None, SECRET.encode()[:12])
    other = OutputMask(StreamMask([SECRET]), Vault.parse(Vault.generate()), "inst-x")
    assert other.feed("stdout", kept, b" on\n") == (b"*** on\n", None)
    assert (ending(None), ending(kept)) == (b"", b"***")


async def test_an_inline_registry_password_is_masked_too(
    database: Database, logs: LogStore, factory: Factory, vault: Vault, clock: SettableClock
) -> None:
    job_id = new_job_id()
    credential = orjson.dumps({"username": "robot", "password": SECRET})
    job = factory.job(id=job_id, registry_sealed=vault.seal(credential, f"registry:{job_id}"))
    writer = LogWriter(database, logs, factory.instance(job), clock)
    writer.mask = mask_of(database, vault, writer.instance)
    writer.send(f"docker login -p {SECRET}\n".encode())
    assert await texts(logs, job_id) == ["docker login -p ***"]
