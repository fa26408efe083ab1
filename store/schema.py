"""Brings a database to the schema that this version of Headrace needs, and tells what is missing."""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlmodel import Session

from domain.errors import HeadraceError
from store.append_only import protect_tables
from store.db import Database

_one_at_a_time = threading.Lock()
"""Alembic keeps the migration under way in globals of its modules."""
_LOCK = 0x48656164_72616365  # "Headrace"; the number of PostgreSQL's advisory lock for migrations


class SchemaError(HeadraceError):
    """The database was migrated by a newer version of Headrace."""


def migrations() -> Config:
    """Alembic's configuration, made in code: there is no alembic.ini."""
    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return config


def upgrade(db: Database) -> None:
    """Runs every pending revision in one transaction: all of them are kept or none. Does nothing when none is pending.

    Several processes may do it at once: one migrates, the others wait for it.

    Raises:
        SchemaError: the database is newer than this version.
    """
    db.run_write(lambda session: _upgrade(_locked(session, db)))


def pending(db: Database) -> list[str]:
    """The numbers of the revisions that the database lacks, oldest first.

    Raises:
        SchemaError: the database is newer than this version.
    """
    return db.run_read(lambda session: _missing(session.connection()))


def _upgrade(connection: Connection) -> None:
    if not _missing(connection):
        return
    config = migrations()
    with _one_at_a_time:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    protect_tables(connection)


def _missing(connection: Connection) -> list[str]:
    present = MigrationContext.configure(connection).get_current_heads()
    script = ScriptDirectory.from_config(migrations())
    try:
        return [revision.revision for revision in script.iterate_revisions("head", present or "base")][::-1]
    except (RevisionError, CommandError):
        raise SchemaError(
            f"the database is at revision {', '.join(present)}, which this version of Headrace does not know: "
            "start the version that migrated it, or restore the backup from before"
        ) from None


def _locked(session: Session, db: Database) -> Connection:
    """SQLite's write transaction is the lock already."""
    connection = session.connection()
    if not db.sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    return connection
