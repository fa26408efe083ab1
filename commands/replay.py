"""`headrace replay`: a finished or running job's history, run again through the workflow code of this version."""

import asyncio
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.client import default_data_dir
from commands.exits import CommandError, ExitCode
from commands.options import AsJson
from commands.render import hint, print_json, put, say


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
        outcome = asyncio.run(_replay_history(_read_history(file), _settings(data_dir)))
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


def _read_history(file: Path) -> Any:
    from google.protobuf.json_format import ParseError
    from temporalio.client import WorkflowHistory

    try:
        return WorkflowHistory.from_json(file.stem, file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {type(error).__name__}", code=ExitCode.USAGE) from None
    except (ValueError, TypeError, KeyError, AttributeError, ParseError) as error:
        raise CommandError(f"{file} is not an exported history: {error}", code=ExitCode.USAGE) from None


async def _replay_job(job_id: str, run_id: str | None, data_dir: Path | None) -> dict[str, Any]:
    from temporalio.service import RPCError, RPCStatusCode

    from store.temporal import connect
    from store.vault import Vault

    settings = _settings(data_dir)
    vault = Vault.load(_secret(settings), settings.key_file)
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


def _settings(data_dir: Path | None) -> Any:
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
    from temporalio.worker import Replayer

    from store.temporal import data_converter
    from store.vault import Vault, VaultError
    from worker import WORKFLOWS

    try:
        vault = Vault.load(_secret(settings), settings.key_file)
    except (OSError, VaultError) as error:
        raise CommandError(
            f"no master key: {error}",
            code=ExitCode.USAGE,
            hints=("payloads are encrypted; point --data-dir or HEADRACE_MASTER_KEY_FILE at the stack's key",),
        ) from None
    result = await Replayer(workflows=WORKFLOWS, data_converter=data_converter(vault)).replay_workflow(
        history, raise_on_replay_failure=False
    )
    failure = result.replay_failure
    message = None if failure is None else str(failure)
    number = re.search(r"event[ _]?(?:id)?\D{0,12}(\d+)", message or "", re.IGNORECASE)
    return {
        "workflow_id": history.workflow_id,
        "events": len(history.events),
        "ok": failure is None,
        "event": int(number.group(1)) if number else None,
        "failure": message,
    }
