"""Pinned host keys, on both databases: the first one stays for every worker, until it is forgotten."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy.exc import OperationalError

from activities.host_keys import StoredHostKeys
from domain.backends import backend_of
from domain.errors import Ambiguous
from domain.host_keys import address_of, fingerprint
from store import connections, host_keys
from store.db import Database
from store.vault import Vault
from tests.support.clock import SettableClock

HOST = "192.0.2.1:22"


@pytest.fixture
def keys(database: Database, clock: SettableClock) -> StoredHostKeys:
    return StoredHostKeys(database, "conn_1", clock)


async def test_the_first_key_of_a_host_stays_for_every_worker(
    keys: StoredHostKeys, database: Database, clock: SettableClock
) -> None:
    assert await keys.pinned(HOST) is None
    assert await keys.pin(HOST, "ssh-ed25519 AAAA") == "ssh-ed25519 AAAA"
    other = StoredHostKeys(database, "conn_1", clock)
    assert await other.pin(HOST, "ssh-ed25519 BBBB") == "ssh-ed25519 AAAA"
    assert await other.pinned(HOST) == "ssh-ed25519 AAAA"
    assert await other.pinned("192.0.2.1:2222") is None
    assert await StoredHostKeys(database, "conn_2", clock).pinned(HOST) is None


def test_of_many_workers_at_once_one_pins_and_the_others_learn_its_key(
    database: Database, clock: SettableClock
) -> None:
    together = Barrier(4)

    def pin(number: int) -> str:
        together.wait()
        return database.run_write(lambda s: host_keys.pin(s, "conn_1", HOST, f"ssh-ed25519 {number}", clock()))

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(pin, range(4)))
    assert answers == {database.run_read(lambda s: host_keys.pinned(s, "conn_1", HOST))}


def test_a_host_is_forgotten_by_its_name_or_by_one_of_its_ports(database: Database, clock: SettableClock) -> None:
    addresses = (address_of("192.0.2.1", 22), address_of("192.0.2.1", 23), address_of("2001:db8::1", 22))
    for address in addresses:
        database.run_write(lambda s, a=address: host_keys.pin(s, "conn_1", a, "ssh-ed25519 AAAA", clock()))
    assert database.run_write(lambda s: host_keys.forget(s, "conn_1", "192.0.2.1:23")) == ["192.0.2.1:23"]
    assert database.run_write(lambda s: host_keys.forget(s, "conn_1", "2001:db8::1")) == ["[2001:db8::1]:22"]
    assert database.run_write(lambda s: host_keys.forget(s, "conn_1", "192.0.2")) == []
    assert database.run_write(lambda s: host_keys.forget(s, "conn_1")) == [HOST]


def test_pins_go_with_their_connection(database: Database, vault: Vault, clock: SettableClock) -> None:
    def connect(name: str) -> str:
        values = {"api_key": "k"}
        made = database.run_write(
            lambda s: connections.connect(s, vault, connections.Scope(), backend_of("runpod"), name, values, clock()).id
        )
        database.run_write(lambda s: host_keys.pin(s, made, HOST, "ssh-ed25519 AAAA", clock()))
        return made

    removed, failed = connect("removed"), connect("failed")
    database.run_write(lambda s: connections.remove(s, connections.find(s, removed, None), clock(), terminate=False))
    database.run_write(lambda s: connections.verified(s, failed, 1, "auth", "", clock()))
    assert [database.run_read(lambda s, c=c: len(host_keys.of(s, c))) for c in (removed, failed)] == [0, 1]
    # By a worker that was looking at its hosts when it was removed.
    database.run_write(lambda s: host_keys.pin(s, removed, HOST, "ssh-ed25519 AAAA", clock()))
    database.run_write(lambda s: connections.expire_candidates(s, clock()))
    assert [database.run_read(lambda s, c=c: len(host_keys.of(s, c))) for c in (removed, failed)] == [0, 1]
    later = clock() + timedelta(days=2)
    database.run_write(lambda s: connections.expire_candidates(s, later))
    assert database.run_read(lambda s: len(host_keys.of(s, failed))) == 0


async def test_no_host_is_trusted_while_the_database_does_not_answer(
    keys: StoredHostKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_query: object) -> None:
        raise OperationalError("select", {}, Exception("away"))

    monkeypatch.setattr(keys._db, "read", away)
    monkeypatch.setattr(keys._db, "write", away)
    with pytest.raises(Ambiguous, match="could not be looked up"):
        await keys.pinned(HOST)
    with pytest.raises(Ambiguous, match="could not be looked up"):
        await keys.pin(HOST, "ssh-ed25519 AAAA")


def test_a_fingerprint_is_the_one_that_ssh_shows() -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    assert fingerprint(key) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
    assert fingerprint("ssh-ed25519 ***") is None
    assert fingerprint("") is None
