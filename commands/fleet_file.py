"""What is known of a fleet on the command line, or in a file, into the fields of its form.

A fleet file is YAML: the form's fields, with `bastion` as `[user@]host[:port]`, hosts as that or as mappings, and
`private_key_file` (of the fleet, its bastion as `bastion_private_key_file`, a host) as a path beside the file. A key
itself is in no fleet file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from commands.job_file import refuse_repeated_keys, usage
from commands.secret_values import read_values
from domain import fleets

_HOST = {"hostname", "port", "user", "private_key_file", "host_key", "price_usd_hr", "cpu_slots", "address"}
_FLEET = {
    "name", "user", "port", "private_key_file", "hosts", "bastion", "bastion_private_key_file", "bastion_host_key",
    "price_usd_hr", "cpu_slots",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What was said of a fleet by options; None and empty were not said."""

    hosts: Sequence[str] = ()
    user: str | None = None
    port: int | None = None
    key: Path | None = None
    bastion: str | None = None
    bastion_key: Path | None = None
    price: str | None = None
    slots: int | None = None

    def fields(self) -> dict[str, Any]:
        """By the names of the form.

        Raises:
            CommandError: a key cannot be read, or the bastion is none.
        """
        found: dict[str, Any] = {
            "user": self.user,
            "port": self.port,
            "private_key": None if self.key is None else read_key(self.key),
            "hosts": list(self.hosts) or None,
            "bastion_private_key": None if self.bastion_key is None else read_key(self.bastion_key),
            "price_usd_hr": self.price,
            "cpu_slots": self.slots,
        }
        if self.bastion is not None:
            found |= bastion_fields(self.bastion)
        return {name: value for name, value in found.items() if value is not None}


def read_fleet_file(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The fleet's name, if it has one there, and the fields of its form.

    Raises:
        CommandError: the file cannot be read, is no fleet, or names a key that cannot be read. No value is part of it.
    """
    fleet = _mapping(_parsed(path), _FLEET, str(path))
    fields: dict[str, Any] = {
        name: fleet[name] for name in ("user", "port", "price_usd_hr", "cpu_slots") if fleet.get(name)
    }
    for name in ("private_key", "bastion_private_key"):
        if fleet.get(f"{name}_file"):
            fields[name] = read_key(path.parent / fleet[f"{name}_file"])
    if fleet.get("bastion"):
        fields |= bastion_fields(fleet["bastion"])
    if fleet.get("bastion_host_key"):
        fields["bastion_host_key"] = fleet["bastion_host_key"]
    hosts = fleet.get("hosts") or []
    if not isinstance(hosts, list):
        raise usage(f"{path}: hosts is a list")
    if hosts:
        fields["hosts"] = [_host(host, path, f"{path}: hosts[{number}]") for number, host in enumerate(hosts)]
    return fleet.get("name") or None, fields


def bastion_fields(text: str) -> dict[str, Any]:
    """The bastion's fields of the form; all are there, so that those of another one do not stay."""
    found = host_of(text, "the bastion")
    return {f"bastion_{name}": found.get(name, "") for name in ("hostname", "port", "user", "host_key")}


def host_of(text: Any, what: str) -> dict[str, Any]:
    """`[user@]host[:port]` by its parts.

    Raises:
        CommandError: it is none.
    """
    try:
        return fleets.host_of_entry(str(text))
    except ValueError:
        raise usage(f"{what} is written as [user@]host[:port], an IPv6 address in brackets") from None


def read_key(path: Path) -> str:
    """The text of a key's file."""
    return read_values([f"private_key={path}"], None, None)["private_key"]


def _host(host: Any, path: Path, where: str) -> Any:
    if isinstance(host, str):
        return host
    found = {name: value for name, value in _mapping(host, _HOST, where).items() if value}
    if "private_key_file" in found:
        found["private_key"] = read_key(path.parent / found.pop("private_key_file"))
    return found


def _mapping(value: Any, known: set[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise usage(f"{where}: a mapping is wanted, with {', '.join(sorted(known))}")
    for name in value:
        if name not in known:
            hints = ("keys stay in files of their own: private_key_file",) if "key" in str(name) else ()
            raise usage(f"{where}: {str(name)[:64]!r} is none of {', '.join(sorted(known))}", *hints)
    return value


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {type(error).__name__}") from None
    # All scalars stay text, so 1.10 is no 1.1; the form knows what is a number.
    loader = yaml.BaseLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise usage(f"{path} is empty")
        refuse_repeated_keys(node, str(path))
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise usage(f"{path}{where}: not YAML: {getattr(error, 'problem', None) or 'see there'}") from None
    except RecursionError:
        raise usage(f"{path}: nested too deeply") from None
    finally:
        loader.dispose()
