"""`headrace replay`: a finished or running job's history, run again through the workflow code of this version."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.client import default_data_dir
from commands.exits import CommandError, ExitCode
from commands.options import AsJson
from commands.render import hint, print_json, put, say

if TYPE_CHECKING:  # it takes half a second to import, and the other commands do without it
    from temporalio.client import WorkflowHistory
    from temporalio.worker import Replayer


def replay(
    job_id: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The job's id, job_...", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="An exported history (JSON) instead of a job's.", show_default=False)
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="This run of the workflow, not the last.", show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="The stack's data directory. Default: HEADRACE_DATA_DIR or ~/.headrace.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a job's workflow history with this version's code, and say whether it still fits.

    Nothing is executed: activities answer as they did. Run it under a debugger to see why a job went as it did.
    """
    if (job_id is None) == (file is None):
        raise CommandError("give a JOB, or --file with an exported history", code=ExitCode.USAGE)
    if file is not None:
        outcome = asyncio.run(_replay_history(_read_history(file), settings_of(data_dir)))
    else:
        outcome = asyncio.run(_replay_job(str(job_id), run_id, data_dir))
    if as_json:
        print_json(outcome)
    elif outcome["ok"]:
        put(f"{outcome['workflow_id']}: {outcome['events']} events, replays cleanly")
    else:
        where = f" at event {outcome['event']}" if outcome["event"] is not None else ""
        put(f"{outcome['workflow_id']}: {outcome['events']} events, fails{where}: {outcome['failure']}")
    if not outcome["ok"]:
        if not as_json:
            hint("a changed order of steps needs workflow.patched(); see docs/operations.md")
        raise typer.Exit(ExitCode.REPLAY_FAILED)


def _read_history(file: Path) -> "WorkflowHistory":
    from google.protobuf.json_format import ParseError
    from temporalio.client import WorkflowHistory

    try:
        history = WorkflowHistory.from_json(file.stem, file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {type(error).__name__}", code=ExitCode.USAGE) from None
    except (ValueError, TypeError, KeyError, AttributeError, ParseError) as error:
        raise CommandError(f"{file} is not an exported history: {error}", code=ExitCode.USAGE) from None
    # The core waits for ever for a history that begins with anything else.
    begins = history.events[0].workflow_execution_started_event_attributes if history.events else None
    if begins is None or not begins.original_execution_run_id:
        raise CommandError(f"{file} is not an exported history: it has no beginning", code=ExitCode.USAGE)
    return history


async def _replay_job(job_id: str, run_id: str | None, data_dir: Path | None) -> dict[str, Any]:
    from temporalio.service import RPCError, RPCStatusCode

    from store.temporal import connect
    from store.vault import Vault

    settings = settings_of(data_dir)
    vault = Vault.load(_secret(settings), settings.key_file, settings.master_key_kms)
    try:
        client = await connect(settings, vault)
        handle = client.get_workflow_handle(job_id, run_id=run_id)
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise CommandError(
                f"Temporal has no workflow {job_id}",
                code=ExitCode.NOT_FOUND,
                hints=("closed workflows are kept for 30 days; use --file with an exported history",),
            ) from None
        raise _unreachable(settings) from None
    except RuntimeError:
        raise _unreachable(settings) from None
    return await _replay_history(history, settings)


def _unreachable(settings: Any) -> CommandError:
    return CommandError(
        f"Temporal at {settings.temporal_address} cannot be reached",
        code=ExitCode.UNREACHABLE,
        hints=("is the stack running? `headrace up`", "HEADRACE_TEMPORAL_ADDRESS names another server"),
    )


def settings_of(data_dir: Path | None) -> Any:
    """The environment's settings; the address of an embedded stack comes from its credentials file."""
    import json
    import os

    from commands.processes import load_settings

    directory = data_dir or default_data_dir()
    settings = load_settings().model_copy(update={"data_dir": directory})
    credentials = directory / "credentials.json"
    if "HEADRACE_TEMPORAL_ADDRESS" not in os.environ and credentials.is_file():
        try:
            address = json.loads(credentials.read_text())["temporal_address"]
        except (OSError, ValueError, KeyError, TypeError):
            say(f"{credentials} names no Temporal server; using {settings.temporal_address}")
        else:
            settings = settings.model_copy(update={"temporal_address": address})
    return settings


def _secret(settings: Any) -> str | None:
    return None if settings.master_key is None else str(settings.master_key.get_secret_value())


async def _replay_history(history: Any, settings: Any) -> dict[str, Any]:
    from temporalio.runtime import Runtime, TelemetryConfig
    from temporalio.worker import Replayer

    from store.temporal import data_converter
    from store.vault import Vault, VaultError
    from worker import WORKFLOWS

    try:
        vault = Vault.load(_secret(settings), settings.key_file, settings.master_key_kms)
    except (OSError, VaultError) as error:
        raise CommandError(
            f"no master key: {error}",
            code=ExitCode.USAGE,
            hints=("payloads are encrypted; point --data-dir or HEADRACE_MASTER_KEY_FILE at the stack's key",),
        ) from None
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=data_converter(vault),
        # The core would write its own log of a failure to stdout.
        runtime=Runtime(telemetry=TelemetryConfig(logging=None)),
    )
    failure = await _failure(replayer, history)
    return {
        "workflow_id": history.workflow_id,
        "events": len(history.events),
        "ok": failure is None,
        "event": None if failure is None else await _first_misfit(replayer, history),
        "failure": failure,
    }


async def _failure(replayer: "Replayer", history: "WorkflowHistory") -> str | None:
    """Why the history does not replay: the sentence inside of the core's dump, the dump where there is none."""
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    if result.replay_failure is None:
        return None
    dump = str(result.replay_failure)
    found = re.search(r'message: "((?:[^"\\]|\\.)+)"', dump)
    return found.group(1).replace('\\"', '"') if found else dump


async def _first_misfit(replayer: "Replayer", history: "WorkflowHistory") -> int:
    """The number of the event whose replay fails: the history up to the one before it replays. The core's message
    names it only sometimes, but every beginning of a history is a history."""
    from temporalio.client import WorkflowHistory

    fits, fails = 0, len(history.events)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if await _failure(replayer, WorkflowHistory(history.workflow_id, history.events[:middle])) is None:
            fits = middle
        else:
            fails = middle
    return int(history.events[fails - 1].event_id)
