"""`headrace up`: the embedded stack in the foreground, until Ctrl-C."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from commands.client import default_data_dir
from commands.data_dir import CREDENTIALS_FILE
from commands.options import AsJson
from commands.render import print_json, print_record, say
from commands.stack import EmbeddedStack, StackOptions


def up(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Holds all state. Default: HEADRACE_DATA_DIR or ~/.headrace.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Of the API. Default: the last one, else 8080 if free.", show_default=False
        ),
    ] = None,
    otel_endpoint: Annotated[
        str | None,
        typer.Option("--otel-endpoint", help="Send traces and metrics there, OTLP over HTTP.", show_default=False),
    ] = None,
    no_ui: Annotated[bool, typer.Option("--no-ui", help="Without the Temporal web UI.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the embedded stack (Temporal, worker, API) and keep it running until Ctrl-C.

    All state is in the data directory; starting again on the same one goes on where it stopped. Several stacks with
    different data directories run side by side.
    """
    options = StackOptions(data_dir or default_data_dir(), port, otel_endpoint, ui=not no_ui)
    asyncio.run(_up(options, as_json=as_json))


async def _up(options: StackOptions, *, as_json: bool) -> None:
    stack = EmbeddedStack(options, say)
    ended = asyncio.Event()
    with stop_signals(ended, stack.hurry):
        # A signal during the start ends it like one afterwards: what has been started is stopped in order.
        starting = asyncio.create_task(stack.__aenter__())
        stopping = asyncio.create_task(ended.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return
        stopping.cancel()
        await starting
        try:
            show(stack, as_json=as_json)
            await ended.wait()
        finally:
            await stack.__aexit__()


@contextlib.contextmanager
def stop_signals(ended: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP sets `ended`, a second one `hurry`."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if ended.is_set() else ended).set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def show(stack: EmbeddedStack, *, as_json: bool) -> None:
    """Where everything is; the key itself stays in its file."""
    credentials = stack.data.path / CREDENTIALS_FILE
    if as_json:
        public = {name: value for name, value in stack.credentials.items() if name != "api_key"}
        print_json({**public, "credentials": str(credentials), "data_dir": str(stack.data.path)})
        return
    print_record(
        [
            ("API", f"{stack.api_url}/api/v1/compute"),
            ("API docs", f"{stack.api_url}/docs"),
            ("Temporal UI", stack.credentials["temporal_ui_url"]),
            ("API key", f"in {credentials}"),
            ("data", str(stack.data.path)),
            ("logs", str(stack.data.logs)),
        ]
    )
    say("ready; Ctrl-C stops it")
