"""What comes before a request: heads of any size and speed, and workloads that hold the agents' socket."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn

from api import connections
from api.agent import create_agent_app
from api.app import create_app
from api.connections import CONNECTIONS_OF_A_WORKLOAD, HEAD_BYTES, AgentProtocol, BoundedProtocol
from api.services import Services
from tests.api.conftest import served

# In a process namespace of its own, as a workload is: connects, says how many connections stayed open, and waits.
_WORKLOAD = """
import socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for connection in held:
    connection.settimeout(20)
    connection.connect(sys.argv[1])
open_ones = 0
for connection in held:
    try:
        connection.sendall(b"GET /agent/v1/orders HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
        open_ones += connection.recv(1) != b""
    except OSError:
        pass
print(open_ones, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def port(services: Services) -> Iterator[int]:
    with served(create_app(services), http=BoundedProtocol, ws="none") as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def agent_socket(services: Services, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "agent.sock")
    config = uvicorn.Config(
        create_agent_app(services), uds=path, http=AgentProtocol, lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    _eventually(lambda: server.started)
    yield path
    server.should_exit = True
    thread.join(60)


def test_a_head_without_end_is_refused_at_its_bound_and_others_are_served_meanwhile(port: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as hostile:
        hostile.sendall(b"GET /healthz HTTP/1.1\r\nX-Endless: ")
        with pytest.raises(OSError):
            _flood(hostile, 64 * HEAD_BYTES)
    assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    "head",
    [b"X-Large: " + b"a" * (2 * HEAD_BYTES), b"".join(b"X-%d: y\r\n" % number for number in range(20_000))],
    ids=["one large header", "many headers"],
)
def test_a_head_that_is_too_large_gets_a_431_in_the_envelope(port: int, head: bytes) -> None:
    answer = _exchange(port, b"GET /healthz HTTP/1.1\r\n" + head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers_too_large"' in answer


def test_a_head_just_under_its_bound_is_served(port: int) -> None:
    head = b"GET /healthz HTTP/1.1\r\nConnection: close\r\nX-Large: " + b"a" * (HEAD_BYTES - 200) + b"\r\n\r\n"
    assert _exchange(port, head).startswith(b"HTTP/1.1 200 ")


def test_trailers_without_end_close_the_connection(port: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as hostile:
        hostile.sendall(b"POST /api/v1/compute/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ")
        with pytest.raises(OSError):
            _flood(hostile, 64 * HEAD_BYTES)


def test_a_body_in_chunks_of_one_byte_is_served(port: int) -> None:
    head = b"POST /api/v1/compute/jobs HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert _exchange(port, head + b"1\r\n{\r\n" * 50_000 + b"0\r\n\r\n").startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "], ids=["silence", "a slow head"])
def test_a_head_that_does_not_arrive_in_time_ends_the_connection(
    port: int, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    answer = _exchange(port, beginning)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer


def test_a_slow_head_behind_a_served_request_ends_the_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    answer = _exchange(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nX-Slow: ")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


def test_garbage_is_refused_in_the_envelope(port: int) -> None:
    answer = _exchange(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_http"' in answer


def test_a_workload_holds_no_more_than_its_connections_and_others_get_theirs(agent_socket: str) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no process namespaces here")
    wanted = str(CONNECTIONS_OF_A_WORKLOAD + 20)
    command = [*unshare, sys.executable, "-c", _WORKLOAD, agent_socket, wanted]
    hostile = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([*command[:-1], "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert hostile.stdout is not None
    assert other.stdout is not None
    try:
        assert int(hostile.stdout.readline()) == CONNECTIONS_OF_A_WORKLOAD
        assert int(other.stdout.readline()) == 3
    finally:
        hostile.communicate()
        other.communicate()
    # What it held is free again.
    again = subprocess.run([*command[:-1], "3"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert int(again.stdout) == 3


def test_a_process_of_this_machine_may_carry_many_agents(agent_socket: str) -> None:
    wanted = CONNECTIONS_OF_A_WORKLOAD + 20
    answer = subprocess.run(
        [sys.executable, "-c", _WORKLOAD, agent_socket, str(wanted)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) == wanted


def _exchange(port: int, request: bytes) -> bytes:
    """All that the server answers until it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
        answer = b""
        # It may be closed with bytes of ours unread; what was answered before counts.
        with suppress(ConnectionError):
            connection.sendall(request)
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
        return answer


def _flood(connection: socket.socket, size: int) -> None:
    for _ in range(size // HEAD_BYTES):
        connection.sendall(b"a" * HEAD_BYTES)
        time.sleep(0.01)


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
