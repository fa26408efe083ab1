"""Credentials of private images: made before the pod, deleted after it."""

import json

import pytest

from domain.errors import (
    Ambiguous,
    NoCapacity,
)
from providers.base import (
    TerminateState,
)
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import PASSWORD, assert_holds_no_secret, until_gone
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import LOGIN, make_spec, offer_of


class TestPrivateImages:
    async def test_the_credential_is_made_first_and_goes_with_its_pod(
        self, provider: RunPodProvider, control: CloudControl, runpod: RunningRunPod
    ) -> None:
        for spot in (False, True):
            spec = make_spec(registry=LOGIN)
            handle = await provider.create(spec, await offer_of(provider, spot=spot))
            (registry,) = runpod.account.registries()
            assert handle.data["registry"] == registry.id
            assert runpod.account.pods[handle.provider_id].registry == registry.id
            assert [v.handle.resource_type for v in await provider.list_owned()] == ["pod"]
            await until_gone(provider, handle)
            assert await control.alive() == []

    async def test_the_password_is_in_no_other_request_and_no_handle(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        handle = await provider.create(make_spec(registry=LOGIN), await offer_of(provider))
        assert_holds_no_secret(handle)
        assert json.dumps(PASSWORD)[1:-1] not in json.dumps(runpod.account.requests)

    async def test_a_refused_create_takes_its_credential_back(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        offer = await offer_of(provider)
        await control.fault("create", Answer.NO_CAPACITY)
        with pytest.raises(NoCapacity):
            await provider.create(make_spec(registry=LOGIN), offer)
        assert await control.alive() == []

    async def test_a_credential_whose_answer_was_lost_is_used_by_the_next_try(
        self, provider: RunPodProvider, control: CloudControl, runpod: RunningRunPod
    ) -> None:
        spec, offer = make_spec(registry=LOGIN), await offer_of(provider)
        runpod.account.registry_answer = Answer.INTERNAL
        with pytest.raises(Ambiguous):
            await provider.create(spec, offer)
        assert await provider.find(spec.attempt_id) == []
        handle = await provider.create(spec, offer)
        assert [r.id for r in runpod.account.registries()] == [handle.data["registry"]]

    async def test_a_credential_that_was_left_alone_is_listed_and_can_be_deleted(
        self, provider: RunPodProvider, control: CloudControl, runpod: RunningRunPod
    ) -> None:
        spec, offer = make_spec(registry=LOGIN), await offer_of(provider)
        runpod.account.registry_answer = Answer.INTERNAL
        with pytest.raises(Ambiguous):
            await provider.create(spec, offer)
        (view,) = await provider.list_owned()
        assert view.attempt_id == spec.attempt_id
        assert await provider.get(view.handle) is not None
        assert (await provider.logs(view.handle, None)).text == ""
        assert await provider.terminate(view.handle) is TerminateState.GONE
        assert await provider.terminate(view.handle) is TerminateState.GONE
        assert await provider.get(view.handle) is None
        assert await control.alive() == []

    async def test_a_credential_stays_as_long_as_its_pod(
        self, provider: RunPodProvider, control: CloudControl, runpod: RunningRunPod
    ) -> None:
        handle = await provider.create(make_spec(registry=LOGIN), await offer_of(provider))
        await control.fault("delete", linger_calls=4)
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        assert len(runpod.account.registries()) == 1
        await until_gone(provider, handle)
        assert await control.alive() == []

    async def test_a_pod_that_is_found_again_knows_its_credential(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        spec = make_spec(registry=LOGIN)
        await provider.create(spec, await offer_of(provider))
        (found,) = await provider.find(spec.attempt_id)
        await until_gone(provider, found)
        assert await control.alive() == []
