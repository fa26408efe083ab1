"""`headrace org`: organizations, whether they may spend, and how much of theirs may live at once."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from commands.client import ADMIN, ApiClient, find_credentials, path_part
from commands.exits import CommandError, ExitCode
from commands.options import AsJson, DataDir
from commands.render import hint, moment, print_json, print_record, print_table

app = typer.Typer(no_args_is_help=True, help="Organizations: create, enable, cap.")
tenant = typer.Typer(no_args_is_help=True, help="The same as `org`, by the API's word for it.")

UNLIMITED = "unlimited"

Organization = Annotated[str, typer.Argument(metavar="ORG", help="The id or the name.", show_default=False)]
Jobs = Annotated[
    str | None,
    typer.Option("--max-live-jobs", help="Live jobs at once: a number, or `unlimited`.", show_default=False),
]
Services = Annotated[str | None, typer.Option("--max-live-services", help="The same for services.", show_default=False)]
Replicas = Annotated[
    str | None,
    typer.Option("--max-live-service-replicas", help="The same for replicas of services.", show_default=False),
]
Volumes = Annotated[str | None, typer.Option("--max-live-volumes", help="The same for volumes.", show_default=False)]
Zone = Annotated[
    str | None,
    typer.Option("--time-zone", help="IANA name, such as Europe/Berlin: whose months budgets go by.",
                 show_default=False),
]  # fmt: skip
Anonymity = Annotated[
    str | None,
    typer.Option("--provider-anonymity", help="on: its keys are not told the providers; or off.", show_default=False),
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Unique.", show_default=False)],
    enabled: Annotated[bool, typer.Option("--enabled", help="It may create jobs at once.")] = False,
    max_live_jobs: Jobs = None,
    max_live_services: Services = None,
    max_live_service_replicas: Replicas = None,
    max_live_volumes: Volumes = None,
    time_zone: Zone = None,
    provider_anonymity: Anonymity = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create an organization. It may do nothing until it is enabled, and has no key yet."""
    body = _settings(
        max_live_jobs, max_live_services, max_live_service_replicas, max_live_volumes, time_zone, provider_anonymity
    )
    with ApiClient(find_credentials(data_dir)) as client:
        made = client.post(f"{ADMIN}/organizations", {**body, "name": name, "enabled": enabled})
    _show(made, as_json=as_json)
    if not as_json:
        hint(f"make it a key: headrace key create --org {made['org_id']} --owner NAME --role org_admin")


@app.command("list")
@tenant.command("list")
def list_organizations(
    only: Annotated[str | None, typer.Option("--only", help="enabled or disabled.", show_default=False)] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the organizations that the key administrates."""
    if only not in {None, "enabled", "disabled"}:
        raise CommandError(f"--only is {only!r}, and must be enabled or disabled", code=ExitCode.USAGE)
    wanted = {"limit": 200, **({} if only is None else {"enabled": str(only == "enabled").lower()})}
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages(f"{ADMIN}/organizations", wanted))
    if as_json:
        print_json(found)
        return
    print_table(
        ("ORGANIZATION", "NAME", "ENABLED", "LIVE JOBS", "CREATED"),
        (
            (
                organization["org_id"],
                organization["name"],
                "yes" if organization["enabled"] else "no",
                _cap(organization["max_live_jobs"]),
                moment(organization["created_at"]) or "-",
            )
            for organization in found
        ),
    )


@app.command("get")
@tenant.command("get")
def get(organization: Organization, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show an organization: whether it is enabled, its caps and settings."""
    with ApiClient(find_credentials(data_dir)) as client:
        _show(_found(client, organization), as_json=as_json)


@app.command("enable")
def enable(organization: Organization, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let an organization create jobs, rotate secrets and quote."""
    _put(organization, {"enabled": True}, data_dir, as_json)


@app.command("disable")
def disable(organization: Organization, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let it create nothing any more, at once. What runs goes on; it can still read, terminate and delete."""
    _put(organization, {"enabled": False}, data_dir, as_json)


@app.command("set")
@tenant.command("set")
def set_(
    organization: Organization,
    name: Annotated[str | None, typer.Option("--name", help="A new name.", show_default=False)] = None,
    max_live_jobs: Jobs = None,
    max_live_services: Services = None,
    max_live_service_replicas: Replicas = None,
    max_live_volumes: Volumes = None,
    time_zone: Zone = None,
    provider_anonymity: Anonymity = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change what is named; the rest stays as it is."""
    changes = _settings(
        max_live_jobs, max_live_services, max_live_service_replicas, max_live_volumes, time_zone, provider_anonymity
    )
    _put(organization, {**changes, **({} if name is None else {"name": name})}, data_dir, as_json)


def org_id(client: ApiClient, organization: str) -> str:
    """The id of an organization that is named by its name or its id.

    Raises:
        CommandError: the key administrates none such.
    """
    return str(_found(client, organization)["org_id"])


def _found(client: ApiClient, organization: str) -> dict[str, Any]:
    path_part(organization, "organization")
    by_name: list[dict[str, Any]] = client.get(f"{ADMIN}/organizations", {"name": organization})["data"]
    return by_name[0] if by_name else client.get(f"{ADMIN}/organizations/{organization}")


def _put(organization: str, changes: Mapping[str, Any], data_dir: Any, as_json: bool) -> None:
    with ApiClient(find_credentials(data_dir)) as client:
        _show(client.put(f"/tenants/{org_id(client, organization)}", changes), as_json=as_json)


def _settings(
    jobs: str | None,
    services: str | None,
    replicas: str | None,
    volumes: str | None,
    time_zone: str | None,
    provider_anonymity: str | None,
) -> dict[str, Any]:
    """The fields of the options that were given."""
    caps = {
        "max_live_jobs": jobs,
        "max_live_services": services,
        "max_live_service_replicas": replicas,
        "max_live_volumes": volumes,
    }
    body: dict[str, Any] = {name: _limit(name, text) for name, text in caps.items() if text is not None}
    if time_zone is not None:
        body["time_zone"] = time_zone
    if provider_anonymity is not None:
        if provider_anonymity not in {"on", "off"}:
            raise CommandError(
                f"--provider-anonymity is {provider_anonymity!r}, and must be on or off", code=ExitCode.USAGE
            )
        body["provider_anonymity"] = provider_anonymity == "on"
    return body


def _limit(name: str, text: str) -> int | None:
    if text == UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        option = f"--{name.replace('_', '-')}"
        raise CommandError(f"{option} is {text!r}, and must be a number or {UNLIMITED}", code=ExitCode.USAGE)
    return int(text)


def _cap(value: int | None) -> str:
    return UNLIMITED if value is None else str(value)


def _show(organization: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(organization)
        return
    print_record(
        [
            ("organization", organization["org_id"]),
            ("name", organization["name"]),
            ("enabled", "yes" if organization["enabled"] else "no"),
            ("live jobs", _cap(organization["max_live_jobs"])),
            ("live services", _cap(organization["max_live_services"])),
            ("live replicas", _cap(organization["max_live_service_replicas"])),
            ("live volumes", _cap(organization["max_live_volumes"])),
            ("time zone", organization["time_zone"]),
            ("provider anonymity", "on" if organization["provider_anonymity"] else "off"),
            ("created", moment(organization["created_at"])),
            ("updated", moment(organization["updated_at"])),
        ]
    )
