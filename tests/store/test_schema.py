"""Migrations: what they lead to is what the tables say, from any number of processes, from an installed package."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlmodel import SQLModel

from store import schema
from store.db import Database


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    database = Database(empty_database_url)
    yield database
    database.close()


def tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names())


def description(database: Database) -> dict[str, list[str]]:
    """Every column, index and constraint, as the database itself tells."""
    inspected = inspect(database.engine)
    return {
        table: [
            *sorted(
                _shown(part)
                for parts in ("get_columns", "get_indexes", "get_unique_constraints")
                for part in getattr(inspected, parts)(table)
            ),
            repr(inspected.get_pk_constraint(table)),
        ]
        for table in SQLModel.metadata.tables
    }


def _shown(part: Any) -> str:
    """As text; a partial index's condition is an object without one."""
    options = part.get("dialect_options", {})
    return repr({**part, "dialect_options": {name: str(value) for name, value in options.items()}})


def test_an_upgraded_empty_database_is_what_the_tables_say(empty: Database) -> None:
    schema.upgrade(empty)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        difference = compare_metadata(context, SQLModel.metadata)
    assert difference == [], "the history lags behind store/tables.py: run `python -m store.migrations`"


def test_an_upgraded_database_has_the_same_columns_indexes_and_keys_as_created_tables(empty: Database) -> None:
    schema.upgrade(empty)
    migrated = description(empty)
    with empty.engine.begin() as connection:
        SQLModel.metadata.drop_all(connection)
        SQLModel.metadata.create_all(connection)
    assert migrated == description(empty)


def test_what_is_pending_is_named_until_it_has_run(empty: Database) -> None:
    assert schema.pending(empty)[0] == "0001"
    schema.upgrade(empty)
    assert schema.pending(empty) == []


def test_a_second_upgrade_changes_nothing(empty: Database) -> None:
    schema.upgrade(empty)
    empty.run_write(lambda s: s.connection().execute(text("INSERT INTO project VALUES ('p', 'o', 'n', 1)")))
    schema.upgrade(empty)
    assert empty.run_read(lambda s: s.connection().execute(text("SELECT count(*) FROM project")).scalar()) == 1


def test_a_failing_upgrade_leaves_nothing_behind(empty: Database) -> None:
    # The last table that the first revision creates is in the way.
    empty.run_write(lambda s: s.connection().execute(text("CREATE TABLE workflow_inbox (id INTEGER)")))
    with pytest.raises(Exception, match="workflow_inbox"):
        schema.upgrade(empty)
    assert tables(empty) <= {"workflow_inbox", "alembic_version"}
    assert schema.pending(empty)[0] == "0001"


def test_upgrades_from_several_threads_at_once_all_succeed(empty_database_url: str) -> None:
    def upgrade(_: int) -> None:
        database = Database(empty_database_url)
        schema.upgrade(database)
        database.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upgrade, range(4)))


def test_upgrades_from_several_processes_at_once_all_succeed(empty_database_url: str) -> None:
    program = "import sys; from store import db, schema; schema.upgrade(db.Database(sys.argv[1]))"
    started = [
        subprocess.Popen([sys.executable, "-c", program, empty_database_url], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    failures = [errors for process in started for _, errors in [process.communicate(timeout=60)] if process.returncode]
    assert failures == []


def test_a_database_of_a_newer_version_is_refused_with_the_next_step(empty: Database) -> None:
    schema.upgrade(empty)
    empty.run_write(lambda s: s.connection().execute(text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(schema.SchemaError, match=r"revision 9999.*restore the backup"):
        schema.upgrade(empty)
    with pytest.raises(schema.SchemaError):
        schema.pending(empty)


def test_the_built_package_holds_the_revisions_and_the_agents(tmp_path: Path) -> None:
    root = Path(schema.__file__).parents[1]
    options = [
        "egg_info",
        "--egg-base",
        tmp_path,
        "build",
        "--build-base",
        tmp_path / "base",
        "--build-lib",
        tmp_path / "lib",
    ]
    build = "from setuptools import setup; setup()"
    subprocess.run(
        [sys.executable, "-c", build, "-q", *options],
        cwd=root,
        check=True,
    )
    program = (
        "import sys; from store import db, schema; assert schema.__file__.startswith(sys.argv[1]), schema.__file__;"
        "d = db.Database(f'sqlite:///{sys.argv[1]}/t.db'); schema.upgrade(d); assert schema.pending(d) == [];"
        "from agent import host, workload; assert workload.text().endswith('hr_main\\n'); host._body()"
    )
    environment = {"PYTHONPATH": str(tmp_path / "lib"), "PATH": ""}
    subprocess.run([sys.executable, "-P", "-c", program, tmp_path], cwd=tmp_path, env=environment, check=True)
