"""The one client for addresses that a user gives: webhooks now, and whatever else must be fetched for users.

A name is resolved once. Every address that it has must be public, or in a network that an administrator allowed; the
connection goes to one of those very addresses, with the name kept for TLS and for the Host header. A name that answers
otherwise the next time (DNS rebinding) gains nothing: nobody asks again. Redirects are not followed, and no proxy of
the environment is used.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpcore

from domain.errors import HeadraceError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as text."""

MOST_URL_CHARACTERS = 2048
_CONNECT_SECONDS = 5.0
_MOST_TRIED = 3
_PORTS = {b"https": 443, b"http": 80}

# IANA's special-purpose registries, written out: what `ipaddress` takes for global differs between Python versions.
_FORBIDDEN_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# Only 2000::/3 is global unicast. What is left out of it: special purposes, documentation, and 6to4, which holds an
# IPv4 address that a gateway would unpack. IPv4-mapped, NAT64, unique local and link-local addresses lie outside.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_FORBIDDEN_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


class EgressError(HeadraceError):
    """The request was not sent, or not answered. The message tells no address that a name was resolved to."""


class EgressRefused(EgressError):
    """The address may not be reached: it is no http(s) URL, or leads into a network that is not public."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `body` is cut at the client's bound."""

    status: int
    body: bytes


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks in CIDR form, separated by commas.

    Raises:
        ValueError: one is none.
    """
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: Address) -> bool:
    """Whether the address is one of the public Internet's."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _FORBIDDEN_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _FORBIDDEN_V6)


def check_url(url: str) -> None:
    """Raises EgressRefused for what no request can be sent to, whatever its name resolves to."""
    _parsed(url)


class Egress:
    """Sends requests to addresses that users gave. `allowed` are networks that an administrator opened to them, such as
    a receiver's on the own premises: they may also be reached without TLS."""

    def __init__(
        self,
        allowed: Iterable[Network] = (),
        *,
        timeout_seconds: float = 15,
        most_bytes: int = 64 * 1024,
        resolver: Resolver = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = tuple(allowed)
        self._timeout_seconds = timeout_seconds
        self._most_bytes = most_bytes
        self._resolver = resolver
        self._tls = tls or ssl.create_default_context()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Sends `body`; whatever status comes back is an answer.

        Raises:
            EgressRefused: the URL may not be reached.
            EgressError: no answer in time.
        """
        target = _parsed(url)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._send(target, body, headers)
        except TimeoutError:
            raise EgressError(f"no answer within {self._timeout_seconds:g} s") from None
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            # What the system says may name the address: which ones a name has is not for the user to learn here.
            raise EgressError(f"the receiver could not be reached ({type(error).__name__})") from None

    async def _send(self, target: httpcore.URL, body: bytes, headers: Mapping[str, str]) -> Answer:
        host = target.host.decode()
        port = target.port or _PORTS[target.scheme]
        addresses = await self._addresses(host, port, secure=target.scheme == b"https")
        backend = _Pinned(host, addresses)
        sent = [("Host", _host_header(target)), *headers.items(), ("Content-Length", str(len(body)))]
        async with (
            httpcore.AsyncConnectionPool(ssl_context=self._tls, network_backend=backend, retries=0) as pool,
            pool.stream("POST", target, headers=sent, content=body, extensions={"timeout": self._timeouts()}) as answer,
        ):
            received = bytearray()
            async for chunk in answer.aiter_stream():
                received += chunk[: self._most_bytes - len(received)]
                if len(received) >= self._most_bytes:
                    break
            return Answer(answer.status, bytes(received))

    async def _addresses(self, host: str, port: int, *, secure: bool) -> list[str]:
        """What the host is resolved to, once, every address of it checked."""
        try:
            found = [ipaddress.ip_address(text) for text in await self._resolver(host, port)]
        except (OSError, UnicodeError, ValueError):
            raise EgressError(f"the host {host!r} cannot be resolved") from None
        if not found:
            raise EgressError(f"the host {host!r} has no address")
        for address in found:
            opened = any(address in network for network in self._allowed if network.version == address.version)
            if not opened and not is_public(address):
                raise EgressRefused(f"the host {host!r} does not lead to the public Internet, or to an allowed network")
            if not opened and not secure:
                raise EgressRefused("https is wanted: plain http is for networks that an administrator allowed")
        return [str(address) for address in found[:_MOST_TRIED]]

    def _timeouts(self) -> dict[str, float]:
        rest = self._timeout_seconds
        return {"connect": min(_CONNECT_SECONDS, rest), "read": rest, "write": rest, "pool": rest}


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, and to nothing else, whatever the name has become meanwhile."""

    def __init__(self, host: str, addresses: Sequence[str]) -> None:
        self._host, self._addresses = host, addresses
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        assert host == self._host, f"asked for {host!r}, checked {self._host!r}"
        *others, last = self._addresses
        for address in others:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(last, port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise EgressRefused("a Unix socket is no address of a user's")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def _parsed(url: str) -> httpcore.URL:
    if len(url) > MOST_URL_CHARACTERS:
        raise EgressRefused(f"the URL has over {MOST_URL_CHARACTERS} characters")
    if not url.isascii() or any(character.isspace() or not character.isprintable() for character in url):
        raise EgressRefused("the URL holds a character that must be encoded")
    try:
        target = httpcore.URL(url)
        port_is_valid = target.port is None or 0 < target.port < 65536
    except (ValueError, TypeError):
        raise EgressRefused("the URL cannot be read") from None
    if target.scheme not in _PORTS or not target.host:
        raise EgressRefused("the URL must be https://HOST[:PORT]/PATH")
    authority = url.split("://", 1)[1].split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]
    if "@" in authority:
        raise EgressRefused("the URL must not hold a user name or password")
    if "\\" in url or not port_is_valid:
        raise EgressRefused("the URL cannot be read")
    return target


def _host_header(target: httpcore.URL) -> str:
    host = target.host.decode()
    host = f"[{host}]" if ":" in host else host
    return host if target.port in {None, _PORTS[target.scheme]} else f"{host}:{target.port}"
