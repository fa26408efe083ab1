"""Which addresses a fleet may have: those that an administrator allowed, never this machine's own.

A name is resolved once and the connection goes to one of the addresses that were checked. How long a resolver takes is
up to whoever owns the name, and a look-up cannot be cancelled: each fleet waits in threads of its own.
"""

import asyncio
import contextlib
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor

import psutil

from domain.errors import ProviderRejected
from providers.ssh.settings import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_RESOLVERS = 8
"""Names of one fleet that are looked up at once."""


def resolvers() -> ThreadPoolExecutor:
    """The threads of one fleet; they are started as they are needed."""
    return ThreadPoolExecutor(_RESOLVERS, "fleet-names")


async def checked_address(
    hostname: str, port: int, networks: tuple[Network, ...] | None, threads: ThreadPoolExecutor | None = None
) -> str:
    """An address of the host that may be connected to. `threads` wait for the resolver; None: those of the loop.

    Raises:
        ProviderRejected: one of its addresses is not allowed.
        OSError: the name cannot be resolved.
    """
    addresses = [hostname]
    try:
        ipaddress.ip_address(hostname)
    except ValueError:
        addresses = await asyncio.get_running_loop().run_in_executor(threads, _resolved, hostname, port)
    own = _own_addresses()
    for text in addresses:
        _require(hostname, ipaddress.ip_address(text), networks, own)
    return addresses[0]


def check_behind_bastion(hostname: str, networks: tuple[Network, ...] | None) -> None:
    """A host that the bastion resolves: where networks are set it must be given as an address.

    Raises:
        ProviderRejected: it is not allowed.
    """
    try:
        address = ipaddress.ip_address(hostname)
    except ValueError:
        if networks is not None:
            raise ProviderRejected(
                f"{hostname} is resolved by the bastion, so it cannot be held against the allowed networks: "
                "give its address"
            ) from None
        return
    _require(hostname, address, networks, set())


def _require(hostname: str, address: Address, networks: tuple[Network, ...] | None, own: set[Address]) -> None:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address in own or address.is_loopback or address.is_unspecified:
        raise ProviderRejected(f"{hostname} is the control plane's own machine: a fleet has others")
    if address.is_link_local or address.is_multicast:
        raise ProviderRejected(f"{hostname} has an address that no host of a fleet has (link-local or multicast)")
    if networks is not None and not any(address in network for network in networks):
        raise ProviderRejected(f"{hostname} is outside the networks that an administrator allowed for fleets")


def _resolved(hostname: str, port: int) -> list[str]:
    # As bytes: a name that is none is then the resolver's error, and not that of a codec.
    found = socket.getaddrinfo(hostname.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _own_addresses() -> set[Address]:
    own: set[Address] = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            with contextlib.suppress(ValueError):  # a link-layer address
                own.add(ipaddress.ip_address(entry.address.partition("%")[0]))
    return own
