"""The first start creates one installation, whoever else starts at the same time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import func
from sqlmodel import col, select

from domain.roles import Role
from store import audit
from store.access import authenticate
from store.bootstrap import first_start, new_admin_key, owner_id
from store.db import Database
from store.tables import ApiKey, Installation, Organization, Project
from tests.support.clock import SettableClock


def rows(database: Database) -> list[int]:
    return [
        database.run_read(lambda s, table=table: s.exec(select(func.count()).select_from(table)).one())
        for table in (Installation, Organization, Project, ApiKey)
    ]


def test_the_first_start_makes_an_enabled_organization_and_a_key_that_works(
    database: Database, clock: SettableClock
) -> None:
    made = first_start(database, clock())
    assert made is not None
    assert len(made.owner_id) == 12
    principal = database.run_read(lambda s: authenticate(s, made.api_key, clock()))
    assert principal is not None
    assert (principal.org_id, principal.role) == (made.org_id, Role.CLUSTER_ADMIN)
    assert database.run_read(lambda s: s.get_one(Organization, made.org_id)).enabled
    project = database.run_read(lambda s: s.get(Project, made.project_id))
    assert project is not None
    assert (project.org_id, project.name) == (made.org_id, "default")
    assert database.run_read(owner_id) == made.owner_id


def test_the_key_is_neither_stored_nor_shown(database: Database, clock: SettableClock) -> None:
    made = first_start(database, clock())
    assert made is not None
    assert made.api_key not in repr(made)
    stored = database.run_read(lambda s: s.exec(select(ApiKey)).one())
    assert made.api_key not in repr(stored)
    assert made.api_key.removeprefix("hr_") not in repr(stored)


def test_a_second_start_changes_nothing(database: Database, clock: SettableClock) -> None:
    first_start(database, clock())
    assert first_start(database, clock()) is None
    assert rows(database) == [1, 1, 1, 1]


def test_of_eight_starts_at_once_one_creates(database: Database, clock: SettableClock) -> None:
    together = Barrier(8)

    def start(_: int) -> bool:
        together.wait()
        return first_start(database, clock()) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start, range(8))) == 1
    assert rows(database) == [1, 1, 1, 1]


def test_of_three_processes_that_start_at_once_one_creates(empty_database_url: str) -> None:
    program = (
        "import sys; from domain.clock import utc_now; from store import bootstrap, db, schema;"
        "d = db.Database(sys.argv[1]); schema.upgrade(d); sys.exit(10 * bool(bootstrap.first_start(d, utc_now())))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, empty_database_url]) for _ in range(3)]
    assert sorted(process.wait(60) for process in started) == [0, 0, 10]


def test_a_lost_admin_key_is_replaced(database: Database, clock: SettableClock) -> None:
    made = first_start(database, clock())
    assert made is not None
    again = new_admin_key(database, clock())
    assert (again.owner_id, again.org_id, again.project_id) == (made.owner_id, made.org_id, made.project_id)
    assert again.api_key != made.api_key
    principal = database.run_read(lambda s: authenticate(s, again.api_key, clock()))
    assert principal is not None
    assert principal.role is Role.CLUSTER_ADMIN
    entries = database.run_read(lambda s: audit.entries(s, audit.Filter(), ascending=True, after=None, limit=9))
    assert [(entry.action, entry.owner, entry.key_id) for entry in entries] == [("key.create", "operator", "")] * 2
    owners = database.run_read(lambda s: s.exec(select(ApiKey.owner).order_by(col(ApiKey.owner))).all())
    assert owners == ["admin", "admin"]


def test_before_the_first_start_there_is_no_owner(database: Database, clock: SettableClock) -> None:
    with pytest.raises(LookupError, match="start Headrace once"):
        database.run_read(owner_id)
    with pytest.raises(LookupError, match="start Headrace once"):
        new_admin_key(database, clock())
