"""The field's known failures at the provider's edge: lost creates, half-made machines, deletes that lie, prices."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from decimal import Decimal

import pytest
from pydantic import SecretStr

from domain.errors import BootstrapFailed, NoCapacity, PermissionDenied, ProviderError, RateLimited
from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest
from providers.base import AgentBootstrap, InstanceSpec, OfferQuery, Provider, ProviderState, TerminateState
from providers.fake.cloud import CloudOffer
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from tests.providers.conformance import OWNER, TOKEN, MakeProvider, no_progress, until_gone

HOUR = 3600


@pytest.fixture
async def provider(make_fake_provider: MakeProvider) -> AsyncIterator[Provider]:
    provider = make_fake_provider(OWNER)
    yield provider
    await provider.close()


def new_spec() -> InstanceSpec:
    return InstanceSpec(
        attempt_id=new_attempt_id(), owner_id=OWNER, job_id="job_1", org_id="org_1", image="image",
        compute=ComputeRequest(accelerator="cpu-general", gpu_count=0, ephemeral_disk_gb=1),
        agent=AgentBootstrap(script="", token=SecretStr(TOKEN), url="http://127.0.0.1:9"),
    )  # fmt: skip


async def offer_of(provider: Provider, name: str = "cpu") -> Offer:
    return next(offer for offer in await provider.offers(OfferQuery()) if offer.id == name)


async def living(control: CloudControl, spec: InstanceSpec) -> int:
    return sum(not instance["gone"] for instance in await control.instances(spec.attempt_id))


@pytest.mark.parametrize("dedupe", ["none", "same", "conflict"])
class TestAWorkerThatDiesInCreate:
    """Its last call was done by the cloud, and the answer reached nobody."""

    async def _die(self, make_provider: MakeProvider, control: CloudControl, spec: InstanceSpec, hidden: int) -> None:
        await control.fault("create", delay_after_seconds=0.5, hide_calls=hidden)
        worker = make_provider(OWNER)
        call = asyncio.create_task(worker.create(spec, await offer_of(worker)))
        deadline = time.monotonic() + 10
        while not await living(control, spec):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        await worker.close()

    async def test_the_next_one_adopts_by_find(
        self, provider: Provider, make_fake_provider: MakeProvider, control: CloudControl, dedupe: str
    ) -> None:
        await control.settings(dedupe=dedupe)
        spec = new_spec()
        await self._die(make_fake_provider, control, spec, hidden=2)
        (handle,) = await provider.find(spec.attempt_id)
        assert (await provider.create(spec, await offer_of(provider))).provider_id == handle.provider_id
        assert await living(control, spec) == 1

    async def test_the_next_one_adopts_by_create(
        self, provider: Provider, make_fake_provider: MakeProvider, control: CloudControl, dedupe: str
    ) -> None:
        await control.settings(dedupe=dedupe)
        spec = new_spec()
        await self._die(make_fake_provider, control, spec, hidden=0)
        handle = await provider.create(spec, await offer_of(provider))
        assert [h.provider_id for h in await provider.find(spec.attempt_id)] == [handle.provider_id]
        assert await living(control, spec) == 1

    async def test_creates_of_one_attempt_at_the_same_time_make_one_instance(
        self, provider: Provider, make_fake_provider: MakeProvider, control: CloudControl, dedupe: str
    ) -> None:
        await control.settings(dedupe=dedupe)
        spec, offer = new_spec(), await offer_of(provider)
        handles = await asyncio.gather(*(provider.create(spec, offer) for _ in range(5)))
        assert len({handle.provider_id for handle in handles}) == 1
        assert await living(control, spec) == 1


class TestNameConflict:
    async def test_a_conflict_with_an_instance_that_stays_hidden_is_ambiguous_and_later_adopted(
        self, provider: Provider, control: CloudControl
    ) -> None:
        await control.settings(dedupe="conflict")
        spec, offer = new_spec(), await offer_of(provider)
        await control.fault("create", Answer.RESET, stage="after", hide_calls=9)
        outcomes: list[str] = []
        while not outcomes or outcomes[-1] == "ambiguous":
            try:
                handle = await provider.create(spec, offer)
                outcomes.append(handle.provider_id)
            except ProviderError as error:
                outcomes.append(error.kind)
        assert outcomes.count("ambiguous") >= 2
        assert await living(control, spec) == 1


class TestSubResources:
    async def test_what_a_refused_create_left_appears_late_and_is_swept(
        self, provider: Provider, control: CloudControl
    ) -> None:
        await control.settings(sub_resource_lag_seconds=2)
        await control.fault("create", Answer.NO_CAPACITY, stage="resources")
        spec = new_spec()
        with pytest.raises(NoCapacity):
            await provider.create(spec, await offer_of(provider, "h100"))
        assert await provider.list_owned() == []
        await control.advance(2)
        left = await provider.list_owned()
        assert sorted(view.handle.resource_type for view in left) == ["disk", "nic"]
        assert {view.attempt_id for view in left} == {spec.attempt_id}
        for view in left:
            assert await provider.terminate(view.handle) is TerminateState.GONE
        assert await control.alive() == []

    async def test_what_a_refused_create_left_is_never_taken_for_the_instance(
        self, provider: Provider, control: CloudControl
    ) -> None:
        await control.fault("create", Answer.NO_CAPACITY, stage="resources")
        spec = new_spec()
        with pytest.raises(NoCapacity):
            await provider.create(spec, await offer_of(provider, "h100"))
        assert await provider.find(spec.attempt_id) == []

    async def test_a_retry_of_the_attempt_uses_what_is_left_and_ends_without_a_trace(
        self, provider: Provider, control: CloudControl
    ) -> None:
        await control.settings(sub_resource_lag_seconds=2)
        await control.fault("create", Answer.NO_CAPACITY, stage="resources")
        spec, offer = new_spec(), await offer_of(provider, "h100")
        with pytest.raises(NoCapacity):
            await provider.create(spec, offer)
        handle = await provider.create(spec, offer)
        assert len(await control.alive()) == 3
        assert len(await provider.list_owned()) == 1
        await until_gone(provider, handle)
        assert await control.alive() == []

    async def test_an_instance_that_lingers_takes_its_sub_resources_with_it(
        self, provider: Provider, control: CloudControl
    ) -> None:
        handle = await provider.create(new_spec(), await offer_of(provider, "h100"))
        await control.fault("delete", linger_calls=2)
        await until_gone(provider, handle)
        assert await control.alive() == []

    async def test_an_instance_that_vanished_leaves_sub_resources_that_the_list_shows(
        self, provider: Provider, control: CloudControl
    ) -> None:
        spec = new_spec()
        handle = await provider.create(spec, await offer_of(provider, "h100"))
        await control.vanish(spec.attempt_id)
        assert sorted(v.handle.resource_type for v in await provider.list_owned()) == ["disk", "nic"]
        await until_gone(provider, handle)
        assert await control.alive() == []


class TestDeleteAnswers:
    """Confirmed gone, retry, or needs a person: by what the cloud says, checked against what it shows."""

    async def test_discontinued_and_not_listed_is_gone(self, provider: Provider, control: CloudControl) -> None:
        handle = await provider.create(new_spec(), await offer_of(provider))
        await control.fault("delete", Answer.DISCONTINUED, stage="after")
        assert await provider.terminate(handle) is TerminateState.GONE

    async def test_discontinued_and_still_listed_is_not_gone(self, provider: Provider, control: CloudControl) -> None:
        spec = new_spec()
        handle = await provider.create(spec, await offer_of(provider))
        await control.fault("delete", Answer.DISCONTINUED)
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        assert await living(control, spec) == 1

    async def test_a_refusal_during_a_minimum_reservation_asks_for_a_retry(
        self, provider: Provider, control: CloudControl
    ) -> None:
        handle = await provider.create(new_spec(), await offer_of(provider))
        await control.fault("delete", Answer.DELETE_REFUSED, times=3, retry_after_seconds=60)
        for _ in range(3):
            with pytest.raises(RateLimited) as caught:
                await provider.terminate(handle)
            assert caught.value.retry_after_seconds == 60
        assert await provider.terminate(handle) is TerminateState.GONE

    async def test_a_missing_permission_needs_a_person(self, provider: Provider, control: CloudControl) -> None:
        handle = await provider.create(new_spec(), await offer_of(provider))
        await control.fault("delete", Answer.PERMISSION)
        with pytest.raises(PermissionDenied):
            await provider.terminate(handle)

    async def test_the_cost_runs_until_the_instance_is_gone(self, provider: Provider, control: CloudControl) -> None:
        handle = await provider.create(new_spec(), await offer_of(provider))
        await control.fault("delete", linger_seconds=HOUR, times=None)
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        await control.advance(HOUR / 2)
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        assert float(await control.charged()) == pytest.approx(0.18, abs=0.01)

    async def test_a_stopping_machine_is_not_gone(self, provider: Provider, control: CloudControl) -> None:
        await control.settings(stopping_seconds=0.3)
        handle = await provider.create(new_spec(), await offer_of(provider))
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        view = await provider.get(handle)
        assert view is not None
        assert view.state is ProviderState.STOPPING
        await until_gone(provider, handle)

    async def test_a_deleted_machine_that_is_listed_as_terminated_is_gone(
        self, provider: Provider, control: CloudControl
    ) -> None:
        await control.settings(tombstone_seconds=HOUR)
        spec = new_spec()
        handle = await provider.create(spec, await offer_of(provider))
        assert await provider.terminate(handle) is TerminateState.GONE
        view = await provider.get(handle)
        assert view is not None
        assert view.state is ProviderState.GONE
        assert await provider.find(spec.attempt_id) == []


class TestPrices:
    async def test_the_price_in_the_create_answer_is_the_handles(
        self, provider: Provider, control: CloudControl
    ) -> None:
        await control.fault("create", price_usd_hr=Decimal("9.99"))
        offer = await offer_of(provider)
        handle = await provider.create(new_spec(), offer)
        assert (offer.price_usd_hr, handle.price_usd_hr) == (Decimal("0.36"), Decimal("9.99"))

    async def test_a_price_change_shows_and_an_offer_that_vanishes_changes_nothing_for_the_living(
        self, provider: Provider, control: CloudControl
    ) -> None:
        spec, offer = new_spec(), await offer_of(provider)
        await control.fault("create", price_usd_hr=Decimal("2.00"))
        handle = await provider.create(spec, offer)
        await control.advance(HOUR / 2)
        await control.set_price(spec.attempt_id, "3.00")
        await control.offers()
        await control.advance(HOUR / 2)
        view = await provider.get(handle)
        assert view is not None
        assert view.price_usd_hr == Decimal("3.00")
        assert float(await control.charged()) == pytest.approx(2.50, abs=0.01)
        with pytest.raises(NoCapacity):
            await provider.create(new_spec(), offer)

    async def test_an_interrupted_instance_is_charged_no_longer(
        self, provider: Provider, control: CloudControl
    ) -> None:
        spec = new_spec()
        await provider.create(spec, await offer_of(provider))
        await control.advance(HOUR)
        await control.interrupt(spec.attempt_id)
        before = await control.charged()
        await control.advance(HOUR)
        assert await control.charged() == before
        assert float(before) == pytest.approx(0.36, abs=0.01)


class TestCapacity:
    async def test_an_offer_is_had_as_often_as_its_capacity_allows(
        self, provider: Provider, control: CloudControl
    ) -> None:
        scarce = CloudOffer(
            id="one", accelerator="cpu-general", gpu_count=0, price_usd_hr=Decimal("1"), capacity=1, unit_seconds=60
        )
        await control.offers(scarce)
        offer = await offer_of(provider, "one")
        assert (offer.available, offer.pricing_model.unit_seconds) == (True, 60)
        handle = await provider.create(new_spec(), offer)
        assert not (await offer_of(provider, "one")).available
        with pytest.raises(NoCapacity):
            await provider.create(new_spec(), offer)
        await until_gone(provider, handle)
        assert (await offer_of(provider, "one")).available


class TestBoot:
    async def test_a_slow_boot_is_followed_with_progress(self, provider: Provider, control: CloudControl) -> None:
        await control.settings(pending_seconds=0.1, starting_seconds=0.1)
        lines: list[str] = []

        async def progress(line: str) -> None:
            lines.append(line.rpartition(" ")[2])

        spec = new_spec()
        await provider.provision(await provider.create(spec, await offer_of(provider)), spec, progress)
        assert lines == ["pending", "starting", "running"]

    async def test_a_boot_without_end_ends_at_its_bound(
        self, control: CloudControl, make_fake_provider: Callable[..., Provider]
    ) -> None:
        await control.settings(pending_seconds=HOUR)
        provider, spec = make_fake_provider(boot_seconds=0.05), new_spec()
        handle = await provider.create(spec, await offer_of(provider))
        with pytest.raises(BootstrapFailed, match="still pending"):
            await provider.provision(handle, spec, no_progress)
        await provider.close()


class TestVisibility:
    async def test_an_instance_hidden_for_a_time_is_found_once_it_passed(
        self, provider: Provider, control: CloudControl
    ) -> None:
        spec = new_spec()
        await control.fault("create", Answer.HTML_502, stage="after", hide_seconds=HOUR)
        with pytest.raises(ProviderError):
            await provider.create(spec, await offer_of(provider))
        assert await provider.find(spec.attempt_id) == []
        await control.advance(HOUR)
        assert len(await provider.find(spec.attempt_id)) == 1

    async def test_an_instance_that_only_get_misses_is_seen_in_the_list(
        self, provider: Provider, control: CloudControl
    ) -> None:
        spec = new_spec()
        handle = await provider.create(spec, await offer_of(provider))
        await control.hide(spec.attempt_id, calls=100, operations=["get"])
        assert await provider.get(handle) is not None


class TestJournal:
    async def test_every_call_is_there_with_what_was_done_and_answered(
        self, provider: Provider, control: CloudControl
    ) -> None:
        spec, offer = new_spec(), await offer_of(provider)
        await control.fault("create", Answer.NO_CAPACITY)
        await control.fault("create", Answer.RESET, stage="after")
        for _ in range(2):
            with pytest.raises(ProviderError):
                await provider.create(spec, offer)
        calls = await control.journal("create")
        assert [(c["attempt"], c["offer"], c["fault"], c["status"], c["done"]) for c in calls] == [
            (spec.attempt_id, "cpu", "no_capacity", 409, False),
            (spec.attempt_id, "cpu", "reset", 0, True),
        ]

    async def test_a_fault_strikes_only_the_calls_that_it_names(
        self, provider: Provider, control: CloudControl
    ) -> None:
        first, second, offer = new_spec(), new_spec(), await offer_of(provider)
        await control.fault("create", Answer.QUOTA, attempt=second.attempt_id, skip=1, times=1)
        await provider.create(first, offer)
        handle = await provider.create(second, offer)
        await until_gone(provider, handle)
        with pytest.raises(ProviderError):
            await provider.create(second, offer)
        await provider.create(second, offer)
