"""What people and machines see: data to stdout, progress and hints to stderr, nothing that needs colour to be read."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commands.exits import CommandError

# Everything a terminal may act upon, but tab; colour sequences are let through where `colour` says so.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_CONTROL_BUT_COLOUR = re.compile(r"\x1b(?!\[[0-9;]{0,32}m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]")

_WIDEST_TABLE = 100_000


def harmless(text: str, *, colour: bool = False) -> str:
    """`text` without what would move the cursor, set the title or clear the screen of whoever reads it."""
    return (_CONTROL_BUT_COLOUR if colour else _CONTROL).sub("\ufffd", text)


def say(message: str) -> None:
    """One line of progress, for people."""
    Console(stderr=True, highlight=False).print(Text(harmless(message)), soft_wrap=True)


def hint(message: str) -> None:
    """What to do next, for people."""
    say(f"hint: {message}")


def report(error: CommandError) -> None:
    """An error and its hints, each on a line of its own."""
    say(f"error: {error.message}")
    for line in error.excerpt:
        say(f"  | {line}")
    for line in error.hints:
        hint(line)


def put(text: str) -> None:
    """Data to stdout, there at once. When its reader has gone (`| head`) the command ends as SIGPIPE would end it."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and there is nobody to tell of that failure either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def print_json(value: Any) -> None:
    """One JSON document, indented for a terminal, on one line for a pipe."""
    put(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns that are wide enough for what is in them: nothing is cut, a narrow terminal wraps the lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    console = Console(width=_WIDEST_TABLE, highlight=False)
    with console.capture() as captured:
        console.print(table)
    put("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_record(fields: Iterable[tuple[str, str | None]]) -> None:
    """Name and value, a line each; what is None is left out."""
    shown = [(name, value) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        put(f"{name.ljust(width)}  {harmless(value)}")


def moment(text: str | None) -> str | None:
    """A time of the API, to the second, in UTC."""
    parsed = parse_time(text)
    return None if parsed is None else parsed.strftime("%Y-%m-%d %H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """A time of the API; None where it gives none."""
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def duration(seconds: float) -> str:
    """`0.4 s`, `12.0 s`, `3 min 5 s`, `2 h 7 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // below} {below_name}"
    raise AssertionError(seconds)


def between(start: str | None, end: str | None) -> str | None:
    """The time between two times of the API; None unless both are there."""
    first, last = parse_time(start), parse_time(end)
    return None if first is None or last is None else duration(max(0.0, (last - first).total_seconds()))


def amount(value: Any) -> str | None:
    """US dollars as the API states them, with cents; a rate keeps all its digits."""
    if value is None:
        return None
    exact = Decimal(str(value))
    return f"{exact if exact != round(exact, 2) else round(exact, 2)} USD"


def hardware(job: Mapping[str, Any]) -> str:
    """The hardware that a job got, else what it asked for."""
    got = job.get("hardware") or {}
    wanted = job.get("compute") or {}
    count = got.get("gpu_count", wanted.get("gpu_count", 0))
    name = str(got.get("accelerator") or wanted.get("accelerator") or "?")
    if count:
        name = f"{count} x {name}"
    elif wanted.get("vcpu_count"):
        name = f"{name}, {wanted['vcpu_count']} vCPU"
    if (wanted.get("instance_count") or 1) > 1:
        name = f"{wanted['instance_count']} instances of {name}"
    return name


def reason(job: Mapping[str, Any]) -> str | None:
    """Why a job ended, or is ending: the sentence and its code."""
    found = job.get("reason")
    return None if not found else f"{found.get('message') or found['code']} ({found['code']})"


def job_record(job: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The fields of a job in the order in which people ask for them."""
    exit_code = job.get("exit_code")
    rate = job.get("current_price_usd_hr") or job.get("price_usd_hr")
    limits = job.get("limits") or {}
    return [
        ("job", job["id"]),
        ("name", job.get("name")),
        ("state", job["state"]),
        ("reason", reason(job)),
        ("exit code", None if exit_code is None else str(exit_code)),
        ("hardware", hardware(job)),
        ("provider", job.get("provider")),
        ("created", moment(job.get("created_at"))),
        ("allocated", moment(job.get("allocated_at"))),
        ("started", moment(job.get("started_at"))),
        ("ended", moment(job.get("terminal_at"))),
        ("run time", between(job.get("started_at"), job.get("terminal_at"))),
        ("price", None if rate is None else f"{amount(rate)} per hour"),
        ("spend", amount(job.get("accrued_usd"))),
        ("cost limit", amount(limits.get("max_cost_usd"))),
        ("time limit", None if limits.get("max_runtime_hours") is None else f"{limits['max_runtime_hours']} h"),
        *(
            (f"port {endpoint['name']}", endpoint.get("url") or f"{endpoint['host']}:{endpoint['port']}")
            for endpoint in job.get("endpoints") or ()
        ),
        ("ssh", (job.get("ssh") or {}).get("command")),
    ]


def show_job(job: Mapping[str, Any], *, as_json: bool) -> None:
    """A job, for people or machines."""
    if as_json:
        print_json(job)
    else:
        print_record(job_record(job))


def print_log_lines(lines: Iterable[Mapping[str, Any]], *, timestamps: bool = False, as_json: bool = False) -> None:
    """Lines of a log to stdout, each as soon as it is there. Only a terminal is protected from control characters."""
    terminal = sys.stdout.isatty()
    for line in lines:
        if as_json:
            put(json.dumps(line, ensure_ascii=False))
            continue
        text = harmless(line["message"], colour=True) if terminal else line["message"]
        before = f"{line['timestamp']} " if timestamps else ""
        put(before + ("[system] " if line["source"] == "system" else "") + text)
