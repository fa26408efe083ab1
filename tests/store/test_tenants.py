"""Tenants: an idempotent upsert, and caps that no number of concurrent creates passes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import func, select

from domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from domain.ids import new_job_id
from domain.states import JobState
from store import jobs, tenants
from store.access import Principal, authenticate
from store.db import Database
from store.tables import Job, Organization, Project
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

CAP, CREATES = 3, 50


@pytest.fixture
def principal(database: Database, factory: Factory, clock: SettableClock) -> Principal:
    return principal_of(database, factory, clock)


def principal_of(database: Database, factory: Factory, clock: SettableClock) -> Principal:
    key = factory.key()
    found = database.run_read(lambda s: authenticate(s, key.token, clock()))
    assert found is not None
    return found


def put(database: Database, org_id: str, clock: SettableClock, **values: Any) -> tenants.Put:
    return database.run_write(lambda s: tenants.put(s, org_id, values, clock()))


@pytest.mark.parametrize("org_id", ["\0acme", "acme\n", "", "a" * 64])
def test_an_id_that_no_organization_can_have_is_refused_before_the_database_sees_it(
    database: Database, clock: SettableClock, org_id: str
) -> None:
    with pytest.raises(InvalidRequest, match="org_id"):
        put(database, org_id, clock)


def create(database: Database, principal: Principal, vault: Vault, clock: SettableClock, key: str) -> str:
    new = jobs.NewJob(
        id=new_job_id(),
        project=None,
        on_behalf_of=None,
        name=None,
        kind="task",
        labels=None,
        spec={},
        workload_sealed=b"sealed",
        registry_sealed=None,
    )
    claim = jobs.IdempotencyClaim(key, b"{}", vault)
    try:
        return database.run_write(lambda s: jobs.create(s, principal, new, claim, clock())).job.id
    except Forbidden as refused:
        return refused.code


def live(database: Database, org_id: str) -> int:
    query = select(func.count()).select_from(Job).where(Job.org_id == org_id, Job.state != "terminated")
    return database.run_read(lambda s: s.exec(query).one())


class TestPut:
    def test_an_organization_that_does_not_exist_is_made_not_enabled_and_without_caps(
        self, database: Database, clock: SettableClock
    ) -> None:
        done = put(database, "acme", clock)
        made = done.organization
        assert done.created
        assert (made.id, made.name, made.enabled, made.max_live_jobs, made.time_zone) == (
            "acme", "acme", False, None, "UTC",
        )  # fmt: skip
        projects = database.run_read(lambda s: s.exec(select(Project.name).where(Project.org_id == "acme")).all())
        assert projects == ["default"]

    def test_what_is_absent_stays_and_null_lifts_a_cap(self, database: Database, clock: SettableClock) -> None:
        put(database, "acme", clock, enabled=True, max_live_jobs=0, max_live_volumes=5)
        put(database, "acme", clock, max_live_volumes=None)
        found = database.run_read(lambda s: tenants.get(s, "acme"))
        assert (found.enabled, found.max_live_jobs, found.max_live_volumes) == (True, 0, None)

    def test_a_repeat_changes_nothing_and_not_its_time_either(self, database: Database, clock: SettableClock) -> None:
        first = put(database, "acme", clock, enabled=True, max_live_jobs=3)
        clock.advance(60)
        again = put(database, "acme", clock, enabled=True, max_live_jobs=3)
        assert (again.created, again.changed) == (False, {})
        assert again.organization.updated_at == first.organization.updated_at
        assert put(database, "acme", clock, max_live_jobs=4).organization.updated_at == clock()

    def test_a_name_that_another_one_has_is_refused(self, database: Database, clock: SettableClock) -> None:
        put(database, "acme", clock)
        for org_id in ("other", "acme-2"):
            with pytest.raises(Conflict) as caught:
                put(database, org_id, clock, name="acme")
            assert caught.value.code == "organization_name_conflict"
        put(database, "acme-2", clock)
        with pytest.raises(Conflict):
            put(database, "acme-2", clock, name="acme")

    @pytest.mark.parametrize("org_id", ["", "-a", ".", "a b", "a/b", "x" * 64, "é"])
    def test_an_id_that_is_no_plain_name_is_refused(
        self, database: Database, clock: SettableClock, org_id: str
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            put(database, org_id, clock)
        assert caught.value.field == "org_id"

    def test_puts_of_one_new_organization_at_once_make_one(self, database: Database, clock: SettableClock) -> None:
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda _: put(database, "acme", clock, enabled=True), range(8)))
        assert sum(entry.created and bool(entry.changed) for entry in done) == 1
        assert database.run_read(lambda s: s.exec(select(func.count()).select_from(Organization)).one()) == 1

    def test_one_that_does_not_exist_is_not_found(self, database: Database) -> None:
        with pytest.raises(NotFound):
            database.run_read(lambda s: tenants.get(s, "acme"))


class TestCap:
    @pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
    def wide(self, request: pytest.FixtureRequest) -> Any:
        """A database with as many connections as a busy API has."""
        database = Database(request.getfixturevalue(f"{request.param}_url"), readers=4, writers=20)
        yield database
        database.close()

    def test_fifty_creates_at_once_against_a_cap_for_three_make_three_and_never_more(
        self, wide: Database, clock: SettableClock, vault: Vault
    ) -> None:
        principal = principal_of(wide, Factory(wide, clock, vault), clock)
        put(wide, principal.org_id, clock, max_live_jobs=CAP)
        start, done, most = threading.Barrier(21), threading.Event(), 0

        def watch() -> None:
            nonlocal most
            while not done.is_set():
                most = max(most, live(wide, principal.org_id))

        def run(number: int) -> str:
            if number < 20:
                start.wait()
            return create(wide, principal, vault, clock, f"key-{number}")

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(20) as pool:
            pending = [pool.submit(run, number) for number in range(CREATES)]
            start.wait()
            answers = [future.result() for future in pending]
        done.set()
        watcher.join()
        assert answers.count("tenant_limit_reached") == CREATES - CAP
        assert live(wide, principal.org_id) == CAP
        assert most <= CAP

    def test_a_job_that_ends_makes_room_for_one(
        self, database: Database, principal: Principal, clock: SettableClock, vault: Vault
    ) -> None:
        put(database, principal.org_id, clock, max_live_jobs=1)
        first = create(database, principal, vault, clock, "1")
        assert create(database, principal, vault, clock, "2") == "tenant_limit_reached"

        def end(session: Any) -> None:
            session.get_one(Job, first).state = JobState.TERMINATED.value

        database.run_write(end)
        assert create(database, principal, vault, clock, "3").startswith("job_")

    def test_a_replay_is_answered_whatever_the_cap_says_now(
        self, database: Database, principal: Principal, clock: SettableClock, vault: Vault
    ) -> None:
        first = create(database, principal, vault, clock, "1")
        put(database, principal.org_id, clock, max_live_jobs=0, enabled=False)
        assert create(database, principal, vault, clock, "1") == first

    def test_a_refused_create_leaves_its_key_unused(
        self, database: Database, principal: Principal, clock: SettableClock, vault: Vault
    ) -> None:
        put(database, principal.org_id, clock, max_live_jobs=0)
        assert create(database, principal, vault, clock, "1") == "tenant_limit_reached"
        put(database, principal.org_id, clock, max_live_jobs=None)
        assert create(database, principal, vault, clock, "1").startswith("job_")

    def test_to_disable_is_effective_for_a_request_that_was_authenticated_before(
        self, database: Database, principal: Principal, clock: SettableClock, vault: Vault
    ) -> None:
        put(database, principal.org_id, clock, enabled=False)
        assert create(database, principal, vault, clock, "1") == "tenant_disabled"

    def test_an_organization_without_a_cap_is_neither_locked_nor_counted(
        self, database: Database, principal: Principal, clock: SettableClock, vault: Vault
    ) -> None:
        seen: list[str] = []
        event.listen(database.engine, "before_cursor_execute", lambda _c, _k, statement, *_: seen.append(statement))
        create(database, principal, vault, clock, "1")
        assert not [s for s in seen if "FOR UPDATE" in s or "count(" in s]
        verbs = [s.split()[0] for s in seen if not s.startswith("BEGIN")]
        # The key, what it is judged by, the job, its event, its input, its audit entry.
        assert verbs == ["INSERT", "SELECT", "INSERT", "INSERT", "INSERT", "INSERT"]
