"""Sealing anew with the active master key, in batches: what a rotation does to the rows.

A batch that is repeated, or interrupted, does no harm: only what another key has sealed is taken up, and a value that
changed meanwhile is left as it became.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Table, func, select, tuple_, update
from sqlmodel import Session, SQLModel

from store import connections, retired_keys, secrets
from store.db import Database
from store.tables import Connection, IdempotencyKey, Instance, Job, RetiredKey, Secret, Webhook
from store.vault import Vault, VaultError, sealed_prefix
from store.webhooks import secret_context

BATCH = 200


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed values, and the context of a row's. `columns` are those that the context needs, besides the
    primary key."""

    table: Table
    name: str
    context: Callable[[RowMapping], str]
    columns: tuple[str, ...] = ()

    @property
    def column(self) -> ColumnElement[Any]:
        return self.table.c[self.name]

    @property
    def label(self) -> str:
        return f"{self.table.name}.{self.name}"


@dataclass(frozen=True, slots=True)
class Resealed:
    """`failed` could not be opened: their key is not configured, or they were changed."""

    sealed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What of a key is still there. `sealed` counts values by their column."""

    key_id: str
    sealed: dict[str, int]
    fingerprints: int


def _table(model: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(model.__tablename__)]


_KEYS = _table(IdempotencyKey)

SEALED = (
    SealedColumn(_table(Job), "workload_sealed", lambda row: f"workload:{row['id']}"),
    SealedColumn(_table(Job), "registry_sealed", lambda row: f"registry:{row['id']}"),
    SealedColumn(_table(Instance), "secrets_sealed", lambda row: f"launch:{row['id']}"),
    SealedColumn(_table(Secret), "sealed", lambda row: secrets.context(row["id"], row["version"]), ("version",)),
    SealedColumn(_table(Webhook), "secret_sealed", lambda row: secret_context(row["id"])),
    SealedColumn(_table(Connection), "credentials_sealed", lambda row: connections.context(row["id"])),
    SealedColumn(_table(Connection), "candidate_sealed", lambda row: connections.context(row["id"])),
    SealedColumn(_table(RetiredKey), "sealed", lambda row: retired_keys.context(row["key_id"])),
)


def reseal(database: Database, vault: Vault) -> Iterator[tuple[str, Resealed]]:
    """Seals everything with the active key; yields each column with what became of it so far, batch by batch."""
    for sealed in SEALED:
        result, after = Resealed(), None
        while True:
            done, after = database.run_write(partial(_batch, vault=vault, sealed=sealed, after=after))
            result = Resealed(result.sealed + done.sealed, result.failed + done.failed)
            yield sealed.label, result
            if after is None:
                break


def uses(session: Session, vault: Vault) -> list[KeyUse]:
    """What each configured key still has to open, the active one first; reads every sealed row."""
    return [
        KeyUse(
            key_id,
            {
                sealed.label: count
                for sealed in SEALED
                if (count := _count(session, sealed.table, _sealed_by(sealed.column, key_id)))
            },
            _count(session, _KEYS, _KEYS.c.fingerprint.startswith(f"{key_id}:", autoescape=True)),
        )
        for key_id in vault.key_ids
    ]


def unopenable(session: Session, vault: Vault) -> int:
    """How many values were sealed with keys that are not configured."""
    return sum(
        _count(
            session,
            sealed.table,
            sealed.column.is_not(None),
            *(~_sealed_by(sealed.column, key_id) for key_id in vault.key_ids),
        )
        for sealed in SEALED
    )


def _batch(session: Session, vault: Vault, sealed: SealedColumn, after: Any) -> tuple[Resealed, Any]:
    """Seals the next rows anew; answers the position after them too, None at the end."""
    key = list(sealed.table.primary_key.columns)
    wanted = [*key, sealed.column, *(sealed.table.c[name] for name in sealed.columns)]
    query = select(*wanted).where(sealed.column.is_not(None), ~_sealed_by(sealed.column, vault.active_key_id))
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*after))
    connection = session.connection()
    rows = connection.execute(query.order_by(*key).limit(BATCH)).mappings().all()
    failed = 0
    for row in rows:
        context, blob = sealed.context(row), row[sealed.name]
        try:
            fresh = vault.seal(vault.open(blob, context), context)
        except VaultError:
            failed += 1
            continue
        # Unless it was changed meanwhile: it was sealed anew then.
        same_row = [column == row[column.name] for column in key]
        connection.execute(update(sealed.table).where(*same_row, sealed.column == blob).values({sealed.name: fresh}))
    last = tuple(rows[-1][column.name] for column in key) if len(rows) == BATCH else None
    return Resealed(len(rows) - failed, failed), last


def _sealed_by(column: ColumnElement[Any], key_id: str) -> ColumnElement[bool]:
    prefix = sealed_prefix(key_id)
    return func.substr(column, 1, len(prefix)) == prefix


def _count(session: Session, table: Table, *conditions: ColumnElement[bool]) -> int:
    return int(session.connection().scalar(select(func.count()).select_from(table).where(*conditions)) or 0)
