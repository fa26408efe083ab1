"""`headrace backend`: the accounts at providers that jobs may be run with."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.exits import CommandError, ExitCode
from commands.fleet import print_hosts
from commands.job_file import usage
from commands.options import AsJson, DataDir
from commands.render import hint, moment, print_json, print_record, print_table, say
from commands.secret_values import FromEnv, FromFile, FromStdin, read_values

app = typer.Typer(no_args_is_help=True, help="Backends: forms, connect, list, get, edit, verify, remove.")

_PATH = "/api/compute/cloud/backends"

BackendId = Annotated[str, typer.Argument(metavar="CONNECTION", help="Its id, conn_...", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="A field that is not secret. Repeatable.", show_default=False),
]
DisplayName = Annotated[str | None, typer.Option("--name", help="For people.", show_default=False)]


@app.command("forms")
def forms(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List what can be connected, and what each backend asks for."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = client.get(f"{_PATH}/catalog")["data"]
    if as_json:
        print_json(found)
        return
    print_table(
        ("PROVIDER", "TITLE", "AVAILABLE", "FIELDS"),
        (
            (
                form["provider"],
                form["title"],
                "yes" if form["available"] else "not yet",
                ", ".join(f["name"] if f["required"] else f"[{f['name']}]" for f in form["fields"]),
            )
            for form in found
        ),
    )


@app.command("connect")
def connect(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="Such as runpod.", show_default=False)],
    setting: Set = None,
    from_file: FromFile = None,
    from_env: FromEnv = None,
    from_stdin: FromStdin = None,
    name: DisplayName = None,
    project: Annotated[
        str | None, typer.Option("--project", help="For this project's jobs only.", show_default=False)
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="For all organizations.")] = False,
    org: Annotated[
        str | None, typer.Option("--org", help="Another organization, for a cluster admin.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Connect a backend, once its provider accepted the credentials."""
    with ApiClient(find_credentials(data_dir)) as client:
        fields = _fields(client, provider, setting, read_values(from_file, from_env, from_stdin))
        body = {"provider": provider, "fields": fields, "name": name, "project": project, "cluster": cluster}
        given = {key: value for key, value in body.items() if value is not None}
        made = client.post(_PATH if org is None else f"{_PATH}?org_id={path_part(org, 'organization')}", given)
    _show(made, as_json=as_json)


@app.command("list")
def list_backends(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the connected backends, their health, and what they cost now."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages(_PATH))
    if as_json:
        print_json(found)
        return
    print_table(
        ("CONNECTION", "PROVIDER", "NAME", "FOR", "STATE", "HEALTH", "LIVE", "USD/H"),
        (
            (
                row["id"],
                row["provider"],
                row["name"],
                _whose(row),
                row["state"],
                row["health"]["status"],
                str(row["live_instances"]),
                str(row["hourly_cost_usd"]),
            )
            for row in found
        ),
    )


@app.command("get")
def get(backend_id: BackendId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show one, without its credentials."""
    with ApiClient(find_credentials(data_dir)) as client:
        _show(client.get(_path(backend_id)), as_json=as_json)


@app.command("edit")
def edit(
    backend_id: BackendId,
    setting: Set = None,
    from_file: FromFile = None,
    from_env: FromEnv = None,
    from_stdin: FromStdin = None,
    name: DisplayName = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change what is given; fields are used once the provider accepted them, and all stays as it was if it does not."""
    with ApiClient(find_credentials(data_dir)) as client:
        body: dict[str, Any] = {} if name is None else {"name": name}
        if setting or from_file or from_env or from_stdin:
            secrets = read_values(from_file, from_env, from_stdin) if from_file or from_env or from_stdin else {}
            provider = client.get(_path(backend_id))["provider"]
            body["fields"] = _fields(client, provider, setting, secrets)
        if not body:
            raise usage("nothing is to be changed", "use --name, --set, --from-file, --from-env or --from-stdin")
        _show(client.put(_path(backend_id), body), as_json=as_json)


@app.command("verify")
def verify(backend_id: BackendId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Ask the provider whether it accepts the credentials in use."""
    with ApiClient(find_credentials(data_dir)) as client:
        row = client.post(f"{_path(backend_id)}/verify")
    _show(row, as_json=as_json)
    verification = row["verification"]
    if not verification["pending"] and verification["status"] != "ok":
        message = f"{row['title']} did not accept it ({verification['status']}): {verification['message']}"
        raise CommandError(message, code=ExitCode.USAGE)


@app.command("remove")
def remove(
    backend_id: BackendId,
    force: Annotated[bool, typer.Option("--terminate-jobs", help="End the jobs that run on it first.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Disconnect a backend; refused while instances are live on it, unless their jobs are to be ended."""
    with ApiClient(find_credentials(data_dir)) as client:
        client.delete(_path(backend_id) + ("?force=terminate" if force else ""))
    say(f"removed {backend_id}")
    if force:
        hint("machines that were live on it are given back first; `headrace backend list` shows it until then")


def _fields(client: ApiClient, provider: str, setting: list[str] | None, secrets: Mapping[str, str]) -> dict[str, Any]:
    """What was given, as the form has it: booleans and lists are written as text in a shell.

    Raises:
        CommandError: a secret was given as an argument, which every process could read.
    """
    known = {form["provider"]: form for form in client.get(f"{_PATH}/catalog")["data"]}
    form = {field["name"]: field for field in known.get(provider, {"fields": []})["fields"]}
    fields: dict[str, Any] = dict(secrets)
    for entry in setting or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise usage("--set wants FIELD=VALUE")
        field = form.get(name, {"secret": False, "kind": "text"})
        if field["secret"]:
            raise usage(
                f"{name} is secret and never an argument", f"use --from-stdin {name}, --from-file or --from-env"
            )
        fields[name] = _value(name, field["kind"], value)
    return fields


def _value(name: str, kind: str, text: str) -> Any:
    if kind in {"list", "records"}:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "boolean":
        if text not in {"true", "false"}:
            raise usage(f"{name} is true or false")
        return text == "true"
    return text


def _path(backend_id: str) -> str:
    return f"{_PATH}/{path_part(backend_id, 'connection')}"


def _whose(row: Mapping[str, Any]) -> str:
    return str(row["project"] or (row["org_id"] if row["scope"] == "organization" else row["scope"]))


def _show(row: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    verification, health = row["verification"], row["health"]
    print_record(
        [
            ("connection", row["id"]),
            ("provider", row["title"]),
            ("name", row["name"]),
            ("for", _whose(row)),
            ("state", row["state"]),
            ("fields", ", ".join(f"{name}={value}" for name, value in (row["fields"] or {}).items()) or "-"),
            ("verified", f"{verification['status'] or '-'} {moment(verification['at']) or ''}".strip()),
            ("said", verification["message"] or "-"),
            ("health", f"{health['status']}, {health['offer_count']} offers"),
            ("live instances", str(row["live_instances"])),
            ("usd/h", str(row["hourly_cost_usd"])),
        ]
    )
    print_hosts(verification["hosts"] or ())
