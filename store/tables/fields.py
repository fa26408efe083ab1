"""How columns are declared."""

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, LargeBinary
from sqlmodel import Field

from store.columns import Json, UtcDateTime


def time(nullable: bool = True, index: bool = False) -> Any:
    """A moment in UTC."""
    return Field(default=None, sa_column=Column(UtcDateTime, nullable=nullable, index=index))


def json(nullable: bool = True) -> Any:
    """A value in its JSON form."""
    return Field(default=None, sa_column=Column(Json, nullable=nullable))


def blob() -> Any:
    """Bytes, mostly sealed ones."""
    return Field(default=None, sa_column=Column(LargeBinary, nullable=True))


# BIGINT on PostgreSQL; on SQLite only INTEGER PRIMARY KEY numbers itself.
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def serial() -> Any:
    """A primary key that the database numbers."""
    return Field(default=None, sa_column=Column(_SERIAL, primary_key=True, autoincrement=True))
