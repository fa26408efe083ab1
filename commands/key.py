"""`headrace key`: API keys. A token is shown once, when its key is made."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from commands.client import ADMIN, ApiClient, find_credentials, path_part
from commands.options import AsJson, DataDir, OfOrganization
from commands.org import org_id
from commands.render import hint, moment, print_json, print_record, print_table, put, say
from domain.clock import utc_now

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, revoke.")


@app.command("create")
def create(
    owner: Annotated[str, typer.Option("--owner", help="Whom its requests are from.", show_default=False)],
    role: Annotated[str, typer.Option("--role", help="viewer, member, org_admin or cluster_admin.")] = "member",
    name: Annotated[str | None, typer.Option("--name", help="For people.", show_default=False)] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="It reaches this project only.", show_default=False)
    ] = None,
    expires_in_days: Annotated[
        float | None,
        typer.Option("--expires-in-days", min=0.001, max=36_500, help="By default never.", show_default=False),
    ] = None,
    org: OfOrganization = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print its token to stdout, alone. It is never shown again."""
    body: dict[str, Any] = {"owner": owner, "role": role, "name": name, "project": project}
    if expires_in_days is not None:
        body["expires_at"] = (utc_now() + timedelta(days=expires_in_days)).isoformat()
    with ApiClient(find_credentials(data_dir)) as client:
        if org is not None:
            body["org_id"] = org_id(client, org)
        made = client.post(f"{ADMIN}/keys", body)
    if as_json:
        print_json(made)
        return
    put(made["token"])
    say(f"key {made['id']} of {made['owner']}, {made['role']} in {made['org_id']}")
    hint("it is not shown again; give it as HEADRACE_API_KEY, with the server's address as HEADRACE_API_URL")


@app.command("list")
def list_keys(
    owner: Annotated[str | None, typer.Option("--owner", help="Only this owner's.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that were revoked or have expired, too.")] = False,
    org: OfOrganization = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List keys, the newest first, without their tokens."""
    wanted: dict[str, Any] = {"limit": 200, "owner": owner, **({} if everything else {"active": "true"})}
    with ApiClient(find_credentials(data_dir)) as client:
        if org is not None:
            wanted["org_id"] = org_id(client, org)
        found = list(client.pages(f"{ADMIN}/keys", wanted))
    if as_json:
        print_json(found)
        return
    print_table(
        ("KEY", "OWNER", "NAME", "ROLE", "ORGANIZATION", "PROJECT", "CREATED", "LAST USED", "ENDS"),
        (
            (
                key["id"],
                key["owner"],
                key["name"] or "-",
                key["role"],
                key["org_id"],
                key["project"] or "all",
                moment(key["created_at"]) or "-",
                moment(key["last_used_at"]) or "never",
                f"revoked {moment(key['revoked_at'])}" if key["revoked_at"] else moment(key["expires_at"]) or "-",
            )
            for key in found
        ),
    )


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, key_...", show_default=False)],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: every server refuses it from now on. To repeat this changes nothing."""
    with ApiClient(find_credentials(data_dir)) as client:
        key = client.post(f"{ADMIN}/keys/{path_part(key_id, 'key')}/revoke")
    if as_json:
        print_json(key)
    else:
        print_record([("key", key["id"]), ("owner", key["owner"]), ("revoked", moment(key["revoked_at"]))])
