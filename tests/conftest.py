"""Fixtures for every area: databases of both kinds, a clock, a vault, rows, and a guard over transactions.

`database` runs a test on SQLite and on PostgreSQL; a test that needs one of them takes `sqlite_database` or
`postgres_database`. All hold the tables. `empty_database_url` is a database without any, of both kinds.
"""

import gc
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import httpx._transports.default
import pytest
from hypothesis import settings as hypothesis_settings

from store.db import Database
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.guard import GUARD, TransactionGuard
from tests.support.postgres import TestServer, create_tables, running_server

# A deadline of a generated example would be a test of how busy the machine is.
hypothesis_settings.register_profile("headrace", deadline=None)
hypothesis_settings.load_profile("headrace")

# A shell that starts a job in the background has it ignore SIGINT, which every process under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests make a client each, and each client would read the root certificates, for 20 ms.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

BOTH_ENGINES = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]


def pytest_collection_finish() -> None:
    """What is there by now stays. Looked through for garbage again and again, it took a fifth of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def transaction_guard() -> Iterator[TransactionGuard]:
    """Fails a test in which Python code opened a socket or started a process inside a transaction."""
    GUARD.install()
    GUARD.take()
    yield GUARD
    GUARD.check()


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def vault() -> Vault:
    return Vault.parse(Vault.generate())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TestServer]:
    """One PostgreSQL server for each test process that asks for it."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "headrace.db"
    create_tables(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of an SQLite file with the tables."""
    path = tmp_path / "headrace.db"
    shutil.copyfile(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: TestServer) -> Iterator[str]:
    """The URL of a PostgreSQL database with the tables."""
    url = postgres_server.create()
    yield url
    postgres_server.give_back(url)


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.close()


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    yield database
    database.close()


@pytest.fixture(params=BOTH_ENGINES)
def database(request: pytest.FixtureRequest) -> Database:
    """An open database with the tables, once of each kind."""
    opened: Database = request.getfixturevalue(f"{request.param}_database")
    return opened


@pytest.fixture(params=BOTH_ENGINES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: TestServer = request.getfixturevalue("postgres_server")
    url = server.create(empty=True)
    yield url
    server.give_back(url)


@pytest.fixture
def factory(database: Database, clock: SettableClock, vault: Vault) -> Factory:
    """Inserts rows into `database`."""
    return Factory(database, clock, vault)
