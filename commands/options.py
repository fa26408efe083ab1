"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The stack's data directory, whose credentials.json is used. Default: HEADRACE_DATA_DIR or ~/.headrace.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for machines.")]
OnBehalfOf = Annotated[
    str | None,
    typer.Option("--on-behalf-of", help="The end user for whom this is done (X-On-Behalf-Of).", show_default=False),
]
OfOrganization = Annotated[
    str | None,
    typer.Option(
        "--org",
        help="The organization's id or name; by default the key's own, and in lists all that it administrates.",
        show_default=False,
    ),
]
