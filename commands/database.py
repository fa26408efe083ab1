"""`headrace db`: the schema of the database, and the first start of an installation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.data_dir import CREDENTIALS_FILE, DataDirectory
from commands.exits import CommandError, ExitCode
from commands.processes import load_settings
from commands.render import say
from domain.clock import utc_now
from settings import Settings

if TYPE_CHECKING:
    from store.db import Database

app = typer.Typer(no_args_is_help=True, help="Look after the database of HEADRACE_DATABASE_URL or the data directory.")


@app.callback()
def db() -> None:
    """Look after the database of HEADRACE_DATABASE_URL or the data directory."""


@app.command("upgrade")
def upgrade() -> None:
    """Bring the database to this version's schema. Repeatable, and safe beside another one that does the same."""
    with open_database(load_settings()) as database:
        _upgrade(database)


@app.command("init")
def init(
    credentials: Annotated[
        Path | None,
        typer.Option(help="Where the admin key is written; by default credentials.json of the data directory."),
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make another admin key, as when the first is lost.")
    ] = False,
) -> None:
    """Upgrade the database and, the first time, create the installation with its organization `default` and an admin
    key, which is written to a file (0600). Repeatable: for a deployment, where `headrace up` does not do it."""
    from store import bootstrap

    settings = load_settings()
    target = (credentials or settings.data_dir / CREDENTIALS_FILE).absolute()
    if not target.parent.is_dir():
        raise CommandError(
            f"the directory {target.parent} does not exist",
            code=ExitCode.USAGE,
            hints=("create it, or give --credentials",),
        )
    with open_database(settings) as database:
        _upgrade(database)
        made = bootstrap.first_start(database, utc_now())
        if made is None and new_key:
            made = bootstrap.new_admin_key(database, utc_now())
    if made is None:
        say("the installation exists already; --new-key makes another admin key")
        return
    # An embedded stack chose its ports itself: its file knows them, and keeps what else it says.
    known = DataDirectory(settings.data_dir).read(CREDENTIALS_FILE)
    here = known.get("api_url") or f"http://{settings.api_host}:{settings.api_port}"
    content = {**known, "api_url": settings.public_url or here, "api_key": made.api_key, "org_id": made.org_id}
    try:
        DataDirectory(target.parent).write(target.name, content)
    except OSError as error:
        raise CommandError(
            f"{target} cannot be written ({error.strerror}), so the new admin key is lost",
            code=ExitCode.USAGE,
            hints=("run it again with --new-key and a --credentials that can be written",),
        ) from None
    say(f"an admin key of the organization `default` is in {target}")


@contextmanager
def open_database(settings: Settings) -> Iterator["Database"]:
    """The database of `settings`, closed at the end."""
    from store.db import Database

    if settings.database_url is None:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database(settings.sqlalchemy_url)
    try:
        yield database
    finally:
        database.close()


def _upgrade(database: "Database") -> None:
    from store import schema

    waiting = schema.pending(database)
    schema.upgrade(database)
    say(f"applied {', '.join(waiting)}" if waiting else "the database is up to date")
