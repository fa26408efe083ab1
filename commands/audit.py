"""`headrace audit`: who did what, for people and for archives."""

import csv
import io
import json
from typing import Annotated, Any

import typer

from commands.client import ADMIN, ApiClient, find_credentials
from commands.exits import CommandError, ExitCode
from commands.options import AsJson, DataDir, OfOrganization
from commands.org import org_id
from commands.render import moment, print_json, print_table, put

app = typer.Typer(no_args_is_help=True, help="The audit log.")

_COLUMNS = (
    "id",
    "timestamp",
    "org_id",
    "key_id",
    "owner",
    "role",
    "on_behalf_of",
    "action",
    "resource",
    "request_id",
    "data",
)
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Action = Annotated[str | None, typer.Option("--action", help="Only this one, such as job.create.", show_default=False)]
Resource = Annotated[
    str | None, typer.Option("--resource", help="Only on the resource with this id.", show_default=False)
]
Since = Annotated[
    str | None, typer.Option("--since", help="From this time on, 2027-01-31T12:00:00Z.", show_default=False)
]
Until = Annotated[str | None, typer.Option("--until", help="Before this time.", show_default=False)]


@app.command("list")
def list_entries(
    action: Action = None,
    resource: Resource = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to show at most.")] = 50,
    org: OfOrganization = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show who did what, the newest first."""
    with ApiClient(find_credentials(data_dir)) as client:
        wanted = _wanted(client, action, resource, since, until, org)
        found = list(client.pages(f"{ADMIN}/audit", wanted, limit=limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ("TIME", "OWNER", "FOR", "ACTION", "RESOURCE", "KEY", "DETAILS"),
        (
            (
                moment(entry["timestamp"]) or "-",
                entry["owner"],
                entry["on_behalf_of"] or "-",
                entry["action"],
                entry["resource"],
                entry["key_id"],
                ", ".join(f"{name}={value}" for name, value in entry["data"].items()),
            )
            for entry in found
        ),
    )


@app.command("export")
def export(
    form: Annotated[str, typer.Option("--format", help="jsonl (one document a line) or csv.")] = "jsonl",
    action: Action = None,
    resource: Resource = None,
    since: Since = None,
    until: Until = None,
    org: OfOrganization = None,
    data_dir: DataDir = None,
) -> None:
    """Write the audit log to stdout, the oldest first."""
    if form not in {"jsonl", "csv"}:
        raise CommandError(f"--format is {form!r}, and must be jsonl or csv", code=ExitCode.USAGE)
    with ApiClient(find_credentials(data_dir)) as client:
        wanted = {**_wanted(client, action, resource, since, until, org), "order": "asc", "limit": 1000}
        if form == "csv":
            put(_row(_COLUMNS))
        for entry in client.pages(f"{ADMIN}/audit", wanted):
            put(json.dumps(entry, ensure_ascii=False) if form == "jsonl" else _row([_cell(entry[c]) for c in _COLUMNS]))


def _wanted(
    client: ApiClient,
    action: str | None,
    resource: str | None,
    since: str | None,
    until: str | None,
    org: str | None,
) -> dict[str, Any]:
    of = None if org is None else org_id(client, org)
    return {"action": action, "resource": resource, "since": since, "until": until, "org_id": of}


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _row(cells: Any) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
