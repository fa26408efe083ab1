"""Connections as rows, on both databases: what is verified, what is in use, and what a removal waits for."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlmodel import Session

from domain.backends import backend_of, check_fields
from domain.errors import Conflict, InvalidRequest
from domain.offers import Offer
from domain.states import InstanceState, JobState
from providers.base import ProviderContext
from providers.connect import build
from store import attempts, connections, offers
from store.attempts import OfferTaken
from store.connections import ConnectionState, Scope
from store.db import Database
from store.tables import Connection, Instance, Job
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

RUNPOD = backend_of("runpod")


class Connections:
    def __init__(self, database: Database, vault: Vault, clock: SettableClock) -> None:
        self.database, self.vault, self.clock = database, vault, clock

    def connect(self, name: str = "pods", scope: Scope | None = None) -> str:
        values, now = {"api_key": "k"}, self.clock()
        return self.database.run_write(
            lambda s: connections.connect(s, self.vault, scope or Scope(), RUNPOD, name, values, now).id
        )

    def settle(self, connection_id: str, number: int, status: str = "ok") -> None:
        self.database.run_write(lambda s: connections.verified(s, connection_id, number, status, "", self.clock()))

    def row(self, connection_id: str) -> Connection:
        return self.database.run_read(lambda s: s.get_one(Connection, connection_id))

    def edit(self, connection_id: str, api_key: str) -> int:
        def begin(session: Session) -> int:
            row = session.get_one(Connection, connection_id)
            values = {"api_key": api_key}
            return connections.begin_verification(session, self.vault, row, RUNPOD, values, self.clock())

        return self.database.run_write(begin)

    def remove(self, connection_id: str, *, terminate: bool = False) -> bool:
        def remove(session: Session) -> bool:
            row = connections.find(session, connection_id, None, for_update=True)
            return connections.remove(session, row, self.clock(), terminate=terminate)

        return self.database.run_write(remove)


@pytest.fixture
def made(database: Database, vault: Vault, clock: SettableClock) -> Connections:
    return Connections(database, vault, clock)


def test_an_outcome_of_an_earlier_verification_decides_nothing(made: Connections) -> None:
    connection_id = made.connect()
    made.settle(connection_id, 1)
    assert made.edit(connection_id, "second") == 2
    assert made.edit(connection_id, "third") == 3
    made.settle(connection_id, 2)
    assert made.row(connection_id).revision == 1
    made.settle(connection_id, 3)
    made.settle(connection_id, 3, "auth")
    row = made.row(connection_id)
    assert (row.revision, row.verified_status) == (2, "ok")
    assert connections.values_of(made.vault, row) == {"api_key": "third"}


def test_refused_credentials_that_are_in_use_block_the_connection_and_stay(made: Connections) -> None:
    connection_id = made.connect()
    made.settle(connection_id, 1)

    def ask(session: Session) -> int:
        row = session.get_one(Connection, connection_id)
        return connections.begin_verification(session, made.vault, row, RUNPOD, None, made.clock())

    made.settle(connection_id, made.database.run_write(ask), "auth")
    row = made.row(connection_id)
    assert (row.state, connections.values_of(made.vault, row)) == (ConnectionState.CONNECTED, {"api_key": "k"})
    assert connection_id in made.database.run_read(offers.blocked)


def test_nothing_is_minted_on_a_connection_that_is_removed_meanwhile(
    made: Connections, factory: Factory, clock: SettableClock
) -> None:
    connection_id = made.connect()
    made.settle(connection_id, 1)
    job, offer = factory.job(JobState.ALLOCATING), factory.offer(connection_id=connection_id, provider="runpod")

    assert isinstance(_mint(made, job, offer, clock), Instance)
    with pytest.raises(Conflict, match="are live on it"):
        made.remove(connection_id)
    assert not made.remove(connection_id, terminate=True)
    assert isinstance(_mint(made, job, offer, clock), OfferTaken)


def test_a_mint_and_a_removal_at_once_leave_no_attempt_without_its_connection(
    made: Connections, factory: Factory, clock: SettableClock
) -> None:
    for number in range(10):
        connection_id = made.connect(f"pods-{number}")
        made.settle(connection_id, 1)
        job, offer = factory.job(JobState.ALLOCATING), factory.offer(connection_id=connection_id, provider="runpod")
        minted, removed = _at_once(partial(_mint, made, job, offer, clock), partial(_is_removed, made, connection_id))
        assert isinstance(minted, Instance) is not removed


def _mint(made: Connections, job: Job, offer: Offer, clock: SettableClock) -> object:
    return made.database.run_write(lambda s: attempts.mint(s, job, offer, clock(), slots=None, single_tenant=False))


def _is_removed(made: Connections, connection_id: str) -> bool:
    try:
        return made.remove(connection_id)
    except Conflict:
        return False


def _at_once(*steps: Callable[[], object]) -> list[object]:
    together = threading.Barrier(len(steps))

    def run(step: Callable[[], object]) -> object:
        together.wait()
        return step()

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(run, steps))


def test_what_is_removed_goes_with_its_last_machine(made: Connections, factory: Factory, clock: SettableClock) -> None:
    connection_id = made.connect()
    made.settle(connection_id, 1)
    job = factory.job(JobState.RUNNING)
    instance = factory.instance(job, InstanceState.RUNNING, connection_id=connection_id, allocated_at=clock())
    factory.price(instance, "0.5")
    factory.price(instance, "0.75")
    used = made.database.run_read(lambda s: connections.uses(s, [connection_id], None))[connection_id]
    assert (used.instances, str(used.usd_per_hour)) == (1, "0.75")
    assert not made.remove(connection_id, terminate=True)
    assert made.database.run_write(connections.finish_removals) == []

    def gone(session: Session) -> None:
        session.get_one(Instance, instance.id).confirmed_absent_at = clock()

    made.database.run_write(gone)
    assert made.database.run_write(connections.finish_removals) == [connection_id]
    assert made.database.run_read(connections.revisions) == {}


def test_names_are_free_in_other_scopes_only(made: Connections) -> None:
    made.settle(made.connect("pods"), 1)
    with pytest.raises(Conflict):
        made.connect("pods")
    assert made.connect("pods", Scope("org_1"))
    assert made.connect("pods", Scope("org_1", "prj_1"))


@pytest.mark.parametrize("value", [7, None, "", " ", "a\x00b"])
def test_a_secret_is_text(value: object) -> None:
    with pytest.raises(InvalidRequest):
        check_fields(RUNPOD, {"api_key": value})


def test_regions_that_were_used_before_stay_in_sight(made: Connections, database: Database) -> None:
    aws = backend_of("aws")
    keys = {"access_key_id": "A" * 20, "secret_access_key": "s"}

    def fill(session: Session, connection_id: str | None, regions: list[str]) -> str:
        values = {**keys, "regions": regions}
        if connection_id is None:
            return connections.connect(session, made.vault, Scope(), aws, "aws", values, made.clock()).id
        row = session.get_one(Connection, connection_id)
        connections.begin_verification(session, made.vault, row, aws, values, made.clock())
        return row.id

    connection_id = database.run_write(lambda s: fill(s, None, ["eu-west-1", "us-east-1"]))
    made.settle(connection_id, 1)
    database.run_write(lambda s: fill(s, connection_id, ["us-east-1"]))
    made.settle(connection_id, 2)
    database.run_write(lambda s: fill(s, connection_id, ["us-west-2"]))
    made.settle(connection_id, 3)
    values = connections.values_of(made.vault, made.row(connection_id))
    assert values is not None
    assert values["former_regions"] == ["eu-west-1", "us-east-1"]
    provider = build("aws", ProviderContext(connection_id, "owner", "/nonexistent"), values)
    options = provider._options  # type: ignore[attr-defined]
    assert options.regions == ("us-west-2",)
    assert set(options.former_regions) == {"eu-west-1", "us-east-1", "us-east-2"}
