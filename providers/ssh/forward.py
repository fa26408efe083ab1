"""The way from a host to the agent's socket of the control plane: a socket on the host, forwarded by its connection.

Its path is the same for one control plane whatever connection serves it, so agents that lost it only try again. Several
workers may serve one host: each looks whether an answer comes through, and takes the path over only when none does.

Every workload on the host can connect to it, as often as it likes. Each connection is one here too: they are bounded.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from domain.errors import Ambiguous, ProviderError
from providers.ssh import scripts
from providers.ssh.link import Link

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection, SSHListener

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 5.0
_SECONDS = 30.0
_QUESTION = b"GET / HTTP/1.1\r\nHost: headrace\r\nConnection: close\r\n\r\n"


class Forward:
    """The forwarded socket of one host, kept alive from the first `ensure` on until `close`."""

    def __init__(self, link: Link, path: str, every_seconds: float, most: int = 128) -> None:
        """`most` connections at once; an agent has three."""
        self.path = path
        self._most = most
        self._link = link
        self._every_seconds = every_seconds
        self._target: str | None = None
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._served_by: SSHClientConnection | None = None
        self._listener: SSHListener | None = None

    def watch(self, target: str) -> None:
        """From now on, in the background, as `ensure`."""
        self._target = target
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())

    async def ensure(self, target: str) -> None:
        """An answer of the control plane's socket at `target` comes through, and will again after a cut.

        Raises:
            ProviderError: the host cannot be reached, or does not permit the forward.
        """
        self.watch(target)
        connection = await self._link.connection()
        if connection is not self._served_by:
            await self._serve(target)

    async def close(self) -> None:
        """Ends with the connection; the socket's file stays until somebody takes it over."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None

    async def _keep(self) -> None:
        while True:
            assert self._target is not None
            try:
                await self._serve(self._target)
            except ProviderError as error:
                _LOG.warning("agents on %s do not reach the control plane: %s", self._link.target.hostname, error)
            except Exception:
                _LOG.exception("the forward to %s failed", self._link.target.hostname)
            await asyncio.sleep(self._every_seconds)

    async def _serve(self, target: str) -> None:
        import asyncssh

        async with self._lock:
            connection = await self._link.connection()
            if not await _answers_here(target):
                # The control plane's own end is away: a forward to it is no better for being made again.
                if connection is self._served_by:
                    return
            elif await _answers(connection, self.path):
                self._served_by = connection
                return
            if self._listener is not None:
                # Before the file is removed: the end of a listener takes its file with it.
                self._listener.close()
                await self._listener.wait_closed()
                self._listener = None
            cleared = await self._link.run(scripts.clear_socket(self.path), timeout=_SECONDS)
            if cleared.returncode != 0:
                raise Ambiguous(f"{self._link.target.hostname} keeps an old socket: {cleared.last_line}")
            try:
                async with asyncio.timeout(_SECONDS):
                    self._listener = await connection.create_unix_server(ways(target, self._most), self.path)
            except (asyncssh.ChannelListenError, asyncssh.Error, OSError) as error:
                raise Ambiguous(
                    f"{self._link.target.hostname} does not forward the agent's socket (AllowStreamLocalForwarding, "
                    f"and AllowTcpForwarding, have to be `yes`): {str(error)[:200]}"
                ) from error
            self._served_by = connection


def ways(target: str, most: int) -> Callable[[], Any]:
    """What makes of a connection on the host one to the socket at `target`, of at most `most` at once."""
    import asyncssh
    from asyncssh.forward import SSHForwarder

    opened: set[SSHForwarder] = set()
    opening = 0

    class Way(SSHForwarder):
        def close(self) -> None:
            opened.discard(self)
            super().close()

    async def way() -> SSHForwarder:
        nonlocal opening
        if len(opened) + opening >= most:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, f"{most} connections are open")
        opening += 1
        try:
            _, peer = await asyncio.get_running_loop().create_unix_connection(SSHForwarder, target)
        except OSError as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from None
        finally:
            opening -= 1
        opened.add(found := Way(peer))
        return found

    return way


async def _answers(connection: "SSHClientConnection", path: str) -> bool:
    """Whether an HTTP answer comes from the socket on the host; no program of the host is needed for that."""
    import asyncssh

    with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reader, writer = await connection.open_unix_connection(path, encoding=None)
            try:
                writer.write(_QUESTION)
                return bool((await reader.read(5)).startswith(b"HTTP/"))
            finally:
                writer.close()
    return False


async def _answers_here(path: str) -> bool:
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(_QUESTION)
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
    return False
