"""RunPod for tests: adapters at the fake that look again soon, and what they are asked to create."""

from collections.abc import Callable
from typing import Any

from pydantic import SecretStr

from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest, RegistryCredential
from providers.base import (
    AgentBootstrap,
    InstanceSpec,
    OfferQuery,
    ProviderContext,
)
from providers.runpod.credentials import RunPodCredentials
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import OWNER, PASSWORD, TOKEN
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod

MakeRunPod = Callable[..., RunPodProvider]

RTX_4090 = "nvidia-rtx-4090-24gb"
LOGIN = RegistryCredential(username="robot", password=SecretStr(PASSWORD))
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
    min_cuda_version: str | None = None,
    **options: Any,
) -> RunPodProvider:
    context = ProviderContext("conn-runpod", owner_id, "/nonexistent", {**IMPATIENT, **options})
    credentials = RunPodCredentials(
        api_key=SecretStr(key), include_community=community, min_cuda_version=min_cuda_version
    )
    return RunPodProvider(context, credentials, running.endpoints)


def make_spec(**changes: Any) -> InstanceSpec:
    values: dict[str, Any] = {
        "attempt_id": new_attempt_id(),
        "owner_id": OWNER,
        "job_id": "job",
        "org_id": "org",
        "image": "pytorch/pytorch:2.8.0",
        "compute": ComputeRequest(accelerator=RTX_4090, gpu_count=1, ephemeral_disk_gb=20),
        "agent": AgentBootstrap(script="exec sleep 600\n", token=SecretStr(TOKEN), url="https://headrace.example"),
        **changes,
    }
    return InstanceSpec(**values)


async def offer_of(provider: RunPodProvider, *, spot: bool = False, region: str | None = None) -> Offer:
    offers = await provider.offers(OfferQuery(RTX_4090, 1))
    return next(o for o in offers if o.spot is spot and region in (None, o.region) and o.available)
