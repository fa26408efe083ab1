"""`headrace orphans`: machines with our owner id that no row explains."""

from typing import Annotated

import typer

from commands.client import ADMIN, ApiClient, find_credentials
from commands.options import AsJson, DataDir
from commands.render import hint, moment, print_json, print_table, say


def orphans(
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm", help="This database is the one, and no copy of it: delete again, also what it lacks."
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List machines that carry this installation's id and that its database does not know."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = client.post(f"{ADMIN}/orphans/confirm") if confirm else client.get(f"{ADMIN}/orphans")
    if as_json:
        print_json(found)
        return
    print_table(
        ("CONNECTION", "MACHINE", "FIRST SEEN"),
        ((row["connection_id"], row["provider_id"], moment(row["first_seen_at"]) or "-") for row in found["data"]),
    )
    if confirm:
        say("confirmed: what was withheld goes on, and each reconciliation deletes what this database does not know")
    elif found["fenced"]:
        say("this database may be a copy or a backup: nothing is deleted at providers, and machines are only listed")
        hint("`headrace orphans --confirm` says that it is the one; first stop whatever it was copied from")
