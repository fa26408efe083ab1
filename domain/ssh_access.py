"""A user's SSH access to a workload: which port is published for it, and where it is then reached."""

from collections.abc import Mapping, Sequence
from typing import Any

from domain.spec import Port

SSH_PORT = 22
ENTRY = "ssh"
"""The protocol of the endpoint entry through which a workload's sshd is reached."""
_OWN_NAME = "headrace-ssh"


def with_ssh(ports: Sequence[Port], ssh_public_key: str | None) -> tuple[Port, ...]:
    """The ports that a workload publishes: those asked for, and SSH's where a key was given."""
    if ssh_public_key is None or _ssh_port(ports) is not None:
        return tuple(ports)
    name = ENTRY if all(port.name != ENTRY for port in ports) else _OWN_NAME
    return (*ports, Port(name=name, container_port=SSH_PORT, protocol="tcp"))


def endpoint_entries(
    ports: Sequence[Port], ssh_public_key: str | None, published: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The entries of an instance's row, from what its provider published: an endpoint for each port that was asked for,
    and one of the protocol `ssh`."""
    asked = {port.name for port in ports}
    ssh = _ssh_port(with_ssh(ports, ssh_public_key)) if ssh_public_key is not None else None
    entries = [dict(entry) for entry in published if entry["name"] in asked or ssh is None or entry["name"] != ssh.name]
    for entry in published:
        if ssh is not None and entry["name"] == ssh.name:
            entries.append({**entry, "name": ENTRY, "protocol": ENTRY, "user": "root"})
    return entries


def known_hosts_line(host: str, port: int, host_key: str) -> str:
    """The line of `known_hosts` that makes a client trust just this workload."""
    name = host if port == SSH_PORT else f"[{host}]:{port}"
    return f"{name} {' '.join(host_key.split()[:2])}"


def _ssh_port(ports: Sequence[Port]) -> Port | None:
    return next((port for port in ports if port.container_port == SSH_PORT), None)
