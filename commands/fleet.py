"""`headrace fleet`: hosts of one's own, reached over SSH."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.exits import CommandError, ExitCode
from commands.fleet_file import Given, host_of, read_fleet_file
from commands.job_file import usage
from commands.options import AsJson, DataDir
from commands.render import hint, moment, print_json, print_table, say

app = typer.Typer(no_args_is_help=True, help="SSH fleets, hosts of your own: add, list, edit, probe, remove.")

_PATH = "/api/compute/cloud/backends"
_PAUSE_SECONDS = 1.0
_TELL_SECONDS = 5.0
_PATIENCE_SECONDS = 180.0
"""A probe takes at most two minutes once a worker has it."""

FleetName = Annotated[str, typer.Argument(metavar="FLEET", help="Its name, or its id (conn_...).", show_default=False)]
File = Annotated[
    Path | None,
    typer.Option("--file", help="A fleet file (YAML): what differs from host to host.", show_default=False),
]
User = Annotated[str | None, typer.Option("--user", help="Who logs in; by default ubuntu.", show_default=False)]
Port = Annotated[int | None, typer.Option("--port", help="Of SSH; by default 22.", show_default=False)]
Key = Annotated[
    Path | None, typer.Option("--key", help="File of the private key, without a passphrase.", show_default=False)
]
BastionHost = Annotated[
    str | None,
    typer.Option("--bastion", metavar="[USER@]HOST[:PORT]", help="Through which to reach them.", show_default=False),
]
BastionKey = Annotated[Path | None, typer.Option("--bastion-key", help="By default the same key.", show_default=False)]
Price = Annotated[str | None, typer.Option("--price", help="USD per hour of a host; by default 0.", show_default=False)]
Slots = Annotated[
    int | None, typer.Option("--slots", help="Jobs at once on a host without GPUs; by default 1.", show_default=False)
]
DisplayName = Annotated[str | None, typer.Option("--name", help="For people.", show_default=False)]


@app.command("add")
def add(
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="[USER@]HOST[:PORT]", help="One host. Repeatable.", show_default=False),
    ] = None,
    file: File = None,
    user: User = None,
    port: Port = None,
    key: Key = None,
    bastion: BastionHost = None,
    bastion_key: BastionKey = None,
    price: Price = None,
    slots: Slots = None,
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
    """Add a fleet, once at least one of its hosts can be used; options lie over the file, hosts add up."""
    named, fields = (None, {}) if file is None else read_fleet_file(file)
    fields = _laid_over(fields, Given(host or (), user, port, key, bastion, bastion_key, price, slots).fields())
    if not fields.get("hosts"):
        raise usage("a fleet has hosts", "use --host, repeatedly, or --file")
    if "private_key" not in fields:
        raise usage("the hosts' private key is missing", "use --key FILE, or private_key_file in the file")
    body = {
        "provider": "ssh", "fields": fields, "name": name or named, "project": project, "cluster": cluster,
    }  # fmt: skip
    given = {field: value for field, value in body.items() if value is not None}
    path = _PATH if org is None else f"{_PATH}?org_id={path_part(org, 'organization')}"
    with ApiClient(find_credentials(data_dir)) as client, _hosts_told_of(as_json=as_json):
        with _probing(fields["hosts"]):
            row = _settled(client, client.post(path, given))
        _show(row, as_json=as_json)


@app.command("list")
def list_fleets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the fleets, their health, and what they have."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(_fleets(client))
    if as_json:
        print_json(found)
        return
    print_table(
        ("FLEET", "NAME", "FOR", "STATE", "HEALTH", "HOSTS", "GPUS", "LIVE", "USD/H"),
        (
            (
                row["id"],
                row["name"],
                str(row["project"] or (row["org_id"] if row["scope"] == "organization" else row["scope"])),
                row["state"],
                row["health"]["status"],
                str(row["host_count"] or 0),
                "-" if row["gpu_count"] is None else str(row["gpu_count"]),
                str(row["live_instances"]),
                str(row["hourly_cost_usd"]),
            )
            for row in found
        ),
    )


@app.command("edit")
def edit(
    fleet: FleetName,
    add_host: Annotated[
        list[str] | None,
        typer.Option("--add-host", metavar="[USER@]HOST[:PORT]", help="One more. Repeatable.", show_default=False),
    ] = None,
    remove_host: Annotated[
        list[str] | None,
        typer.Option("--remove-host", metavar="HOST", help="One less. Repeatable.", show_default=False),
    ] = None,
    forget_host_key: Annotated[
        list[str] | None,
        typer.Option(
            "--forget-host-key", metavar="HOST", help="Of a host that was installed anew. Repeatable.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A fleet file (YAML), whose hosts take the place of all.", show_default=False),
    ] = None,
    user: User = None,
    port: Port = None,
    key: Key = None,
    bastion: BastionHost = None,
    no_bastion: Annotated[bool, typer.Option("--no-bastion", help="Reach the hosts directly.")] = False,
    bastion_key: BastionKey = None,
    price: Price = None,
    slots: Slots = None,
    name: DisplayName = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Change what is given, once its hosts were probed with it; a key that is not given stays."""
    named, fields = (None, {}) if file is None else read_fleet_file(file)
    fields = _laid_over(fields, Given((), user, port, key, bastion, bastion_key, price, slots).fields())
    if no_bastion:
        fields |= dict.fromkeys(("bastion_hostname", "bastion_port", "bastion_user", "bastion_host_key"))
    with ApiClient(find_credentials(data_dir)) as client, _hosts_told_of(as_json=as_json):
        row = client.get(_path(client, fleet))
        headers = {}
        if add_host or remove_host:
            # What is to be changed is what was seen: nobody else's edit is to be lost.
            row = _settled(client, row)
            headers["If-Match"] = str(row["version"])
            fields["hosts"] = _changed_hosts(row, fields.get("hosts"), add_host or (), remove_host or ())
        body = {"name": name or named, "fields": fields or None}
        given = {field: value for field, value in body.items() if value is not None}
        if not given and not forget_host_key:
            raise usage("nothing is to be changed", "`headrace fleet edit --help` lists what can be")
        for host in forget_host_key or ():
            client.post(f"{_PATH}/{row['id']}/host-keys/forget", {"host": host})
            say(f"forgot the host key of {host}; the next one that it shows is pinned")
        path = f"{_PATH}/{row['id']}"
        if fields:
            with _probing(fields.get("hosts") or (row["fields"] or {}).get("hosts") or ()):
                row = _settled(client, client.put(path, given, headers))
        elif given:
            row = client.put(path, given)
        _show(row, as_json=as_json, probed=bool(fields))


@app.command("probe")
def probe(fleet: FleetName, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Look at every host of a fleet anew: whether it can be used, and what it has."""
    with ApiClient(find_credentials(data_dir)) as client:
        row = client.get(_path(client, fleet))
        with _probing((row["fields"] or {}).get("hosts") or ()):
            row = _settled(client, client.post(f"{_PATH}/{row['id']}/verify"))
        _show(row, as_json=as_json)


@app.command("remove")
def remove(
    fleet: FleetName,
    force: Annotated[bool, typer.Option("--terminate-jobs", help="End the jobs that run on it first.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Forget a fleet; refused while jobs run on it, unless they are to be ended. No host is touched otherwise."""
    with ApiClient(find_credentials(data_dir)) as client:
        client.delete(_path(client, fleet) + ("?force=terminate" if force else ""))
    if force:
        say(f"{fleet} goes once the jobs on it have ended; nothing else on its hosts is touched")
        hint("`headrace fleet list` shows it until then")
    else:
        say(f"removed {fleet}; no host was touched")


def _laid_over(fields: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    hosts = [*(fields.get("hosts") or ()), *(options.get("hosts") or ())]
    return {**fields, **options, **({"hosts": hosts} if hosts else {})}


def _changed_hosts(
    row: Mapping[str, Any], given: list[Any] | None, added: Iterable[str], removed: Iterable[str]
) -> list[Any]:
    """The hosts of an edit: those of the file, or those that there are, without some, and some more."""
    hosts = {_hostname(host): host for host in given or (row["fields"] or {}).get("hosts") or ()}
    for name in removed:
        if hosts.pop(_hostname(name), None) is None:
            raise usage(f"{name} is no host of {row['name']}", f"it has {', '.join(hosts) or 'none'}")
    for name in added:
        if _hostname(name) in hosts:
            raise usage(f"{name} is a host of {row['name']} already")
        hosts[_hostname(name)] = name
    if not hosts:
        raise usage("a fleet has hosts", "`headrace fleet remove` removes all of it")
    return list(hosts.values())


def _hostname(host: Any) -> str:
    if isinstance(host, Mapping):
        return str(host.get("hostname"))
    # An IPv6 address may be given as it is shown.
    return host if host.count(":") > 1 and "[" not in host else str(host_of(host, "a host")["hostname"])


def _fleets(client: ApiClient) -> Iterator[dict[str, Any]]:
    return (row for row in client.pages(_PATH) if row["provider"] == "ssh")


def _path(client: ApiClient, fleet: str) -> str:
    """Of the fleet with this id or name.

    Raises:
        CommandError: there is none, or there are several of this name.
    """
    if fleet.startswith("conn_"):
        path = f"{_PATH}/{path_part(fleet, 'fleet')}"
        if client.get(path)["provider"] != "ssh":
            raise usage(f"{fleet} is no fleet", "`headrace backend` is for the other backends")
        return path
    found = [row["id"] for row in _fleets(client) if row["name"] == fleet]
    if not found:
        raise CommandError(
            f"there is no fleet {fleet!r}", code=ExitCode.NOT_FOUND, hints=("`headrace fleet list` lists them",)
        )
    if len(found) > 1:
        raise usage(f"several fleets are called {fleet!r}", f"name one by its id: {', '.join(found)}")
    return f"{_PATH}/{found[0]}"


def _settled(client: ApiClient, row: dict[str, Any]) -> dict[str, Any]:
    """The fleet once its hosts were probed.

    Raises:
        CommandError: nobody probed them for long.
    """
    began = time.monotonic()
    while row["verification"]["pending"]:
        if time.monotonic() - began > _PATIENCE_SECONDS:
            raise CommandError(
                f"{row['name']} has not been probed within {_PATIENCE_SECONDS:g} s",
                code=ExitCode.SERVER_ERROR,
                hints=("is a worker running?", f"`headrace backend get {row['id']}` shows how it went"),
            )
        time.sleep(_PAUSE_SECONDS)
        row = client.get(f"{_PATH}/{row['id']}")
    return row


@contextmanager
def _probing(hosts: Iterable[Any]) -> Iterator[None]:
    """Says that it goes on, while the server is waited for too."""
    number, began, over = len(list(hosts)), time.monotonic(), threading.Event()
    say(f"probing {number} host{'' if number == 1 else 's'}")

    def tell() -> None:
        while not over.wait(_TELL_SECONDS):
            say(f"still probing ({time.monotonic() - began:.0f} s)")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _hosts_told_of(*, as_json: bool) -> Iterator[None]:
    """What was found out of each host is told also where none can be used."""
    try:
        yield
    except CommandError as error:
        if as_json and error.details:
            print_json(error.details)
        else:
            print_hosts(error.details.get("hosts") or ())
        raise


def _show(row: Mapping[str, Any], *, as_json: bool, probed: bool = True) -> None:
    """The fleet and its hosts; raises CommandError where none can be used, as far as that was asked."""
    verification = row["verification"]
    if as_json:
        print_json(row)
    else:
        say(f"{row['name']} ({row['id']}) is {row['state']}, probed {moment(verification['at']) or 'never'}")
        print_hosts(verification["hosts"] or ())
    if probed and verification["status"] != "ok":
        raise CommandError(
            f"no host of {row['name']} can be used ({verification['status']}): {verification['message']}",
            code=ExitCode.USAGE,
        )
    unusable = [host["hostname"] for host in verification["hosts"] or () if not host["usable"]]
    if probed and unusable:
        hint(f"not used: {', '.join(unusable)}; `headrace fleet probe` looks again")


def print_hosts(hosts: Iterable[Mapping[str, Any]]) -> None:
    """A table of what was found out of each host."""
    rows = [
        (
            host["hostname"],
            host["status"],
            host["message"],
            host["engine"] or "-",
            str(host["vcpus"] or "-"),
            f"{host['memory_gb']:g} GB" if host["memory_gb"] else "-",
            f"{host['disk_gb']} GB" if host["disk_gb"] else "-",
            host["driver"] or "-",
            host["host_key_fingerprint"] or "-",
        )
        for host in hosts
    ]
    if rows:
        print_table(("HOST", "STATUS", "FOUND", "ENGINE", "VCPUS", "MEMORY", "DISK", "DRIVER", "HOST KEY"), rows)
