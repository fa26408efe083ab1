"""`headrace usage`: what jobs cost within a window."""

import re
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials
from commands.options import AsJson, DataDir
from commands.render import amount, duration, hint, print_json, print_table, say

_COLUMNS = ("JOB", "NAME", "BILLED", "COST")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def usage(
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Inclusive: 2026-07-01 (UTC) or 2026-07-01T09:30:00Z. By default 30 days before --to.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="Exclusive. By default the current minute.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many jobs to show.")] = 50,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what jobs cost within a window, the newest first, and what all of them cost together."""
    query = {name: _moment(text) for name, text in (("from", from_), ("to", to)) if text is not None}
    with ApiClient(find_credentials(data_dir)) as client:
        report = client.get("/usage", {**query, "limit": min(limit, 200)})
        rows, cursor = list(report["data"]), report["next_cursor"]
        while cursor is not None and len(rows) < limit:
            page = client.get("/usage", {**query, "limit": min(limit - len(rows), 200), "cursor": cursor})
            rows, cursor = [*rows, *page["data"]], page["next_cursor"]
    if as_json:
        print_json({**report, "data": rows, "next_cursor": None})
        return
    print_table(_COLUMNS, map(_row, rows))
    window, total = report["window"], amount(report["summary"]["total_usd"])
    say(f"{report['total']} jobs, {total} from {window['from']} to {window['to']}")
    if cursor is not None:
        hint(f"{report['total'] - len(rows)} more: --limit {report['total']} shows all")


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        entry["resource_id"],
        entry["name"] or "-",
        duration(entry["billable_seconds"]),
        amount(entry["accrued_usd"]) or "-",
    )


def _moment(text: str) -> str:
    """A day is its first moment in UTC; anything else is the API's to judge."""
    return f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text
