"""HTTP before a simulated cloud, on 127.0.0.1: what it answers, and the ways in which an answer is lost on its way."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Generic, Protocol, TypeVar

_Call = TypeVar("_Call")


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Fault(Generic[_Call]):
    """What happens to the next call of `operation`: `before` answers in its stead, `spoil` changes its answer, `loss`
    is a way to lose it: `truncated`, `cut`, `reset`, `timeout`, `html_502`, `internal`, `unavailable`."""

    operation: str
    before: Callable[[_Call], Answer] | None = None
    spoil: Callable[[_Call, Answer], Answer] | None = None
    loss: str | None = None


class Cloud(Protocol):
    """What is served. It is called from many threads."""

    silent_seconds: float
    """How long an answer takes that is lost by `timeout`."""

    def take(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[Answer, str | None]:
        """The answer, and the way to lose it."""
        ...

    def unwell(self, way: str) -> Answer:
        """How the cloud says that it is `internal`ly broken, or `unavailable`."""
        ...


def due(faults: list[Fault[_Call]], operation: str) -> Fault[_Call] | None:
    """The first fault that waits for the operation, taken off the list."""
    fault = next((f for f in faults if f.operation == operation), None)
    if fault is not None:
        faults.remove(fault)
    return fault


@contextlib.contextmanager
def serving(cloud: Cloud) -> Iterator[str]:
    """The URL at which the cloud answers."""
    handler = type("Handler", (_Handler,), {"cloud": cloud})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: the second would wait for 40 ms until the first is acknowledged.
    disable_nagle_algorithm = True
    cloud: Cloud

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answer, loss = self.cloud.take(self.command, self.path, dict(self.headers.items()), body)
        with contextlib.suppress(ConnectionError):
            self._send(*self._lost(answer, loss))

    do_POST = do_DELETE = do_GET

    def _lost(self, answer: Answer, loss: str | None) -> tuple[Answer, str | None]:
        match loss:
            case "truncated":
                return Answer(200, answer.body[: len(answer.body) // 2], answer.headers), None
            case "html_502":
                return Answer(502, b"<html><body>502 Bad Gateway</body></html>", {"Content-Type": "text/html"}), None
            case "internal" | "unavailable":
                return self.cloud.unwell(loss), None
            case "timeout":
                time.sleep(self.cloud.silent_seconds)
        return answer, loss

    def _send(self, answer: Answer, loss: str | None) -> None:
        if loss == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if loss == "cut" else answer.body)
        if loss == "cut":
            self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is part of the tests."""
