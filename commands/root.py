"""The whole `headrace` command, put together from its groups."""

from typing import Annotated

import typer

from commands import (
    accelerators,
    audit,
    backend,
    budget,
    database,
    demo,
    fleet,
    job,
    key,
    offers,
    org,
    orphans,
    processes,
    project,
    quote,
    replay,
    secret,
    up,
    usage,
    vault,
    webhook,
)
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


# The short forms fit the list of `headrace --help` on 80 columns.
app.command("up", short_help="Start the embedded stack, and keep it running until Ctrl-C.")(up.up)
app.command("demo", short_help="Run a real training job from nothing: stack, log, bill.")(demo.demo)
app.add_typer(job.app, name="job")
app.add_typer(secret.app, name="secret")
app.command("accelerators", short_help="List what can be asked for: GPUs and CPU classes.")(accelerators.accelerators)
app.add_typer(org.app, name="org")
app.add_typer(org.tenant, name="tenant")
app.add_typer(project.app, name="project")
app.add_typer(key.app, name="key")
app.add_typer(audit.app, name="audit")
app.add_typer(budget.app, name="budget")
app.add_typer(webhook.app, name="webhook")
app.add_typer(backend.app, name="backend")
app.add_typer(fleet.app, name="fleet")
app.command("offers", short_help="List what the connected providers offer.")(offers.offers)
app.command("quote", short_help="Ask whether a job could run now, and for how much.")(quote.quote)
app.command("usage", short_help="Show what jobs cost within a window.")(usage.usage)
app.command("replay", short_help="Replay a job's history with this version's code.")(replay.replay)
app.command("orphans", short_help="List machines that the database does not know.")(orphans.orphans)
app.command("worker", short_help="Run a Temporal worker.")(processes.worker)
app.command("api", short_help="Run an API server.")(processes.api)
app.add_typer(vault.app, name="vault", short_help="Rotate the master key.")
app.add_typer(database.app, name="db", short_help="Upgrade the database, create an installation.")
