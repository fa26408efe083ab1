"""The one connection to a host: made when it is needed, shared by all commands, made again when it was lost.

A command is a script that a root shell reads from its standard input: nothing of it is on a command line. Closing a
channel does not end what runs on the host, so commands that may hang are bounded there.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from domain.errors import Ambiguous, AuthError, PermissionDenied, ProviderRejected
from domain.host_keys import address_of
from providers.base import HostKeys
from providers.local.process import Completed
from providers.ssh.addresses import check_behind_bastion, checked_address
from providers.ssh.settings import Bastion, Fleet, FleetHost, Key, SshOptions

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection, SSHClientProcess, SSHKey, SSHReader

_OUTPUT_LIMIT = 16 * 1024 * 1024
_ANSWER_SECONDS = 10.0
"""Beyond what a command may take on the host, until its answer counts as lost."""
_FIRST_RETRY_SECONDS = 0.2
_GREETING_BYTES = 1024
_MOST_AHEAD = timedelta(days=10 * 365)
_OFFERED_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)


class HostUnreachable(Ambiguous):
    """No connection could be made: what was to be done now was not, and what was done before stands."""


class HostKeyChanged(AuthError):
    """The host shows another key than the one that is pinned. Nothing was sent to it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a connection goes, with what is the fleet's own filled in."""

    hostname: str
    port: int
    user: str
    private_key: Key
    host_key: str | None

    @property
    def address(self) -> str:
        return address_of(self.hostname, self.port)


def target_of(fleet: Fleet, host: FleetHost | Bastion) -> Target:
    """A host's own values go before the fleet's."""
    return Target(
        hostname=host.hostname,
        port=host.port or fleet.port,
        user=host.user or fleet.user,
        private_key=host.private_key or fleet.private_key,
        host_key=host.host_key,
    )


class Link:
    """The connection to one host, `through` the bastion's where there is one."""

    def __init__(
        self,
        target: Target,
        keys: HostKeys,
        options: SshOptions,
        through: "Link | None" = None,
        resolvers: ThreadPoolExecutor | None = None,
    ) -> None:
        self.target = target
        self.booted_at = datetime.fromtimestamp(0, UTC)
        """When the host started, as of the last connection: a restart ends every connection."""
        self.ahead = timedelta(0)
        """By how much the host's clock is ahead of ours."""
        self._keys = keys
        self._pinned: str | None = None
        """As of the last try to connect."""
        self._options = options
        self._through = through
        self._resolvers = resolvers
        self._connection: SSHClientConnection | None = None
        self._connecting: asyncio.Task[SSHClientConnection] | None = None
        self._channels = asyncio.Semaphore(options.channels)

    @property
    def host_key(self) -> str | None:
        """The key that the host has to show; None until its first connection."""
        return self.target.host_key or self._pinned

    async def run(self, script: str, *, timeout: float, most_bytes: int = _OUTPUT_LIMIT) -> Completed:
        """Runs a script as root, to its end; what it prints beyond `most_bytes` is dropped.

        Raises:
            HostUnreachable: it was not run.
            Ambiguous: its answer was lost.
            AuthError, PermissionDenied: the host does not let us.
        """
        async with self._process(script) as process:
            try:
                async with asyncio.timeout(timeout + _ANSWER_SECONDS):
                    stdout, stderr = await asyncio.gather(
                        _all_of(process.stdout, most_bytes), _all_of(process.stderr, most_bytes)
                    )
                    await process.wait_closed()
            except TimeoutError:
                raise Ambiguous(f"{self.target.hostname} gave no answer within {timeout:g} s") from None
            answer = Completed(_code(self, process), stdout, stderr)
        if answer.returncode != 0 and stderr.startswith("sudo:"):
            raise PermissionDenied(
                f"{self.target.user} has no passwordless sudo on {self.target.hostname}: {stderr[:200]}"
            )
        return answer

    async def follow(
        self, script: str, follow: Callable[[Callable[[], Awaitable[bytes]]], Awaitable[str]]
    ) -> tuple[int, str]:
        """Runs a script whose standard output `follow` reads line by line; the exit code and what `follow` returned."""
        async with self._process(script) as process:
            last = await follow(process.stdout.readline)
            await process.wait_closed()
            return _code(self, process), last

    async def connection(self) -> "SSHClientConnection":
        """The connection, made anew where there is none. Everyone who waits for it shares one try.

        Raises:
            HostUnreachable, AuthError, ProviderRejected: see `run`.
        """
        _require_library()
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _connected(self, task: "asyncio.Task[SSHClientConnection]") -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    @contextlib.asynccontextmanager
    async def _process(self, script: str) -> "AsyncIterator[SSHClientProcess[bytes]]":
        _require_library()
        import asyncssh

        async with self._channels:
            process = await self._open()
            try:
                process.stdin.write(_framed(script))
                process.stdin.write_eof()
                yield process
            except (asyncssh.Error, OSError) as error:
                raise _lost(self, error) from error
            finally:
                process.close()

    async def _open(self) -> "SSHClientProcess[bytes]":
        """A shell on the host. A refused channel (MaxSessions, or a connection that had just ended) is tried again: its
        command was not sent."""
        import asyncssh

        delay = _FIRST_RETRY_SECONDS
        for left in reversed(range(self._options.connects)):
            connection = await self.connection()
            try:
                # It may say that it is there, by its answers to keepalives, and open no channel all the same.
                async with asyncio.timeout(self._options.greet_seconds):
                    return await connection.create_process(_shell(self.target.user), encoding=None)
            except asyncssh.ChannelOpenError as error:
                if not left:
                    raise HostUnreachable(f"{self.target.hostname} takes no more commands: {error.reason}") from error
            except (asyncssh.Error, OSError) as error:
                raise _lost(self, error) from error
            delay = await _jittered(delay)
        raise AssertionError("unreachable")

    async def _connect(self) -> "SSHClientConnection":
        import asyncssh

        target, delay = self.target, _FIRST_RETRY_SECONDS
        for left in reversed(range(self._options.connects)):
            try:
                return await self._greeted(await self._dial())
            except asyncssh.HostKeyNotVerifiable as error:
                raise _key_changed(target) from error
            except asyncssh.PermissionDenied as error:
                raise AuthError(f"{target.address} refuses the key of {target.user}") from error
            except (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError) as error:
                # sshd drops connections at random when many are being made (MaxStartups).
                if not left:
                    raise HostUnreachable(f"{target.address} drops connections while they are made") from error
            except (asyncssh.Error, asyncssh.ChannelOpenError, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                raise HostUnreachable(f"{target.address} cannot be reached: {reason[:300]}") from error
            delay = await _jittered(delay)
        raise AssertionError("unreachable")

    async def _dial(self) -> "SSHClientConnection":
        import asyncssh

        target, options = self.target, self._options
        arguments: dict[str, Any] = {}
        if self._through is None:
            async with asyncio.timeout(options.connect_seconds):
                address = await checked_address(target.hostname, target.port, options.networks, self._resolvers)
        else:
            check_behind_bastion(target.hostname, options.networks)
            # The connection and not its name, so that the hop's own key is checked as well.
            address, arguments["tunnel"] = target.hostname, await self._through.connection()
        try:
            key = asyncssh.import_private_key(target.private_key.get_secret_value())
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError, OverflowError):
            # The last two of keys whose numbers do not fit. Not chained: the text may repeat some of the key.
            raise AuthError(
                f"the private key for {target.hostname} cannot be read: it has to be one without a passphrase"
            ) from None
        self._pinned = await self._keys.pinned(target.address)
        pinned = self.host_key
        algorithms = _algorithms(pinned)
        seen: list[str] = []
        if self._through is None:
            async with asyncio.timeout(options.connect_seconds):
                arguments["sock"] = await _socket(address, target.port)
        connection = await asyncssh.connect(
            address,
            target.port,
            **arguments,
            config=None,
            known_hosts=([], [], []),
            server_host_key_algs=algorithms,
            client_factory=_client_factory(pinned, seen),
            username=target.user,
            client_keys=[key],
            agent_path=None,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            connect_timeout=options.greet_seconds,
            login_timeout=options.greet_seconds,
            keepalive_interval=options.keepalive_seconds,
            keepalive_count_max=options.keepalives,
        )
        if pinned is None and seen:
            try:
                self._pinned = await self._keys.pin(target.address, seen[-1])
                if self._pinned != seen[-1]:
                    # Another process pinned first, and saw another host.
                    raise _key_changed(target)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _greeted(self, connection: "SSHClientConnection") -> "SSHClientConnection":
        """Asks for the host's clock, and when it started."""
        asked = time.time()
        try:
            async with asyncio.timeout(self._options.greet_seconds):
                process = await connection.create_process(
                    "sed -n 's/^btime //p' /proc/stat; date +%s.%N", encoding=None
                )
                # A host that does not stop talking is not listened to.
                said = b""
                while len(said) < _GREETING_BYTES and (part := await process.stdout.read(_GREETING_BYTES)):
                    said += part
                process.close()
            booted, now = said.split()
            self.booted_at = datetime.fromtimestamp(int(booted), UTC)
            ahead = timedelta(seconds=float(now) - (asked + time.time()) / 2)
            if abs(ahead) > _MOST_AHEAD:
                raise ValueError
            self.ahead = ahead
        except (ValueError, OverflowError) as error:
            connection.abort()
            raise ProviderRejected(f"{self.target.hostname} is no Linux host with a shell") from error
        except BaseException:
            connection.abort()
            raise
        return connection


def _key_changed(target: Target) -> HostKeyChanged:
    return HostKeyChanged(
        f"{target.address} shows another host key than the one that is pinned: if the host was installed anew, have the"
        f" pin forgotten (headrace fleet edit FLEET --forget-host-key {target.hostname}); if not, somebody is between"
    )


def _require_library() -> None:
    try:
        import asyncssh  # noqa: F401
    except ImportError:
        raise ProviderRejected("this process lacks asyncssh: install headrace[ssh] where workers run") from None


def _shell(user: str) -> str:
    return "bash --noprofile --norc -s" if user == "root" else "sudo -n -- bash --noprofile --norc -s"


def _framed(script: str) -> bytes:
    """Read to its end before it runs, and nothing that it calls reads from it."""
    path = "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return f"{{ export LC_ALL=C {path}\n{script}\nexit; }} </dev/null\n".encode()


def _algorithms(pinned: str | None) -> list[str]:
    """A host has several keys: once one is pinned, only that one is asked for."""
    import asyncssh

    if pinned is None:
        return list(_OFFERED_ALGORITHMS)
    try:
        key = asyncssh.import_public_key(pinned)
    except asyncssh.KeyImportError as error:
        raise ProviderRejected("the host key that is given is no public key in OpenSSH's form") from error
    found = [name.decode() for name in key.sig_algorithms if name.decode() in _OFFERED_ALGORITHMS]
    if not found:
        raise ProviderRejected(f"the host key that is given is of a kind that no host shows: {pinned.split()[0]}")
    return found


def _client_factory(pinned: str | None, seen: list[str]) -> Callable[[], Any]:
    """Accepts the pinned key and no other; the first one where none is pinned, which is then in `seen`."""
    import asyncssh

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(self, host: str, addr: str, port: int, key: "SSHKey") -> bool:
            shown = plain_key(key)
            seen.append(shown)
            return pinned is None or plain_key(asyncssh.import_public_key(pinned)) == shown

    return Client


def plain_key(key: "SSHKey") -> str:
    """The key in OpenSSH's public form, without a comment."""
    return " ".join(key.export_public_key().decode().split()[:2])


def _code(link: Link, process: "SSHClientProcess[bytes]") -> int:
    """The exit status. None without a signal is a connection that was lost, not an end."""
    if process.exit_status is not None and process.exit_status >= 0:
        return process.exit_status
    if process.exit_signal is not None:
        return 128
    raise Ambiguous(f"the connection to {link.target.hostname} was lost before the command's end was known")


def _lost(link: Link, error: Exception) -> Ambiguous:
    return Ambiguous(f"the connection to {link.target.hostname} was lost: {str(error)[:300] or type(error).__name__}")


async def _socket(address: str, port: int) -> socket.socket:
    """A connected socket: how long that takes tells a host that is away from one that is slow."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, (address, port))
    except BaseException:
        link.close()
        raise
    return link


async def _all_of(reader: "SSHReader[bytes]", most_bytes: int) -> str:
    """What comes until the end; beyond the bound it is read and dropped."""
    kept = bytearray()
    while part := await reader.read(1 << 16):
        if len(kept) < most_bytes:
            kept += part
    return kept.decode("utf-8", "replace")


async def _jittered(delay: float) -> float:
    """Sleeps between half of the delay and all of it; the next one, doubled."""
    await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - no secret
    return min(delay * 2, 5.0)
