"""`headrace db`: the schema of the database."""

import typer

from commands.processes import load_settings
from commands.render import say

app = typer.Typer(no_args_is_help=True, help="Look after the database of HEADRACE_DATABASE_URL or the data directory.")


@app.callback()
def db() -> None:
    """Look after the database of HEADRACE_DATABASE_URL or the data directory."""


@app.command("upgrade")
def upgrade() -> None:
    """Bring the database to this version's schema. Repeatable, and safe beside another one that does the same."""
    from store import schema
    from store.db import Database

    settings = load_settings()
    if settings.database_url is None:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database(settings.sqlalchemy_url)
    try:
        waiting = schema.pending(database)
        schema.upgrade(database)
    finally:
        database.engine.dispose()
    say(f"applied {', '.join(waiting)}" if waiting else "the database is up to date")
