"""Run by alembic, always on a connection whose transaction `store.schema` has begun and will commit."""

from typing import Any, Literal

from alembic import context
from sqlalchemy.types import TypeDecorator
from sqlmodel import SQLModel

import store.tables  # noqa: F401 - registers the tables with the metadata


def render_frozen(kind: str, item: Any, _autogenerate: Any) -> str | Literal[False]:
    """Revisions name the plain column type beneath ours, so that they stay what they were when ours change."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_item=render_frozen,
    render_as_batch=True,  # SQLite alters a table by making it anew
)
with context.begin_transaction():
    context.run_migrations()
