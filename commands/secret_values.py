"""Values of secrets from files, variables and standard input: never from an argument, which every process can read."""

import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from commands.job_file import usage

FromFile = Annotated[
    list[str] | None,
    typer.Option(
        "--from-file",
        metavar="KEY=PATH",
        help="The text of a file; one of a single line loses its line end. Repeatable.",
        show_default=False,
    ),
]
FromEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--from-env",
        metavar="KEY=VARIABLE",
        help="The value of a variable of this shell. Repeatable.",
        show_default=False,
    ),
]
FromStdin = Annotated[
    str | None,
    typer.Option(
        "--from-stdin",
        metavar="KEY",
        help="Standard input, without its last line end; on a terminal it is asked for, and not shown.",
        show_default=False,
    ),
]


def read_values(files: Sequence[str] | None, variables: Sequence[str] | None, stdin: str | None) -> dict[str, str]:
    """The values by their keys.

    Raises:
        CommandError: none was given, one cannot be read, or a key is there twice. No value is part of it.
    """
    values: dict[str, str] = {}

    def put(key: str, value: str) -> None:
        if key in values:
            raise usage(f"the key {key} is there twice")
        values[key] = value

    for key, path in _pairs(files, "--from-file", "KEY=PATH"):
        put(key, _file(Path(path)))
    for key, name in _pairs(variables, "--from-env", "KEY=VARIABLE"):
        if name not in os.environ:
            raise usage("--from-env names a variable that is not set", "export it, or use --from-stdin")
        put(key, os.environ[name])
    if stdin is not None:
        put(stdin, _stdin(stdin))
    if not values:
        raise usage("no values were given", "use --from-file KEY=PATH, --from-env KEY=VARIABLE or --from-stdin KEY")
    return values


def _pairs(given: Sequence[str] | None, flag: str, form: str) -> list[tuple[str, str]]:
    pairs = []
    for entry in given or ():
        key, equals, source = entry.partition("=")
        if not key or not equals or not source:
            # Nothing of it is repeated: it may be the secret itself.
            raise usage(f"{flag} wants {form}; a value is never an argument")
        pairs.append((key, source))
    return pairs


def _file(path: Path) -> str:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise usage(f"{path} is not UTF-8", "encode it first, for example with base64") from None
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}") from None
    return text.removesuffix("\n").removesuffix("\r") if text.count("\n") == 1 else text


def _stdin(key: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"{key}: ")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise usage("standard input is not UTF-8", "encode it first, for example with base64") from None
