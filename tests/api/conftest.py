"""A real server of the public API on loopback, for the clients that people use."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from hypothesis import settings as hypothesis_settings

from api.app import create_app
from api.services import Services
from domain.roles import Role
from settings import Settings
from store.access import NewKey
from store.db import Database
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

# How long an example takes depends on what else the machine does.
hypothesis_settings.register_profile("headrace", deadline=None)
hypothesis_settings.load_profile("headrace")

JOB: dict[str, Any] = {
    "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
    "container": {"image": "registry.example/app:1", "command": ["echo", "hi"]},
}
"""The smallest create request."""

PREFIX = "/api/v1/compute"


def anonymous(url: str) -> httpx.Response:
    """A request without a key. Patient: other tests use the machine too."""
    return httpx.get(url, timeout=60, trust_env=False)


class Api:
    """A client with a key, and what tests need of the server behind it."""

    def __init__(self, url: str, key: NewKey, services: Services) -> None:
        self.url, self.key, self.services = url, key, services
        self.client = self.with_token(key.token)
        self._numbers = iter(range(1_000_000))

    def with_token(self, token: str | None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url + PREFIX, headers=headers, timeout=60, trust_env=False)

    def create(self, body: Any = JOB, *, key: str | None = None, **headers: str) -> httpx.Response:
        headers["Idempotency-Key"] = key or f"key-{next(self._numbers)}"
        return self.client.post("/jobs", json=body, headers=headers)

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.client.get(path, params=parameters)

    def write(self, change: Callable[[Any], Any]) -> Any:
        return self.services.db.run_write(change)


@contextmanager
def served(app: FastAPI, **config: Any) -> Iterator[str]:
    """The URL of `app` on a free port, served by a thread with a loop of its own."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, access_log=False, **config))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    """SQLite, but for the modules that ask for both kinds: most of what is tested here is not the database's."""
    return sqlite_database


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, body_timeout_seconds=3)


@pytest.fixture
def services(database: Database, vault: Vault, clock: SettableClock, settings: Settings) -> Services:
    logs = LogStore(database, open_blob_store(settings.segment_url), clock)
    return Services(settings, database, vault, logs, clock)


@pytest.fixture
def api(services: Services, factory: Factory) -> Iterator[Api]:
    """A served API, and a member's client of the organization of the factory's rows."""
    key = factory.key(role=Role.MEMBER)
    with served(create_app(services)) as url:
        yield Api(url, key, services)
