"""`headrace vault`: the master key of what is sealed. For operators, on a machine that has the key and the database."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.database import open_database
from commands.exits import CommandError, ExitCode
from commands.options import AsJson
from commands.processes import load_settings
from commands.render import hint, moment, print_json, print_table, put, say
from commands.replay import settings_of

if TYPE_CHECKING:
    from settings import Settings
    from store.vault import Vault

app = typer.Typer(no_args_is_help=True, help="Rotate the master key, and see what still needs an old one.")

Directory = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The stack's data directory. Default: HEADRACE_DATA_DIR or ~/.headrace."),
]


@app.command("status")
def status(data_dir: Directory = None, as_json: AsJson = False) -> None:
    """Show how much each master key has sealed. One that nothing needs any more may be taken away."""
    settings = settings_of(data_dir)
    vault, _ = _open_vault(settings)
    rows = _status(settings, vault)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("KEY", "IS", "SEALED", "FINGERPRINTS", "ROTATED OUT", "HISTORIES"),
        (
            (
                row["key_id"],
                row["state"],
                str(sum(row["sealed"].values())),
                str(row["fingerprints"]),
                moment(row["retired_at"]) or "-",
                "-" if row["histories"] is None else str(row["histories"]),
            )
            for row in rows
        ),
    )
    _explain(rows)


@app.command("rotate")
def rotate(data_dir: Directory = None, as_json: AsJson = False) -> None:
    """Put a new master key before the others in its file, and seal everything in the database anew with it.

    Processes that run go on: they read the file again. An interrupted rotation is finished by the next one, without
    another key. Repeatable.
    """
    from store import reseal, retired_keys
    from store.vault import Vault, VaultError

    settings = settings_of(data_dir)
    vault, source = _open_vault(settings)
    with open_database(settings) as database:
        unfinished = any(use.sealed for use in database.run_read(lambda s: reseal.uses(s, vault))[1:])
        if unfinished:
            say(f"sealing with {vault.active_key_id} what older keys have sealed")
        else:
            try:
                say(f"the new master key is {source.add().id}")
                vault = Vault.of(source)
            except VaultError as error:
                raise CommandError(
                    f"no new master key: {error}",
                    code=ExitCode.USAGE,
                    hints=(
                        "put one before the others in HEADRACE_MASTER_KEY: `headrace vault new-key` makes one",
                        "then restart every API server and worker, and run this again",
                    ),
                ) from None
            except OSError as error:
                raise CommandError(
                    f"{settings.key_file} cannot be written: {error.strerror}", code=ExitCode.USAGE
                ) from None
        failed = _reseal(database, vault)
        from domain.clock import utc_now

        database.run_write(lambda session: retired_keys.keep(session, vault, utc_now()))
    rows = _status(settings, vault)
    if as_json:
        print_json(rows)
    else:
        _explain(rows)
    if failed:
        raise CommandError(
            f"{failed} values cannot be opened: their key is missing, or they were changed",
            code=ExitCode.SERVER_ERROR,
            hints=("they are as they were; put the missing key back, and run it again",),
        )


@app.command("new-key")
def new_key() -> None:
    """Print a new master key, for a setting or a file. Encrypted, when HEADRACE_MASTER_KEY_KMS is set."""
    from store.master_key import AwsKms, Plain, VaultError, generate, written

    kms_key = load_settings().master_key_kms
    try:
        put(written(generate(), Plain() if kms_key is None else AwsKms(kms_key)))
    except VaultError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from None


def _open_vault(settings: "Settings") -> "tuple[Vault, Any]":
    from store.stores import key_source
    from store.vault import Vault, VaultError

    source = key_source(settings)
    try:
        return Vault.of(source), source
    except (VaultError, OSError) as error:
        raise CommandError(f"no master key: {error}", code=ExitCode.USAGE) from None


def _reseal(database: Any, vault: "Vault") -> int:
    """Tells of each column once it is done; answers how many values could not be opened."""
    from store import reseal

    done: dict[str, reseal.Resealed] = dict(reseal.reseal(database, vault))
    for label, result in done.items():
        if result.sealed:
            say(f"{label}: {result.sealed} sealed anew")
    return sum(result.failed for result in done.values())


def _status(settings: "Settings", vault: "Vault") -> list[dict[str, Any]]:
    from api.encoding import timestamp
    from store import reseal, retired_keys

    with open_database(settings) as database:
        uses = database.run_read(lambda session: reseal.uses(session, vault))
        kept = database.run_read(retired_keys.kept)
        strangers = database.run_read(lambda session: reseal.unopenable(session, vault))
    rows: list[dict[str, Any]] = []
    histories = asyncio.run(_histories(settings, vault, kept))
    for use in uses:
        state = "active" if use.key_id == vault.active_key_id else "in use" if use.sealed else "not needed for rows"
        rows.append(
            {
                "key_id": use.key_id,
                "state": state,
                "sealed": use.sealed,
                "fingerprints": use.fingerprints,
                "retired_at": timestamp(kept.get(use.key_id)),
                "histories": histories.get(use.key_id),
            }
        )
    if strangers:
        missing = {"key_id": "?", "state": "missing", "sealed": {"unknown": strangers}}
        rows.append({**missing, "fingerprints": 0, "retired_at": None, "histories": None})
    return rows


async def _histories(settings: "Settings", vault: "Vault", kept: Mapping[str, datetime]) -> dict[str, int]:
    """How many workflows that Temporal has began before a key was rotated out: its payloads may be in their histories.
    Empty when Temporal cannot be reached."""
    from temporalio.service import RPCError

    from store.temporal import connect

    try:
        client = await connect(settings, vault)
        return {
            key_id: (await client.count_workflows(f'StartTime < "{retired_at.isoformat()}"')).count
            for key_id, retired_at in kept.items()
        }
    except (RuntimeError, RPCError):
        return {}


def _explain(rows: list[dict[str, Any]]) -> None:
    if any(row["state"] == "in use" for row in rows):
        hint("`headrace vault rotate` seals anew what older keys have sealed")
    if any(row["state"] == "missing" for row in rows):
        hint("`missing` was sealed with keys that are not configured: put them back")
    for row in rows:
        if row["state"] == "not needed for rows" and row["retired_at"]:
            if row["histories"] == 0:
                hint(f"{row['key_id']} can be taken away")
            else:
                left = "Temporal's histories" if row["histories"] is None else f"{row['histories']} histories"
                hint(f"keep {row['key_id']}: {left} may still need it; restart the workers once, lest more do")
