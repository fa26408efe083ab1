"""`headrace project`: what keys, budgets and jobs can belong to inside an organization."""

from typing import Annotated

import typer

from commands.client import ADMIN, ApiClient, find_credentials
from commands.options import AsJson, DataDir, OfOrganization
from commands.org import org_id
from commands.render import moment, print_json, print_record, print_table

app = typer.Typer(no_args_is_help=True, help="Projects of an organization.")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Unique in the organization.", show_default=False)],
    org: OfOrganization = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a project."""
    with ApiClient(find_credentials(data_dir)) as client:
        of = {} if org is None else {"org_id": org_id(client, org)}
        made = client.post(f"{ADMIN}/projects", {"name": name, **of})
    if as_json:
        print_json(made)
    else:
        print_record([("project", made["id"]), ("name", made["name"]), ("organization", made["org_id"])])


@app.command("list")
def list_projects(org: OfOrganization = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List projects by name."""
    with ApiClient(find_credentials(data_dir)) as client:
        of = {} if org is None else {"org_id": org_id(client, org)}
        found = list(client.pages(f"{ADMIN}/projects", {"limit": 200, **of}))
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "PROJECT", "ORGANIZATION", "CREATED"),
        ((p["name"], p["id"], p["org_id"], moment(p["created_at"]) or "-") for p in found),
    )
