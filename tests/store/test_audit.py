"""The audit log: written with what it tells, never changed, and read by its filters."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from domain.roles import Role
from store import audit, schema
from store.access import Principal, authenticate
from store.db import Database
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def principal(database: Database, factory: Factory, clock: SettableClock) -> Principal:
    key = factory.key(role=Role.MEMBER, owner="Ada")
    found = database.run_read(lambda s: authenticate(s, key.token, clock()))
    assert found is not None
    return replace(found, on_behalf_of="end-user-7", request_id="req_1")


def read(database: Database, wanted: audit.Filter | None = None, *, ascending: bool = False) -> list[audit.Entry]:
    wanted = wanted or audit.Filter()
    found = database.run_read(lambda s: audit.entries(s, wanted, ascending=ascending, after=None, limit=100))
    assert len(found) == database.run_read(lambda s: audit.count(s, wanted))
    return found


def test_an_entry_tells_who_what_when_and_on_whose_behalf(
    database: Database, principal: Principal, clock: SettableClock
) -> None:
    database.run_write(lambda s: audit.write(s, principal, "secret.rotate", "sec_1", clock(), {"version": 2}))
    [entry] = read(database)
    assert (entry.at, entry.org_id, entry.key_id) == (clock(), principal.org_id, principal.key_id)
    assert (entry.owner, entry.role, entry.on_behalf_of) == ("Ada", "member", "end-user-7")
    assert (entry.action, entry.resource, entry.request_id) == ("secret.rotate", "sec_1", "req_1")
    assert entry.data == {"version": 2}


def test_what_is_rolled_back_leaves_no_entry(database: Database, principal: Principal, clock: SettableClock) -> None:
    def fail(session: object) -> None:
        audit.write(session, principal, "job.create", "job_1", clock())  # type: ignore[arg-type]
        raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError):
        database.run_write(fail)
    assert read(database) == []


@pytest.mark.parametrize(
    "change",
    ["UPDATE auditentry SET owner = 'nobody'", "DELETE FROM auditentry", "DELETE FROM auditentry WHERE id = 1"],
)
def test_an_entry_can_be_neither_changed_nor_deleted(
    database: Database, principal: Principal, clock: SettableClock, change: str
) -> None:
    database.run_write(lambda s: audit.write(s, principal, "job.create", "job_1", clock()))
    before = read(database)
    with pytest.raises(DBAPIError, match="auditentry is append-only"):
        database.run_write(lambda s: s.connection().execute(text(change)))
    assert read(database) == before


def test_the_log_cannot_be_emptied_at_once_either(postgres_database: Database) -> None:
    with pytest.raises(DBAPIError, match="auditentry is append-only"):
        postgres_database.run_write(lambda s: s.connection().execute(text("TRUNCATE auditentry")))


def test_a_migrated_database_is_protected_as_a_created_one_is(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    schema.upgrade(database)
    schema.upgrade(database)
    values = "1, 1, 'org', 'key', 'Ada', 'member', NULL, 'job.create', 'job_1', 'req_1', NULL"
    columns = "id, at, org_id, key_id, owner, role, on_behalf_of, action, resource, request_id, data"
    database.run_write(lambda s: s.connection().execute(text(f"INSERT INTO auditentry ({columns}) VALUES ({values})")))
    with pytest.raises(DBAPIError, match="auditentry is append-only"):
        database.run_write(lambda s: s.connection().execute(text("DELETE FROM auditentry")))
    database.close()


def test_entries_are_found_by_organization_action_resource_and_time(
    database: Database, principal: Principal, clock: SettableClock
) -> None:
    start = clock()
    for action, resource, org_id in (
        ("job.create", "job_1", None),
        ("job.terminate", "job_1", None),
        ("tenant.put", "org_other", "org_other"),
    ):
        database.run_write(lambda s, a=action, r=resource, o=org_id: audit.write(s, principal, a, r, clock(), org_id=o))
        clock.advance(seconds=10)

    def actions(**wanted: object) -> list[str]:
        return [entry.action for entry in read(database, audit.Filter(**wanted))]  # type: ignore[arg-type]

    assert actions() == ["tenant.put", "job.terminate", "job.create"]
    assert actions(org_id=principal.org_id) == ["job.terminate", "job.create"]
    assert actions(org_id="org_other") == ["tenant.put"]
    assert actions(action="job.create") == ["job.create"]
    assert actions(resource="job_1") == ["job.terminate", "job.create"]
    assert actions(since=start + timedelta(seconds=10)) == ["tenant.put", "job.terminate"]
    assert actions(until=start + timedelta(seconds=10)) == ["job.create"]
    assert [e.action for e in read(database, ascending=True)] == ["job.create", "job.terminate", "tenant.put"]
