"""The whole `headrace` command, put together from its groups."""

from typing import Annotated

import typer

from commands import accelerators, database, demo, job, processes, replay, up
from commands.exits import describe_exit_codes
from commands.render import put

_EPILOG = "Exit codes:\n\n\b\n" + describe_exit_codes()

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run GPU compute jobs to completion: submit, watch, and know what they cost.",
    epilog=_EPILOG,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        put(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run GPU compute jobs to completion: submit, watch, and know what they cost."""


app.command("up")(up.up)
app.command("demo")(demo.demo)
app.add_typer(job.app, name="job")
app.command("accelerators")(accelerators.accelerators)
app.command("replay")(replay.replay)
app.command("worker")(processes.worker)
app.command("api")(processes.api)
app.add_typer(database.app, name="db")
