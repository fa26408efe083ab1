"""The command run in this process, against a real API server on a real database, and small broken servers."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import cli
from api.app import create_app
from api.services import Services
from domain.clock import utc_now
from domain.roles import Role
from settings import Settings
from store.db import Database
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Headrace = Callable[..., Result]


@pytest.fixture
def headrace(capfd: pytest.CaptureFixture[str]) -> Headrace:
    """Runs `headrace` with the given words."""

    def run(*words: object) -> Result:
        capfd.readouterr()
        code = cli.run([str(word) for word in words])
        out, err = capfd.readouterr()
        return Result(int(code), out, err)

    return run


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the credentials of whoever runs it."""
    for name in ("HEADRACE_API_URL", "HEADRACE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_DATA_DIR", str(tmp_path / "no-stack-here"))


class Server:
    """The public API over an SQLite database, without a worker: tests move the jobs themselves."""

    def __init__(self, url: str, services: Services, token: str) -> None:
        self.url, self.services, self.token = url, services, token

    def write(self, change: Callable[[Any], Any]) -> Any:
        return self.services.db.run_write(change)


@pytest.fixture
def server(
    sqlite_database: Database, vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """A served API, to which the environment's HEADRACE_API_URL and HEADRACE_API_KEY lead."""
    settings = Settings(data_dir=tmp_path)
    logs = LogStore(sqlite_database, open_blob_store(settings.segment_url), utc_now)
    services = Services(settings, sqlite_database, vault, logs, utc_now)
    key = Factory(sqlite_database, SettableClock(), vault).key(role=Role.MEMBER)
    with _served(services) as url:
        monkeypatch.setenv("HEADRACE_API_URL", url)
        monkeypatch.setenv("HEADRACE_API_KEY", key.token)
        yield Server(url, services, key.token)


@contextmanager
def _served(services: Services) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(create_app(services), port=0, lifespan="off", log_config=None, access_log=False)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def answering(status: int, body: bytes, content_type: str = "application/json") -> Iterator[str]:
    """The URL of a server that answers everything in one way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
