"""A secret and the jobs that use it: whoever comes second sees what the first has committed, on both databases."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import text
from sqlmodel import Session, select

from domain.errors import Conflict, InvalidRequest, RequestError
from domain.ids import OrgId, new_job_id
from domain.roles import Role
from domain.secrets import Reference
from domain.spec import JobSpec, SecretReference, Workload
from domain.states import InstanceState, JobState
from store import jobs, launch_secrets, secrets
from store.access import Principal, authenticate
from store.db import Database
from store.launch_secrets import CannotLaunch
from store.secrets import Values
from store.tables import Instance, Job, Secret, SecretUse
from store.transitions import transition
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

_WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
DATA = {"TOKEN": "first-value", "OTHER": "other-value"}


@pytest.fixture
def principal(factory: Factory, database: Database, clock: SettableClock) -> Principal:
    key = factory.key(role=Role.MEMBER)
    found = database.run_read(lambda s: authenticate(s, key.token, clock()))
    assert found is not None
    return found


@pytest.fixture
def secret(database: Database, principal: Principal, vault: Vault, clock: SettableClock) -> Secret:
    return database.run_write(lambda s: secrets.create(s, principal, "token", Values(DATA), vault, clock()))


class Site:
    """What the tests do to jobs and secrets."""

    def __init__(self, database: Database, principal: Principal, vault: Vault, clock: SettableClock) -> None:
        self.database, self.principal, self.vault, self.clock = database, principal, vault, clock

    def create_job(self, session: Session, secret_id: str, key: str = "TOKEN") -> str:
        job_id = new_job_id()
        workload = Workload(argv=("true",), secret_env={"T": SecretReference(secret_id=secret_id, key=key)})
        new = jobs.NewJob(
            id=job_id,
            project=None,
            on_behalf_of=None,
            name=None,
            kind="task",
            labels=None,
            spec=SPEC.model_dump(mode="json"),
            workload_sealed=self.vault.seal(workload.model_dump_json().encode(), f"workload:{job_id}"),
            registry_sealed=None,
            references=(Reference(secret_id, key, "container.secret_env.T.secret_id", "container.secret_env.T.key"),),
        )
        jobs.create(session, self.principal, new, jobs.IdempotencyClaim(job_id, b"{}", self.vault), self.clock())
        return job_id

    def rotate(self, session: Session, secret_id: str, **data: str) -> Secret:
        return secrets.rotate(session, self.principal, secret_id, Values(data), self.vault, self.clock())

    def remove(self, session: Session, secret_id: str) -> Secret:
        return secrets.remove(session, self.principal, secret_id)


SPEC = JobSpec.model_validate(
    {
        "image": "registry.example/app:1",
        "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
    }
)


@pytest.fixture
def site(database: Database, principal: Principal, vault: Vault, clock: SettableClock) -> Site:
    return Site(database, principal, vault, clock)


def both(database: Database, first: Callable[[Session], Any], second: Callable[[Session], Any]) -> list[Any]:
    """Runs `second` while the transaction of `first` is still open; the results, or the errors, in that order."""
    changed = Event()

    def holding(session: Session) -> Any:
        result = first(session)
        session.flush()
        changed.set()
        # SQLite's writers wait for each other from their beginning; PostgreSQL's only where they meet.
        deadline = monotonic() + 10
        while not database.sqlite and not session.connection().scalar(_WAITING):
            assert monotonic() < deadline, "nobody waits for this transaction"
        return result

    def run(change: Callable[[Session], Any]) -> Any:
        try:
            return database.run_write(change)
        except RequestError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(run, holding)
        assert changed.wait(10)
        two = pool.submit(run, second)
        return [one.result(30), two.result(30)]


class TestRaces:
    def test_a_secret_that_a_new_job_has_just_claimed_is_not_deleted(
        self, database: Database, site: Site, secret: Secret
    ) -> None:
        job_id, error = both(database, lambda s: site.create_job(s, secret.id), lambda s: site.remove(s, secret.id))
        assert isinstance(error, Conflict)
        assert (error.code, error.details) == ("secret_in_use", {"job_ids": [job_id]})
        assert database.run_read(lambda s: s.get(Secret, secret.id)) is not None

    def test_a_job_does_not_get_a_secret_that_was_just_deleted(
        self, database: Database, site: Site, secret: Secret
    ) -> None:
        _, error = both(database, lambda s: site.remove(s, secret.id), lambda s: site.create_job(s, secret.id))
        assert isinstance(error, InvalidRequest)
        assert (error.code, error.field) == ("secret_not_found", "container.secret_env.T.secret_id")
        assert database.run_read(lambda s: (s.exec(select(Job)).all(), s.exec(select(SecretUse)).all())) == ([], [])

    def test_a_rotation_keeps_the_key_that_a_new_job_has_just_claimed(
        self, database: Database, site: Site, secret: Secret
    ) -> None:
        job_id, error = both(
            database, lambda s: site.create_job(s, secret.id), lambda s: site.rotate(s, secret.id, OTHER="x")
        )
        assert isinstance(error, Conflict)
        assert (error.code, error.details) == ("secret_key_in_use", {"keys": ["TOKEN"], "job_id": job_id})
        assert database.run_read(lambda s: s.get_one(Secret, secret.id)).version == 1

    def test_a_job_does_not_get_a_key_that_was_just_rotated_away(
        self, database: Database, site: Site, secret: Secret
    ) -> None:
        _, error = both(
            database, lambda s: site.rotate(s, secret.id, OTHER="x"), lambda s: site.create_job(s, secret.id)
        )
        assert isinstance(error, InvalidRequest)
        assert (error.code, error.field) == ("secret_key_not_found", "container.secret_env.T.key")

    def test_two_rotations_make_two_versions(self, database: Database, site: Site, secret: Secret) -> None:
        first, second = both(
            database, lambda s: site.rotate(s, secret.id, TOKEN="a"), lambda s: site.rotate(s, secret.id, TOKEN="b")
        )
        assert (first.version, second.version) == (2, 3)
        stored = database.run_read(lambda s: s.get_one(Secret, secret.id))
        assert secrets.opened(site.vault, stored) == {"TOKEN": "b"}

    def test_of_two_secrets_of_one_name_one_is_made(self, database: Database, site: Site) -> None:
        def create(session: Session) -> Secret:
            return secrets.create(session, site.principal, "twice", Values(DATA), site.vault, site.clock())

        made, error = both(database, create, create)
        assert (made.name, error.code) == ("twice", "secret_name_conflict")


class TestUses:
    def test_a_use_ends_with_its_job(
        self, database: Database, site: Site, secret: Secret, clock: SettableClock
    ) -> None:
        job_id = database.run_write(lambda s: site.create_job(s, secret.id))
        for state in (JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING, JobState.FINALIZING):
            database.run_write(lambda s, state=state: transition(s, job_id, state, str(state), clock()))
            with pytest.raises(Conflict):
                database.run_write(lambda s: site.remove(s, secret.id))
        database.run_write(lambda s: transition(s, job_id, JobState.SUCCEEDED, "end", clock()))
        database.run_write(lambda s: site.rotate(s, secret.id, ENTIRELY="new"))
        database.run_write(lambda s: site.remove(s, secret.id))

    def test_a_key_that_no_live_job_uses_may_go(self, database: Database, site: Site, secret: Secret) -> None:
        database.run_write(lambda s: site.create_job(s, secret.id))
        assert database.run_write(lambda s: site.rotate(s, secret.id, TOKEN="x")).key_names == ["TOKEN"]

    def test_another_organizations_secret_is_not_there(
        self, database: Database, site: Site, secret: Secret, factory: Factory
    ) -> None:
        stranger = OrgId(factory.organization().id)
        wanted = Reference(secret.id, "TOKEN", "f", "k")
        with pytest.raises(InvalidRequest) as caught:
            database.run_write(lambda s: secrets.claim(s, stranger, "job_x", [wanted]))
        assert caught.value.code == "secret_not_found"


class TestLaunches:
    @pytest.fixture
    def job_id(self, database: Database, site: Site, secret: Secret) -> str:
        return database.run_write(lambda s: site.create_job(s, secret.id))

    def resolve(self, site: Site, job_id: str, instance_id: str) -> dict[str, str]:
        def run(session: Session) -> dict[str, str]:
            job, instance = session.get_one(Job, job_id), session.get_one(Instance, instance_id)
            return launch_secrets.resolve(session, site.vault, job, instance, site.clock())

        return site.database.run_write(run)

    def instance(self, database: Database, factory: Factory, job_id: str, number: int = 1) -> Instance:
        job = database.run_read(lambda s: s.get_one(Job, job_id))
        return factory.instance(job, InstanceState.STARTING, number=number)

    def test_a_launch_reads_the_newest_version_and_is_repeated_as_it_was(
        self, database: Database, site: Site, secret: Secret, job_id: str, factory: Factory
    ) -> None:
        first, second = (self.instance(database, factory, job_id, number) for number in (1, 2))
        assert self.resolve(site, job_id, first.id) == {"T": "first-value"}
        database.run_write(lambda s: site.rotate(s, secret.id, TOKEN="second-value"))
        assert self.resolve(site, job_id, first.id) == {"T": "first-value"}
        assert self.resolve(site, job_id, second.id) == {"T": "second-value"}

    def test_expiry_counts_at_the_launch_alone(
        self, database: Database, site: Site, secret: Secret, job_id: str, factory: Factory, clock: SettableClock
    ) -> None:
        launched, late = (self.instance(database, factory, job_id, number) for number in (1, 2))
        values = Values({"TOKEN": "x"}, clock() + timedelta(seconds=60))
        database.run_write(lambda s: secrets.rotate(s, site.principal, secret.id, values, site.vault, clock()))
        clock.advance(59)
        assert self.resolve(site, job_id, launched.id) == {"T": "x"}
        clock.advance(1)
        assert self.resolve(site, job_id, launched.id) == {"T": "x"}
        with pytest.raises(CannotLaunch, match=r"'token'.*expired"):
            self.resolve(site, job_id, late.id)
        database.run_write(lambda s: site.rotate(s, secret.id, TOKEN="y"))
        assert self.resolve(site, job_id, late.id) == {"T": "y"}

    def test_an_environment_that_no_process_could_take_is_refused(
        self, database: Database, site: Site, factory: Factory, clock: SettableClock
    ) -> None:
        value = "x" * (64 * 1024 - 5)
        large = database.run_write(
            lambda s: secrets.create(s, site.principal, "large", Values({"K": value}), site.vault, clock())
        )
        workload = Workload(
            argv=("true",),
            secret_env={f"N{n:02}": SecretReference(secret_id=large.id, key="K") for n in range(17)},
        )
        job = factory.job(JobState.PROVISIONING, workload=workload, uses_secrets=True)
        database.run_write(lambda s: s.add(SecretUse(job_id=job.id, secret_id=large.id, key_names=["K"])))
        with pytest.raises(CannotLaunch, match="at most 1048576"):
            self.resolve(site, job.id, factory.instance(job).id)

    def test_a_job_without_secrets_keeps_nothing(self, database: Database, site: Site, factory: Factory) -> None:
        job = factory.job(JobState.PROVISIONING)
        instance = factory.instance(job)
        assert self.resolve(site, job.id, instance.id) == {}
        assert database.run_read(lambda s: s.get_one(Instance, instance.id)).secrets_sealed is None
