"""Fleets of hosts: how one is written in a form, and by which address it is known."""

import ipaddress
import re

from domain.forms import FieldKind, FormField, Values
from domain.host_keys import MAX_CHARACTERS, address_of

MOST_HOSTS = 256
DEFAULT_PORT = 22
_KEY_CHARACTERS = 16_384
_HOSTNAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f]*(:[0-9A-Fa-f]*){2,7}"
_USER = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
_ENTRY = re.compile(r"(?:(?P<user>[^@]*)@)?(?:\[(?P<v6>[0-9A-Fa-f:]+)\]|(?P<name>[^:@\[\]]+))(?::(?P<port>[^:]*))?")
_HOST_KEY = r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\r\n]*)?"


def host_of_entry(entry: str) -> Values:
    """A host written as `[user@]host[:port]`; an IPv6 address stands in brackets.

    Raises:
        ValueError: it is none.
    """
    found = _ENTRY.fullmatch(entry.strip())
    if found is None or found["user"] == "" or found["port"] == "":
        raise ValueError("no host")
    given = {"hostname": found["v6"] or found["name"], "port": found["port"], "user": found["user"]}
    return {name: value for name, value in given.items() if value is not None}


def canonical(hostname: str) -> str:
    """An address in its shortest form, one of IPv4 as such; a name in small letters."""
    try:
        address = ipaddress.ip_address(hostname)
    except ValueError:
        return hostname.lower().rstrip(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _port(name: str, label: str, default: str) -> FormField:
    return FormField(
        name, label, FieldKind.NUMBER, required=False, minimum=1, maximum=65_535, help=f"By default {default}."
    )


def _price(help_: str) -> FormField:
    return FormField(
        "price_usd_hr", "USD per hour of a host", FieldKind.NUMBER, required=False, maximum=100_000, places=6,
        help=help_,
    )  # fmt: skip


def _slots(help_: str) -> FormField:
    return FormField("cpu_slots", "Jobs at once", FieldKind.NUMBER, required=False, minimum=1, maximum=1024, help=help_)


def _key(name: str, label: str, help_: str, *, required: bool = False) -> FormField:
    return FormField(name, label, FieldKind.FILE, required=required, max_characters=_KEY_CHARACTERS, help=help_)


def _host_key(name: str, label: str) -> FormField:
    return FormField(
        name, label, required=False, pattern=_HOST_KEY, max_characters=MAX_CHARACTERS,
        help="Its public key in OpenSSH's form; by default the first one that is seen.",
    )  # fmt: skip


def _user(name: str, label: str, help_: str) -> FormField:
    return FormField(name, label, required=False, pattern=_USER, help=help_)


_HOST_FIELDS = (
    FormField("hostname", "Host", pattern=_HOSTNAME, max_characters=253, help="A name or an address."),
    _port("port", "SSH port", "that of the fleet"),
    _user("user", "SSH user", "By default that of the fleet."),
    _key("private_key", "Private key", "By default that of the fleet."),
    _host_key("host_key", "Host key"),
    _price("By default that of the fleet."),
    _slots("By default that of the fleet."),
    FormField(
        "address", "Address of ports", required=False, pattern=_HOSTNAME, max_characters=253,
        help="Where users reach the ports of its jobs; by default the host.",
    ),
)  # fmt: skip

FORM = (
    _user("user", "SSH user", "By default ubuntu."),
    _port("port", "SSH port", str(DEFAULT_PORT)),
    _key("private_key", "Private key", "No passphrase.", required=True),
    FormField(
        "hosts", "Hosts", FieldKind.RECORDS, most=MOST_HOSTS, fields=_HOST_FIELDS, key="hostname",
        shorthand=host_of_entry, canonical=canonical,
        help="Each with fields of its own, or as [user@]host[:port]; docker or podman is installed, sudo asks for no"
        " password.",
    ),
    FormField("bastion_hostname", "Bastion", required=False, pattern=_HOSTNAME, max_characters=253),
    _port("bastion_port", "Bastion port", str(DEFAULT_PORT)),
    _user("bastion_user", "Bastion user", "By default the SSH user."),
    _key("bastion_private_key", "Bastion private key", "By default the private key."),
    _host_key("bastion_host_key", "Bastion host key"),
    _price("By default 0; a job pays for its part of a host."),
    _slots("On each host without GPUs; by default 1."),
)  # fmt: skip
"""Of the backend `ssh`."""


def addresses_of(values: Values) -> dict[str, str]:
    """Each host of a fleet by `host:port`, an address in its canonical form and a name in small letters; the values are
    the hosts as they were written."""
    fleet_port = int(values.get("port") or DEFAULT_PORT)
    return {
        address_of(canonical(host["hostname"]), int(host.get("port") or fleet_port)): str(host["hostname"])
        for host in values.get("hosts") or ()
    }
