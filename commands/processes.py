"""`headrace worker` and `headrace api`: one process each, configured by HEADRACE_* alone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from commands.exits import CommandError, ExitCode
from commands.loading import loading

if TYPE_CHECKING:  # commands that only talk to a server do without it, and start faster
    from settings import Settings


def load_settings() -> "Settings":
    """The settings of the environment.

    Raises:
        CommandError: one of them is malformed; its value is not shown.
    """
    from pydantic import ValidationError

    from settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        wrong = [f"HEADRACE_{'_'.join(str(p) for p in e['loc']).upper()}: {e['msg']}" for e in error.errors()]
        raise CommandError("; ".join(wrong), code=ExitCode.USAGE, hints=("docs/operations.md lists them",)) from None


def worker() -> None:
    """Run a Temporal worker: it executes the workflows and talks to the providers."""
    with loading():
        from worker import run_worker

    _run(run_worker)


def api() -> None:
    """Run an API server: HTTP for clients, the agents' endpoints, the dispatcher of workflow inputs."""
    with loading():
        from api.server import run_api

    _run(run_api)


def _run(process: Callable[["Settings"], Coroutine[Any, Any, None]]) -> None:
    settings = load_settings()
    try:
        import uvloop
    except ImportError:  # not available on every platform
        asyncio.run(process(settings))
    else:
        uvloop.run(process(settings))
