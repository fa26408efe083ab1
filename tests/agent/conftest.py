"""A site for each test: SQLite, a vault, the agent routes on a Unix socket. And a machine, with what it talks to."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from store.db import Database
from store.vault import Vault
from tests.agent.machine import Machine, Plane, open_plane
from tests.agent.site import Site, by_tcp, open_site


@pytest.fixture
async def site(sqlite_database: Database, vault: Vault) -> AsyncIterator[Site]:
    async with open_site(sqlite_database, vault) as opened:
        yield opened


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    """The agent routes by TCP."""
    async with by_tcp(site) as address:
        yield address


@pytest.fixture
def plane() -> Iterator[Plane]:
    with open_plane() as opened:
        yield opened


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
