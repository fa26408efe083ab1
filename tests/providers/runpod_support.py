"""RunPod for tests: the fake server, its control, and adapters at it that look again soon."""

from collections.abc import Callable
from typing import Any

from pydantic import SecretStr

from providers.base import ProviderContext
from providers.runpod.credentials import RunPodCredentials
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import OWNER
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod

MakeRunPod = Callable[..., RunPodProvider]

IMPATIENT: dict[str, Any] = {
    "timeout_seconds": 60,
    "offers_seconds": 0,
    "look_pause_seconds": 0.01,
    "visibility_lag_seconds": 0,
    "poll_seconds": 0.02,
    "log_after_seconds": 0.05,
    "log_idle_seconds": 0.2,
}


def make_runpod(
    running: RunningRunPod,
    owner_id: str = OWNER,
    *,
    key: str = API_KEY,
    community: bool = False,
    **options: Any,
) -> RunPodProvider:
    context = ProviderContext("conn-runpod", owner_id, "/nonexistent", {**IMPATIENT, **options})
    credentials = RunPodCredentials(api_key=SecretStr(key), include_community=community)
    return RunPodProvider(context, credentials, running.endpoints)
