"""What a connection may cost before a request is there: the bytes and the time of its head, and how many connections
one workload may hold.

The server reads heads of any size, for as long as they take, and what it reads of one value it copies again and again:
one client without a key could stop everybody's requests.
"""

import asyncio
import os
import socket
import struct
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import envelope
from domain.ids import new_id

HEAD_BYTES = 64 * 1024
"""Of a request's line and headers; also of what frames its body, such as chunk sizes and trailers."""
HEAD_SECONDS = 15.0
"""From the connection, or the first byte of a later request, to the end of its headers."""
CONNECTIONS_OF_A_WORKLOAD = 32
"""An agent needs two: one for its poll, one to send."""

# A body in chunks of one byte has five bytes around each of them.
_FRAMING_PER_BODY_BYTE = 8
_PEER_CREDENTIALS = struct.Struct("3i")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with bounds on what comes before and around bodies. Bodies are `api.limits`'s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._framing_bytes = 0
        self._body_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > HEAD_BYTES + _FRAMING_PER_BODY_BYTE * self._body_bytes:
            self._refuse(431, "headers_too_large", f"the request's line and headers are larger than {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing_bytes = self._body_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", msg[:1].lower() + msg[1:].rstrip("."))

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._refuse(408, "request_timeout", f"the request's headers did not arrive within {HEAD_SECONDS:g} seconds")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Ends the connection; with an answer, unless one is under way already."""
        if self.transport.is_closing():
            return
        answering = bool(self.cycle) and not self.cycle.response_complete
        if not answering:
            body = bytes(envelope(status, code, message, new_id("req")).body)
            head = (
                f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class AgentProtocol(BoundedProtocol):
    """For the agents' Unix socket, which workloads reach: none of them may hold so much that others find no room."""

    _held: ClassVar[Counter[int]] = Counter()
    """Open connections by workload, of this process: it serves one such socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._workload = workload_of(transport.get_extra_info("socket"))
        if self._workload is None:
            return
        self._held[self._workload] += 1
        if self._held[self._workload] > CONNECTIONS_OF_A_WORKLOAD:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._workload is not None:
            self._held[self._workload] -= 1
            if self._held[self._workload] <= 0:
                del self._held[self._workload]


def workload_of(peer: socket.socket) -> int | None:
    """The workload at the other end of a Unix socket, by its process namespace; None for a process of this machine's
    own, such as an SSH server that carries many agents, and where the peer cannot be seen.

    A peer that ended meanwhile counts as one workload with all others that did: an agent waits for its answer.
    """
    pid, _, _ = _PEER_CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size))
    if pid == 0:
        return None
    try:
        namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0
    return None if namespace == os.stat("/proc/self/ns/pid").st_ino else namespace
