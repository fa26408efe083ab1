"""An API that serves the codec, and a factory for keys to use it with."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.codec import router
from api.rate_limits import RateLimits
from domain.clock import Clock
from settings import Settings
from store.db import Database
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

UI_ORIGIN = "http://127.0.0.1:8233"


@dataclass
class Services:
    """What the codec needs of the API's services."""

    settings: Settings
    db: Database
    vault: Vault
    clock: Clock
    rate_limits: RateLimits = field(
        default_factory=lambda: RateLimits(
            per_second=0, burst=1, failures_per_second=1, failures_burst=20, monotonic=lambda: 0
        )
    )


@pytest.fixture
def services(sqlite_database: Database, clock: SettableClock, vault: Vault, tmp_path: Path) -> Services:
    settings = Settings(data_dir=tmp_path, temporal_ui_url=f"{UI_ORIGIN}/namespaces/default")
    return Services(settings, sqlite_database, vault, clock)


@pytest.fixture
def keys(sqlite_database: Database, clock: SettableClock, vault: Vault) -> Factory:
    """Makes keys in the database of `services`."""
    return Factory(sqlite_database, clock, vault)


@pytest.fixture
def codec_app(services: Services) -> FastAPI:
    app = FastAPI()
    app.state.services = services
    app.include_router(router)
    return app


@pytest.fixture
async def client(codec_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(codec_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        yield client
