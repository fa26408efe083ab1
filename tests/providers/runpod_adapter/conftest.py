"""A RunPod of its own for each test, its control, and an adapter at it."""

from collections.abc import AsyncIterator

import pytest

from providers.fake.control import CloudControl
from providers.runpod.provider import RunPodProvider
from tests.providers.runpod_fake.server import RunningRunPod, serve_runpod
from tests.providers.runpod_support import make_runpod


@pytest.fixture
async def runpod() -> AsyncIterator[RunningRunPod]:
    async with serve_runpod() as running:
        yield running


@pytest.fixture
async def control(runpod: RunningRunPod) -> AsyncIterator[CloudControl]:
    control = CloudControl(runpod.url)
    await control.script(never_hello=True)
    yield control
    await control.close()


@pytest.fixture
async def provider(runpod: RunningRunPod, control: CloudControl) -> AsyncIterator[RunPodProvider]:
    provider = make_runpod(runpod)
    yield provider
    await provider.close()
