"""Packet rules around the workloads' networks: out to the world, never into this machine or into each other.

Services that listen on 127.0.0.1 cannot be reached from another network namespace at all. These rules close the rest:
whatever listens on other addresses of this machine (an API on 0.0.0.0, a database), cloud metadata, other workloads.
Replies to published ports pass. The rules are the same from every data directory, and stay after the process.
"""

import ipaddress
import threading
import time
from collections.abc import Mapping

from providers.local.process import clean_environment, run_blocking

PODMAN_SUBNET = "10.213.0.0/16"
DOCKER_SUBNET = "10.214.0.0/16"
SUBNETS = (PODMAN_SUBNET, DOCKER_SUBNET)
_LINK_LOCAL = "169.254.0.0/16"
_RENEW_SECONDS = 60.0
"""A firewall manager's reload drops what it did not write; the rules are laid again at most so much later."""

_JUMPS = (
    ("filter", "INPUT", "HEADRACE-INPUT"),
    ("filter", "FORWARD", "HEADRACE-FORWARD"),
    ("nat", "POSTROUTING", "HEADRACE-NAT"),
)


def split(subnet: str) -> tuple[str, str]:
    """The two halves of a subnet."""
    first, second = ipaddress.ip_network(subnet).subnets()
    return str(first), str(second)


def rules() -> str:
    """The chains, for `iptables-restore --noflush`, which replaces each of them in one step."""
    lines = ["*filter", ":HEADRACE-INPUT - [0:0]", ":HEADRACE-FORWARD - [0:0]"]
    for subnet in SUBNETS:
        inward, outward = f"-A HEADRACE-INPUT -s {subnet}", f"-A HEADRACE-FORWARD -s {subnet}"
        lines += [
            f"{inward} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
            # A resolver on this machine may be the only one that the workload was given.
            f"{inward} -p udp --dport 53 -j RETURN",
            f"{inward} -p tcp --dport 53 -j RETURN",
            f"{inward} -j REJECT",
            f"{outward} -d {_LINK_LOCAL} -j REJECT",
            *(f"{outward} -d {other} -m conntrack --ctstate NEW -j REJECT" for other in SUBNETS),
        ]
    # Docker opens the way for its own network; for podman's it is opened here, as another engine may have closed it.
    lines += [
        f"-A HEADRACE-FORWARD -s {PODMAN_SUBNET} -j ACCEPT",
        f"-A HEADRACE-FORWARD -d {PODMAN_SUBNET} -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT",
        "COMMIT",
        "*nat",
        ":HEADRACE-NAT - [0:0]",
        f"-A HEADRACE-NAT -s {PODMAN_SUBNET} ! -d {PODMAN_SUBNET} -j MASQUERADE",
        "COMMIT",
        "",
    ]
    return "\n".join(lines)


class Firewall:
    """Lays the rules, and lays them again when they may have been dropped. Methods block: call them in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._laid_at: float | None = None
        self.problem: str | None = None
        """Why the rules are not there, or None."""

    def ensure(self) -> str | None:
        """Lays the rules unless that was done within the last minute; what hinders it, or None."""
        with self._lock:
            if self._laid_at is None or time.monotonic() - self._laid_at > _RENEW_SECONDS:
                self.problem = _lay()
                self._laid_at = time.monotonic()
            return self.problem


def _lay() -> str | None:
    environment = clean_environment({})
    answer = run_blocking(
        ["iptables-restore", "--noflush", "--wait=5"], environment=environment, timeout=15, stdin=rules().encode()
    )
    if answer.returncode != 0:
        return answer.last_line
    for table, chain, target in _JUMPS:
        if _iptables(environment, table, "-C", chain, target) is not None:
            problem = _iptables(environment, table, "-I", chain, target)
            if problem is not None:
                return problem
    return None


def _iptables(environment: Mapping[str, str], table: str, verb: str, chain: str, target: str) -> str | None:
    answer = run_blocking(
        ["iptables", "--wait", "5", "--table", table, verb, chain, "--jump", target],
        environment=environment,
        timeout=15,
    )
    return None if answer.returncode == 0 else answer.last_line
