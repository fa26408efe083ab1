"""Tables whose rows are never changed and never deleted: the database itself refuses it, whoever asks.

Revisions do not hold the triggers, since autogeneration does not see any: `store.schema` puts them in place after the
revisions, and `create_all` after the table. Retention of such a table is a matter for the database's administrator.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Table, event
from sqlmodel import SQLModel

_MARK = "append_only"


def append_only(model: type[SQLModel]) -> None:
    """Marks the table of `model`: UPDATE, DELETE and TRUNCATE fail."""
    table = SQLModel.metadata.tables[str(model.__tablename__)]
    table.info[_MARK] = True
    event.listen(table, "after_create", _protect)


def protect_tables(connection: Connection) -> None:
    """Puts the triggers of all marked tables in place. Repeatable."""
    for table in SQLModel.metadata.sorted_tables:
        if table.info.get(_MARK):
            _protect(table, connection)


def _protect(table: Any, connection: Connection, **_: Any) -> None:
    build = _sqlite if connection.dialect.name == "sqlite" else _postgres
    for statement in build(table):
        connection.exec_driver_sql(statement)


def _sqlite(table: Table) -> Iterator[str]:
    for change in ("UPDATE", "DELETE"):
        yield (
            f"CREATE TRIGGER IF NOT EXISTS {table.name}_no_{change.lower()} BEFORE {change} ON {table.name} "
            f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
        )


def _postgres(table: Table) -> Iterator[str]:
    yield (
        "CREATE OR REPLACE FUNCTION headrace_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only', ERRCODE = 'restrict_violation'; END $$"
    )
    yield f"DROP TRIGGER IF EXISTS {table.name}_append_only ON {table.name}"
    yield (
        f"CREATE TRIGGER {table.name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
        "FOR EACH STATEMENT EXECUTE FUNCTION headrace_append_only()"
    )
