"""The control plane against the fake cloud and a real Temporal server; invariants are asserted after every test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from providers.fake.cloud import CloudSettings
from providers.fake.server import RunningCloud, serve
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.invariants import assert_invariants
from tests.support.temporal import running_dev_server


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    """One dev server for each test process."""
    with running_dev_server() as address:
        yield address


@pytest.fixture
async def cloud() -> AsyncIterator[RunningCloud]:
    async with serve(CloudSettings()) as running:
        yield running


@pytest.fixture
async def plane(sqlite_url: str, temporal_address: str, cloud: RunningCloud) -> AsyncIterator[ControlPlane]:
    """A control plane on SQLite with the fake cloud as its only backend."""
    async with control_plane(sqlite_url, temporal_address, cloud_url=cloud.url) as running:
        yield running
        await assert_invariants(running)
