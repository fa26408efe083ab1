"""`headrace secret`: secrets of the organization. Values go in, and never come out."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.exits import CommandError, ExitCode
from commands.options import AsJson, DataDir, OnBehalfOf
from commands.render import hint, moment, print_json, print_record, print_table, put, say
from commands.secret_values import FromEnv, FromFile, FromStdin, read_values
from domain.clock import utc_now

app = typer.Typer(no_args_is_help=True, help="Secrets for jobs: create, list, get, rotate, delete.")

_ID = "sec_"

SecretArgument = Annotated[
    str, typer.Argument(metavar="SECRET", help="The secret's id, sec_..., or its name.", show_default=False)
]
ExpiresInDays = Annotated[
    float | None,
    typer.Option(
        "--expires-in-days",
        min=0.001,
        max=36_500,
        help="From then on no job is launched with it. By default never.",
        show_default=False,
    ),
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Unique in the organization.", show_default=False)],
    from_file: FromFile = None,
    from_env: FromEnv = None,
    from_stdin: FromStdin = None,
    expires_in_days: ExpiresInDays = None,
    data_dir: DataDir = None,
    on_behalf_of: OnBehalfOf = None,
    as_json: AsJson = False,
) -> None:
    """Store values under a name, and print the secret's id.

    headrace secret create hub --from-stdin HF_TOKEN < token.txt
    """
    body = {"name": name, **_values(from_file, from_env, from_stdin, expires_in_days)}
    with ApiClient(find_credentials(data_dir), on_behalf_of=on_behalf_of) as client:
        made = client.post("/secrets", body)
    if as_json:
        print_json(made)
        return
    put(made["id"])
    key = made["keys"][0]
    hint(f"use it in a job: headrace job submit ... --secret-env {key}={name}:{key}")


@app.command("list")
def list_secrets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the organization's secrets, the oldest first."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages("/secrets"))
    if as_json:
        print_json(found)
        return
    rows = (
        (s["id"], s["name"], str(s["version"]), ", ".join(s["keys"]), moment(s["updated_at"]) or "-", _expiry(s))
        for s in found
    )
    print_table(("SECRET", "NAME", "VERSION", "KEYS", "UPDATED", "EXPIRES"), rows)


@app.command("get")
def get(secret: SecretArgument, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what there is to know of a secret but its values."""
    with ApiClient(find_credentials(data_dir)) as client:
        _show(client.get(f"/secrets/{secret_id(client, secret)}"), as_json)


@app.command("rotate")
def rotate(
    secret: SecretArgument,
    from_file: FromFile = None,
    from_env: FromEnv = None,
    from_stdin: FromStdin = None,
    expires_in_days: ExpiresInDays = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replace all values of a secret. Jobs that run keep what they started with."""
    body = _values(from_file, from_env, from_stdin, expires_in_days)
    with ApiClient(find_credentials(data_dir)) as client:
        _show(client.post(f"/secrets/{secret_id(client, secret)}/rotate", body), as_json)


@app.command("delete")
def delete(secret: SecretArgument, data_dir: DataDir = None) -> None:
    """Forget a secret and its values. It is refused while a live job uses it."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = secret_id(client, secret)
        client.delete(f"/secrets/{found}")
    say(f"deleted {found}")


def secret_id(client: ApiClient, named: str) -> str:
    """The id of the secret with this id or name.

    Raises:
        CommandError: the organization has none of that name.
    """
    if named.startswith(_ID):
        return path_part(named, "secret")
    found = next((entry["id"] for entry in client.pages("/secrets") if entry["name"] == named), None)
    if found is None:
        raise CommandError(
            f"there is no secret {named!r}", code=ExitCode.NOT_FOUND, hints=("headrace secret list shows them",)
        )
    return str(found)


def with_ids(client: ApiClient, body: dict[str, Any]) -> dict[str, Any]:
    """A create request whose secrets may be named, in the form that the API takes."""
    container = body.get("container")
    if not isinstance(container, dict):
        return body
    container = dict(container)
    pull = container.get("image_pull_secret")
    if isinstance(pull, str):
        container["image_pull_secret"] = secret_id(client, pull)
    env = container.get("secret_env")
    if isinstance(env, dict):
        container["secret_env"] = {name: _with_id(client, reference) for name, reference in env.items()}
    return {**body, "container": container}


def _with_id(client: ApiClient, reference: Any) -> Any:
    if not isinstance(reference, dict) or not isinstance(reference.get("secret_id"), str):
        return reference
    return {**reference, "secret_id": secret_id(client, reference["secret_id"])}


def _values(
    files: list[str] | None, variables: list[str] | None, stdin: str | None, expires_in_days: float | None
) -> dict[str, Any]:
    body: dict[str, Any] = {"data": read_values(files, variables, stdin)}
    if expires_in_days is not None:
        body["expires_at"] = (utc_now() + timedelta(days=expires_in_days)).isoformat()
    return body


def _show(secret: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(secret)
        return
    print_record(
        [
            ("secret", secret["id"]),
            ("name", secret["name"]),
            ("version", str(secret["version"])),
            ("keys", ", ".join(secret["keys"])),
            ("created", moment(secret["created_at"])),
            ("updated", moment(secret["updated_at"])),
            ("expires", _expiry(secret)),
        ]
    )


def _expiry(secret: dict[str, Any]) -> str:
    return moment(secret["expires_at"]) or "never"
