"""Hosts belong to one fleet, and connections are listed by pages, on both databases."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlmodel import Session

from domain.backends import backend_of, check_fields
from domain.errors import Conflict
from domain.states import InstanceState, JobState
from store import connections, fleets
from store.connections import Scope, Sight
from store.db import Database
from store.tables import Connection, Instance
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

SSH = backend_of("ssh")
EVERYTHING = Sight(None)


class Fleets:
    def __init__(self, database: Database, vault: Vault, clock: SettableClock) -> None:
        self.database, self.vault, self.clock = database, vault, clock

    def add(self, name: str, *hosts: Any, scope: Scope | None = None, sight: Sight = EVERYTHING) -> str:
        values = check_fields(SSH, {"private_key": "k", "hosts": list(hosts)})

        def connect(session: Session) -> str:
            fleets.require_free_hosts(session, sight, SSH, values)
            return connections.connect(session, self.vault, scope or Scope(), SSH, name, values, self.clock()).id

        return self.database.run_write(connect)

    def edit(self, fleet_id: str, *hosts: Any) -> None:
        def begin(session: Session) -> None:
            row = session.get_one(Connection, fleet_id)
            values = check_fields(SSH, {"hosts": list(hosts)}, {"private_key": "k"})
            fleets.require_free_hosts(session, EVERYTHING, SSH, values, row)
            fleets.require_idle_hosts(session, SSH, values, row)
            connections.begin_verification(session, self.vault, row, SSH, values, self.clock())

        self.database.run_write(begin)

    def settle(self, fleet_id: str, status: str = "ok") -> None:
        def settle(session: Session) -> None:
            number = session.get_one(Connection, fleet_id).verification
            connections.verified(session, fleet_id, number, status, "", self.clock())

        self.database.run_write(settle)


@pytest.fixture
def made(database: Database, vault: Vault, clock: SettableClock) -> Fleets:
    return Fleets(database, vault, clock)


def test_a_host_of_another_fleet_is_refused_with_its_name(made: Fleets) -> None:
    first = made.add("lab", "192.0.2.1", "GPU-1.example:2222")
    for host in ("root@192.0.2.1:22", {"hostname": "::ffff:c000:201"}, "gpu-1.EXAMPLE:2222"):
        with pytest.raises(Conflict, match="is a host of lab already") as refused:
            made.add("other", host)
        assert refused.value.code == "host_in_use"
        assert refused.value.details is not None
        assert refused.value.details["backend"] == {"id": first, "name": "lab"}
    assert made.add("other", "192.0.2.1:2222")


def test_what_was_refused_has_no_hosts_and_what_is_to_be_verified_has(made: Fleets) -> None:
    refused = made.add("refused", "192.0.2.1")
    made.settle(refused, "unreachable")
    lab = made.add("lab", "192.0.2.1")
    made.settle(lab)
    made.edit(lab, "192.0.2.1", "192.0.2.2")
    with pytest.raises(Conflict, match=r"192\.0\.2\.2 is a host of lab"):
        made.add("other", "192.0.2.2")
    made.settle(lab, "unreachable")
    other = made.add("other", "192.0.2.2")
    with pytest.raises(Conflict, match="is a host of other"):
        made.edit(lab, "192.0.2.1", "192.0.2.2")
    made.edit(lab, "192.0.2.1")
    with pytest.raises(Conflict, match="is a host of lab"):
        made.edit(other, "192.0.2.1", "192.0.2.2")


def test_a_host_leaves_its_fleet_only_when_nothing_is_live_on_it(
    made: Fleets, factory: Factory, clock: SettableClock
) -> None:
    lab = made.add("lab", "192.0.2.1", "192.0.2.2")
    made.settle(lab)
    job = factory.job(JobState.RUNNING, name="train")
    handle = {"provider_id": "p", "host": "192.0.2.1"}
    instance = factory.instance(job, InstanceState.RUNNING, connection_id=lab, allocated_at=clock(), handle=handle)
    with pytest.raises(Conflict, match="instances of train are live on hosts that are to leave") as refused:
        made.edit(lab, "192.0.2.2")
    assert refused.value.details == {"jobs": [{"id": job.id, "name": "train"}], "count": 1}
    made.edit(lab, "192.0.2.1:2222")

    def gone(session: Session) -> None:
        session.get_one(Instance, instance.id).confirmed_absent_at = clock()

    made.database.run_write(gone)
    made.edit(lab, "192.0.2.2")


def test_a_host_that_a_create_is_under_way_on_is_live(
    made: Fleets, factory: Factory, database: Database, clock: SettableClock
) -> None:
    lab = made.add("lab", "192.0.2.1", "192.0.2.2")
    made.settle(lab)
    made.edit(lab, "192.0.2.2")
    # While the other host is being verified.
    job = factory.job(JobState.ALLOCATING, name="train")
    offer = factory.offer(provider="ssh", connection_id=lab, provider_sku="192.0.2.1/cpu").model_dump(mode="json")
    instance = factory.instance(job, connection_id=lab, offer=offer)
    with pytest.raises(Conflict, match="instances of train are live"):
        database.run_write(lambda s: fleets.require_idle_before(s, lab))
    with pytest.raises(Conflict, match="instances of train are live"):
        made.edit(lab, "192.0.2.2")

    def gone(session: Session) -> None:
        session.get_one(Instance, instance.id).confirmed_absent_at = clock()

    made.database.run_write(gone)
    database.run_write(lambda s: fleets.require_idle_before(s, lab))


def test_fleets_out_of_sight_neither_count_nor_are_told_of(made: Fleets) -> None:
    made.add("secret of theirs", "192.0.2.1", scope=Scope("org_2"))
    made.add("the cluster's", "192.0.2.2")
    assert made.add("ours", "192.0.2.1", scope=Scope("org_1"), sight=Sight("org_1"))
    with pytest.raises(Conflict, match="the cluster's"):
        made.add("ours too", "192.0.2.2", scope=Scope("org_1"), sight=Sight("org_1"))
    assert made.add("ours too", "192.0.2.2", scope=Scope("org_1"), sight=Sight("org_1", cluster=False))


def test_of_two_that_add_a_host_at_once_one_has_it(made: Fleets) -> None:
    together = Barrier(2)

    def add(name: str) -> bool:
        together.wait()
        try:
            return bool(made.add(name, "192.0.2.1"))
        except Conflict:
            return False

    for number in range(5):
        with ThreadPoolExecutor(2) as pool:
            added = sorted(pool.map(add, (f"one {number}", f"other {number}")))
        assert added == [False, number == 0]


def test_of_those_that_take_a_name_at_once_one_has_it(made: Fleets) -> None:
    together, runpod = Barrier(4), backend_of("runpod")

    def taken(take: Callable[[Session], Any]) -> bool:
        together.wait()
        try:
            made.database.run_write(take)
        except Conflict:
            return False
        return True

    def connect(session: Session) -> None:
        connections.connect(session, made.vault, Scope(), runpod, "one", {"api_key": "k"}, made.clock())

    fleets_made = [made.add(f"lab {n}", f"192.0.2.{n}") for n in range(4)]
    renames = [lambda s, id_=id_: connections.rename(s, s.get_one(Connection, id_), "lab", made.clock())
               for id_ in fleets_made]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(taken, [connect] * 4)) == [False, False, False, True]
        assert sorted(pool.map(taken, renames)) == [False, False, False, True]


def test_pages_go_through_all_in_sight_the_clusters_first(made: Fleets, clock: SettableClock) -> None:
    scopes = [Scope("org_1"), Scope(), Scope("org_1", "prj_1"), Scope("org_2"), Scope(), Scope("org_1", "prj_2")]
    for number, scope in enumerate(scopes):
        made.add(str(number), f"192.0.2.{number}", scope=scope)
        if number % 2:
            clock.advance(seconds=1)

    def walk(sight: Sight, limit: int) -> list[str]:
        names: list[str] = []
        after = None
        while page := _read(made, lambda s, a=after: connections.listed(s, sight, after=a, limit=limit)):
            names += [row.name for row in page]
            after = connections.position_of(page[-1])
        assert len(names) == _read(made, lambda s: connections.count(s, sight))
        return names

    everything = walk(EVERYTHING, 50)
    assert everything == walk(EVERYTHING, 1) == walk(EVERYTHING, 4)
    assert set(everything[:2]) == {"1", "4"}
    assert len(set(everything)) == 6
    assert set(walk(Sight("org_1"), 2)) == {"0", "1", "2", "4", "5"}
    assert set(walk(Sight("org_1", "prj_1"), 2)) == {"0", "1", "2", "4"}
    assert set(walk(Sight("org_1", cluster=False), 2)) == {"0", "2", "5"}


def _read(made: Fleets, query: Callable[[Session], Any]) -> Any:
    return made.database.run_read(query)
