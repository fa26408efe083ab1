"""A rotation seals every row anew with the active key, whatever interrupts it; then the old key can be taken away."""

import base64

import pytest
from sqlalchemy import LargeBinary, func
from sqlmodel import Session, SQLModel, select

from domain.backends import backend_of
from domain.roles import Role
from domain.spec import Workload
from store import connections, jobs, launch_secrets, reseal, retired_keys, secrets, webhooks
from store.access import Principal, authenticate
from store.db import Database
from store.secrets import Values
from store.tables import Connection, IdempotencyKey, Instance, Job, RetiredKey, Secret, Webhook
from store.vault import Vault, key_id_of
from tests.support.clock import SettableClock
from tests.support.factory import Factory

OLD = "old:" + base64.b64encode(bytes(range(32))).decode()
NEW = "new:" + base64.b64encode(bytes(range(100, 132))).decode()

# What the vault has nothing to do with, or only for as long as an instance lives.
NOT_SEALED = {"logchunk.data", "logstream.line_state", "logstream.held"}


@pytest.fixture
def vault() -> Vault:
    return Vault.parse(OLD)


@pytest.fixture
def principal(factory: Factory, database: Database, clock: SettableClock) -> Principal:
    token = factory.key(role=Role.MEMBER).token
    found = database.run_read(lambda s: authenticate(s, token, clock()))
    assert found is not None
    return found


@pytest.fixture
def rows(database: Database, factory: Factory, vault: Vault, principal: Principal, clock: SettableClock) -> str:
    """One of each sealed value; the id of the job that has them."""
    job = factory.job(workload=Workload(argv=("true",), env={"A": "x"}))
    instance = factory.instance(job)

    def fill(session: Session) -> None:
        row = session.get_one(Job, job.id)
        row.registry_sealed = vault.seal(b'{"username": "u", "password": "p"}', f"registry:{job.id}")
        session.add(row)
        attempt = session.get_one(Instance, instance.id)
        attempt.secrets_sealed = vault.seal(b'{"env": {"T": "value"}, "unseen": []}', f"launch:{instance.id}")
        session.add(attempt)
        secret = secrets.create(session, principal, "token", Values({"K": "first"}), vault, clock())
        secrets.rotate(session, principal, secret.id, Values({"K": "second"}), vault, clock())
        connection = connections.connect(
            session, vault, connections.Scope(), backend_of("runpod"), "pods", {"api_key": "first"}, clock()
        )
        session.flush()
        connections.verified(session, connection.id, 1, "ok", "", clock())
        connections.begin_verification(session, vault, connection, backend_of("runpod"), {"api_key": "second"}, clock())
        webhooks.create(session, vault, principal.org_id, "https://example.com/", (), True, clock())
        session.add(
            IdempotencyKey(
                org_id=principal.org_id,
                operation=jobs.CREATE_JOB,
                key="k",
                fingerprint=vault.fingerprint(b"body"),
                resource_id=job.id,
                created_at=clock(),
            )
        )

    database.run_write(fill)
    return job.id


def run(database: Database, vault: Vault) -> dict[str, reseal.Resealed]:
    return dict(reseal.reseal(database, vault))


def test_every_sealed_column_is_known_to_the_rotation() -> None:
    stored = {
        f"{table.name}.{column.name}"
        for table in SQLModel.metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, LargeBinary)
    }
    assert {sealed.label for sealed in reseal.SEALED} == stored - NOT_SEALED


def test_everything_opens_with_the_new_key_alone_afterwards(
    database: Database, rows: str, principal: Principal, clock: SettableClock
) -> None:
    both, new = Vault.parse(f"{NEW},{OLD}"), Vault.parse(NEW)
    database.run_write(lambda s: retired_keys.keep(s, Vault.parse(f"{OLD},{NEW}"), clock()))
    done = run(database, both)
    assert {label: result.sealed for label, result in done.items()} == dict.fromkeys(done, 1)
    assert not any(result.failed for result in done.values())

    def read(session: Session) -> None:
        job = session.get_one(Job, rows)
        instance = session.exec(select(Instance)).one()
        assert Workload.model_validate_json(new.open(job.workload_sealed, f"workload:{rows}")).env == {"A": "x"}
        credential = launch_secrets.pull_credential(session, new, job, clock())
        assert credential is not None
        assert credential.password.get_secret_value() == "p"
        assert launch_secrets.known(session, new, instance) == ["value", "p"]
        assert secrets.opened(new, session.exec(select(Secret)).one()) == {"K": "second"}
        webhook = session.exec(select(Webhook)).one()
        assert new.open(webhook.secret_sealed, webhooks.secret_context(webhook.id))
        connection = session.exec(select(Connection)).one()
        assert connections.values_of(new, connection) == {"api_key": "first"}
        wanted = connections.to_verify(session, new, connection.id, 2, clock())
        assert wanted is not None
        assert wanted.values == {"api_key": "second"}
        assert key_id_of(session.exec(select(RetiredKey)).one().sealed) == "new"

    database.run_read(read)
    assert database.run_read(lambda s: reseal.unopenable(s, new)) == 0
    assert all(result == reseal.Resealed() for result in run(database, both).values())


def test_fingerprints_are_comparable_after_their_key_is_gone(
    database: Database, rows: str, clock: SettableClock
) -> None:
    both = Vault.parse(f"{NEW},{OLD}")
    fingerprint = database.run_read(lambda s: s.exec(select(IdempotencyKey.fingerprint)).one())
    later = Vault.parse(NEW)
    assert not database.run_read(lambda s: retired_keys.matches(s, later, fingerprint, b"body"))
    for _ in range(2):
        database.run_write(lambda s: retired_keys.keep(s, both, clock()))
    assert database.run_read(lambda s: retired_keys.matches(s, later, fingerprint, b"body"))
    assert not database.run_read(lambda s: retired_keys.matches(s, later, fingerprint, b"other"))
    # And after the next rotation, by which the kept part was sealed anew.
    third = "third:" + base64.b64encode(bytes(range(200, 232))).decode()
    run(database, Vault.parse(f"{third},{NEW}"))
    assert database.run_read(lambda s: retired_keys.matches(s, Vault.parse(third), fingerprint, b"body"))
    assert database.run_read(lambda s: retired_keys.kept(s)) == {"old": clock()}


def test_an_interrupted_run_is_taken_up_where_it_ended(
    database: Database, factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reseal, "BATCH", 3)
    for _ in range(8):
        factory.job()
    both = Vault.parse(f"{NEW},{OLD}")
    steps = reseal.reseal(database, both)
    assert next(steps) == ("job.workload_sealed", reseal.Resealed(3, 0))
    [new, old] = database.run_read(lambda s: reseal.uses(s, both))
    assert (new.sealed, old.sealed) == ({"job.workload_sealed": 3}, {"job.workload_sealed": 5})
    assert run(database, both)["job.workload_sealed"] == reseal.Resealed(5, 0)
    [new, old] = database.run_read(lambda s: reseal.uses(s, both))
    assert (new.sealed, old.sealed) == ({"job.workload_sealed": 8}, {})


def test_what_cannot_be_opened_is_counted_and_left(
    database: Database, rows: str, factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reseal, "BATCH", 1)
    stranger = Vault.parse("lost:" + base64.b64encode(bytes(range(50, 82))).decode())
    factory.job(workload_sealed=stranger.seal(b"{}", "workload:x"))
    both = Vault.parse(f"{NEW},{OLD}")
    assert run(database, both)["job.workload_sealed"] == reseal.Resealed(1, 1)
    assert database.run_read(lambda s: reseal.unopenable(s, both)) == 1
    assert database.run_read(lambda s: s.exec(select(func.count()).select_from(Job)).one()) == 2


def test_the_uses_of_a_key_are_counted(database: Database, rows: str) -> None:
    [new, old] = database.run_read(lambda s: reseal.uses(s, Vault.parse(f"{NEW},{OLD}")))
    assert (new.key_id, new.sealed, new.fingerprints) == ("new", {}, 0)
    assert (old.key_id, set(old.sealed), old.fingerprints) == (
        "old",
        {sealed.label for sealed in reseal.SEALED} - {"retiredkey.sealed"},
        1,
    )
