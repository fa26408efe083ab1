"""Launches with secrets at the agents' routes: what the spec holds, what sends an agent away, what is not repeated."""

import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import orjson
import pytest
from sqlmodel import Session, select

from api.agent import create_agent_app
from api.services import Services
from domain.ids import AttemptId, new_job_id
from domain.spec import SecretReference, Workload
from domain.states import JobState
from settings import Settings
from store.attempts import gone
from store.db import Database
from store.lifecycle import request_termination
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.secrets import context
from store.tables import Instance, Job, JobEvent, Secret, SecretUse
from store.transitions import transition
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.logs import texts

HANDLE = {"provider_id": "x", "resource_type": "container"}
VALUE = "it's a canary 7f3a"
PASSWORD = "pull/pass-word"


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    return sqlite_database


@pytest.fixture
def services(database: Database, vault: Vault, clock: SettableClock, tmp_path: Path) -> Services:
    settings = Settings(data_dir=tmp_path)
    return Services(settings, database, vault, LogStore(database, open_blob_store(settings.segment_url), clock), clock)


@pytest.fixture
async def client(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_agent_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://headrace/agent/v1") as opened:
        yield opened


@pytest.fixture
def secret(database: Database, vault: Vault, clock: SettableClock) -> Secret:
    row = Secret(
        id="sec_0000000000000001",
        org_id="org_x",
        name="token",
        key_names=["TOKEN"],
        version=1,
        sealed=vault.seal(orjson.dumps({"TOKEN": VALUE}), context("sec_0000000000000001", 1)),
        key_id="key_x",
        created_at=clock(),
        updated_at=clock(),
    )
    database.run_write(lambda s: s.add(row))
    return row


@pytest.fixture
def instance(factory: Factory, database: Database, secret: Secret, vault: Vault) -> Instance:
    job_id = new_job_id()
    workload = Workload(
        argv=("true",), env={"A": "x"}, secret_env={"T": SecretReference(secret_id=secret.id, key="TOKEN")}
    )
    job = factory.job(
        JobState.PROVISIONING,
        id=job_id,
        uses_secrets=True,
        workload_sealed=vault.seal(workload.model_dump_json().encode(), f"workload:{job_id}"),
        registry_sealed=vault.seal(orjson.dumps({"username": "u", "password": PASSWORD}), f"registry:{job_id}"),
    )
    database.run_write(lambda s: s.add(SecretUse(job_id=job.id, secret_id=secret.id, key_names=["TOKEN"])))
    return factory.instance(job, handle=HANDLE)


@pytest.fixture
def bootstrap(vault: Vault, instance: Instance) -> dict[str, str]:
    token = vault.bootstrap_token(AttemptId(instance.id))
    return {"Authorization": f"Bearer {token}", "Headrace-Protocol": "1", "Headrace-Nonce": "0123456789abcdef" * 2}


def row_of(database: Database, instance: Instance) -> Instance:
    return database.run_read(lambda s: s.get_one(Instance, instance.id))


async def test_the_spec_holds_the_values_and_the_row_none_in_clear(
    client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, instance: Instance
) -> None:
    answer = await client.post("/launch", headers=bootstrap)
    assert "export T='it'\\''s a canary 7f3a'\n" in answer.text
    assert "export A='x'\n" in answer.text
    sealed = row_of(database, instance).secrets_sealed
    assert sealed is not None
    assert b"canary" not in sealed
    assert (await client.post("/launch", headers=bootstrap)).content == answer.content


async def test_an_expired_secret_sends_the_agent_away_with_a_reason(
    client: httpx.AsyncClient,
    bootstrap: dict[str, str],
    database: Database,
    instance: Instance,
    secret: Secret,
    clock: SettableClock,
    services: Services,
) -> None:
    def expire(session: Session) -> None:
        row = session.get_one(Secret, secret.id)
        row.expires_at = clock() + timedelta(seconds=1)
        session.add(row)

    database.run_write(expire)
    clock.advance(1)
    for _ in range(2):
        answer = await client.post("/launch", headers=bootstrap)
        assert (answer.status_code, answer.text) == (409, "stop")
    row = row_of(database, instance)
    assert (row.reason_code, row.secrets_sealed) == ("secret_expired", None)
    events = database.run_read(lambda s: s.exec(select(JobEvent)).all())
    assert [event.data["reason"] for event in events if event.type == "launch_refused"] == ["secret_expired"]
    assert all(VALUE not in str(event.data) for event in events)


async def test_without_its_master_key_nothing_is_launched_and_the_agent_asks_again(
    client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, secret: Secret, instance: Instance
) -> None:
    def damage(session: Session) -> None:
        row = session.get_one(Secret, secret.id)
        stranger = Vault.parse(Vault.generate())
        row.sealed = stranger.seal(b"{}", context(row.id, 1))
        session.add(row)

    database.run_write(damage)
    assert (await client.post("/launch", headers=bootstrap)).status_code == 503
    assert row_of(database, instance).nonce is None


async def test_what_the_workload_writes_is_masked(
    client: httpx.AsyncClient, bootstrap: dict[str, str], services: Services, vault: Vault, instance: Instance
) -> None:
    assert (await client.post("/launch", headers=bootstrap)).status_code == 200
    token = vault.session_token(AttemptId(instance.id), bootstrap["Headrace-Nonce"])
    session = {"Authorization": f"Bearer {token}"}
    data = f"{VALUE} and {PASSWORD}\n".encode()
    assert (await client.post("/logs/stdout?offset=0", headers=session, content=data[:9])).text == "9"
    assert (await client.post("/logs/stdout?offset=9", headers=session, content=data[9:])).text == str(len(data))
    assert (await texts(services.logs, instance.job_id))[-1] == "*** and ***"


async def test_a_pull_password_that_the_host_repeats_is_masked(
    client: httpx.AsyncClient, bootstrap: dict[str, str], services: Services, database: Database, instance: Instance
) -> None:
    said = f"denied: robot:{PASSWORD} at https://robot:{PASSWORD.replace('/', '%2F')}@x".encode()
    assert (await client.post("/progress", headers=bootstrap, content=said)).status_code == 200
    assert (await client.post("/fault", headers=bootstrap, content=said)).status_code == 200
    shown = "denied: robot:*** at https://robot:***@x"
    assert await texts(services.logs, instance.job_id) == [shown, f"agent fault: {shown}"]
    assert row_of(database, instance).reason_message == shown


async def test_a_job_that_is_over_has_no_credential_left(
    database: Database, instance: Instance, clock: SettableClock
) -> None:
    database.run_write(lambda s: transition(s, instance.job_id, JobState.FAILED, "end", clock()))
    database.run_write(lambda s: gone(s, s.get_one(Instance, instance.id), clock()))
    job = database.run_read(lambda s: s.get_one(Job, instance.job_id))
    assert (job.registry_sealed, row_of(database, instance).secrets_sealed) == (None, None)
    assert database.run_read(lambda s: s.exec(select(SecretUse)).all()) == []


class TestTheExchangeForTheRegistry:
    async def test_answers_dockers_configuration_for_the_images_own_registry_alone(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, instance: Instance
    ) -> None:
        def move(session: Session) -> None:
            job = session.get_one(Job, instance.job_id)
            job.spec = job.spec | {"image": "registry.example:5000/org/app:v1"}
            session.add(job)

        database.run_write(move)
        answer = await client.post("/registry", headers=bootstrap)
        assert answer.status_code == 200
        pair = base64.b64encode(f"u:{PASSWORD}".encode()).decode()
        assert answer.json() == {"auths": {"registry.example:5000": {"auth": pair}}}
        assert answer.headers["cache-control"] == "no-store"

    async def test_is_empty_for_a_job_without_a_credential(
        self, client: httpx.AsyncClient, factory: Factory, vault: Vault
    ) -> None:
        public = factory.instance(factory.job(JobState.PROVISIONING))
        headers = {"Authorization": f"Bearer {vault.bootstrap_token(AttemptId(public.id))}"}
        answer = await client.post("/registry", headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")

    @pytest.mark.parametrize("by", ["hello", "launch", "fault"])
    async def test_ends_before_anything_of_the_image_runs(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], by: str
    ) -> None:
        assert (await client.post("/registry", headers=bootstrap)).status_code == 200
        assert (await client.post(f"/{by}", headers=bootstrap)).status_code == 200
        refused = await client.post("/registry", headers=bootstrap)
        assert refused.status_code == 409
        assert PASSWORD not in refused.text

    async def test_is_for_the_bootstrap_token_of_an_attempt_that_is_there(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, instance: Instance,
        clock: SettableClock, vault: Vault,
    ) -> None:  # fmt: skip
        session = vault.session_token(AttemptId(instance.id), bootstrap["Headrace-Nonce"])
        assert (await client.post("/registry", headers={"Authorization": f"Bearer {session}"})).status_code == 401
        assert (await client.post("/registry")).status_code == 401
        database.run_write(lambda s: gone(s, s.get_one(Instance, instance.id), clock()))
        assert (await client.post("/registry", headers=bootstrap)).status_code == 401

    async def test_of_a_job_that_is_to_end_is_refused(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, instance: Instance,
        clock: SettableClock,
    ) -> None:  # fmt: skip
        database.run_write(lambda s: request_termination(s, instance.job_id, clock()))
        assert (await client.post("/registry", headers=bootstrap)).status_code == 409

    async def test_with_a_pull_secret_that_expired_is_the_attempts_end_with_a_reason(
        self, client: httpx.AsyncClient, database: Database, factory: Factory, vault: Vault, secret: Secret,
        clock: SettableClock,
    ) -> None:  # fmt: skip
        job = factory.job(JobState.PROVISIONING, uses_secrets=True)

        def change(session: Session) -> None:
            row = session.get_one(Job, job.id)
            row.spec = row.spec | {"image_pull_secret": secret.id}
            kept = session.get_one(Secret, secret.id)
            kept.expires_at = clock() + timedelta(seconds=1)
            session.add_all((row, kept))

        database.run_write(change)
        clock.advance(2)
        attempt = factory.instance(job, handle=HANDLE)
        headers = {"Authorization": f"Bearer {vault.bootstrap_token(AttemptId(attempt.id))}"}
        answer = await client.post("/registry", headers=headers)
        assert (answer.status_code, answer.text) == (409, "stop")
        row = row_of(database, attempt)
        assert row.reason_code == "secret_expired"
