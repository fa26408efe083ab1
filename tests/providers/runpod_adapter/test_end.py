"""When a pod is gone, and when it only looks like it."""

import contextlib

import httpx
import pytest

from domain.errors import (
    Ambiguous,
    ProviderRejected,
)
from providers.base import (
    ProviderState,
    TerminateState,
)
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import OWNER, no_progress, until_gone
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import LOGIN, make_runpod, make_spec, offer_of


class TestEnd:
    async def test_a_stopped_spot_pod_was_interrupted_and_states_no_price(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        spec = make_spec()
        handle = await provider.provision(
            await provider.create(spec, await offer_of(provider, spot=True)), spec, no_progress
        )
        await control.interrupt(spec.attempt_id)
        view = await provider.get(handle)
        assert view is not None
        assert (view.state, view.price_usd_hr) == (ProviderState.INTERRUPTED, None)
        await until_gone(provider, handle)

    async def test_a_refused_terminate_is_an_error_and_can_be_repeated(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        handle = await provider.create(make_spec(), await offer_of(provider))
        await control.fault("delete", Answer.DELETE_REFUSED)
        with pytest.raises(ProviderRejected):
            await provider.terminate(handle)
        assert await provider.terminate(handle) is TerminateState.GONE

    async def test_a_sweep_finds_and_ends_all_that_lost_creates_left(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        provider = make_runpod(runpod)
        offer = await offer_of(provider)
        for number in range(8):
            if number % 2:
                await control.fault("create", Answer.RESET, stage="after")
            spec = make_spec(registry=LOGIN if number % 3 else None)
            with pytest.raises(Ambiguous) if number % 2 else contextlib.nullcontext():
                await provider.create(spec, offer)
        await provider.close()
        sweeper = make_runpod(runpod)
        views = await sweeper.list_owned()
        assert len(views) == 8
        for view in views:
            await until_gone(sweeper, view.handle)
        assert await control.alive() == []
        await sweeper.close()

    async def test_pods_of_people_are_not_ours(self, provider: RunPodProvider, runpod: RunningRunPod) -> None:
        async with httpx.AsyncClient() as client:
            body = {"name": f"{OWNER}-notebook", "image": "y", "gpu": {"id": "NVIDIA GeForce RTX 4090"}}
            headers = {"authorization": f"Bearer {API_KEY}"}
            (await client.post(f"{runpod.url}/v2/pods", json=body, headers=headers)).raise_for_status()
        assert await provider.list_owned() == []

    async def test_an_unknown_field_is_refused_by_the_fake_as_by_the_vendor(self, runpod: RunningRunPod) -> None:
        async with httpx.AsyncClient() as client:
            body = {"name": "x", "image": "y", "gpu": {"id": "z"}, "cloudType": "SECURE"}
            headers = {"authorization": f"Bearer {API_KEY}"}
            answer = await client.post(f"{runpod.url}/v2/pods", json=body, headers=headers)
        assert answer.status_code == 422
        assert "cloudType" in answer.json()["errors"][0]
