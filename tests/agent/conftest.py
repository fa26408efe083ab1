"""A site for each test: SQLite, a vault, the agent routes on a Unix socket."""

from collections.abc import AsyncIterator

import pytest

from store.db import Database
from store.vault import Vault
from tests.agent.site import Site, open_site


@pytest.fixture
async def site(sqlite_database: Database, vault: Vault) -> AsyncIterator[Site]:
    async with open_site(sqlite_database, vault) as opened:
        yield opened
