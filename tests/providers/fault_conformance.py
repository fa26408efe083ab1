"""What a provider must do when its far side fails. For backends whose far side is a server that tests can spoil."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from typing import Protocol

import pytest

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    BootstrapFailed,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
)
from domain.offers import Offer
from providers.base import Handle, InstanceSpec, OfferQuery, Provider, ProviderState, TerminateState
from tests.providers.conformance import (
    OWNER,
    MakeProvider,
    MakeSpec,
    assert_holds_no_secret,
    no_progress,
    until_gone,
)

LOSSES = ("reset", "cut", "truncated", "html_502", "internal", "unavailable", "timeout")
"""Ways to lose an answer: the connection's end before or in it, half of the JSON, a proxy's page, 500, 503, silence."""

REFUSALS = (NoCapacity, QuotaExceeded, AuthError, PermissionDenied, BillingBlocked, ProviderRejected, RateLimited)
OPERATIONS = ("verify", "offers", "create", "get", "find", "list", "delete", "logs")


class Faults(Protocol):
    """What the far side can be told to do to the next call of an operation."""

    async def lose(self, operation: str, way: str, hidden_calls: int = 0) -> None:
        """Does what is asked and loses the answer in one of the ways of `LOSSES`; so many reads do not see the instance
        that a create has made."""
        ...

    async def refuse(self, operation: str, kind: type[ProviderError], retry_after_seconds: float | None = None) -> None:
        """Does nothing and answers what stands for one of `REFUSALS`."""
        ...

    async def refuse_with_status_200(self, operation: str, kind: type[ProviderError]) -> None:
        """As `refuse`, with an error object in an answer that says success."""
        ...

    async def echo(self, operation: str) -> None:
        """Refuses with a message that repeats the whole request."""
        ...

    async def huge_refusal(self, operation: str) -> None:
        """Refuses with a message of 3 MiB."""
        ...

    async def hide_next_instance(self, calls: int) -> None:
        """The next instance is made, and so many reads do not see it."""
        ...

    async def cut_list_page(self, operation: str) -> None:
        """The next page lacks an item, or what an item must have, and its frame does not say so."""
        ...

    async def unknown_status(self, spec: InstanceSpec) -> None:
        """The attempt's instance shows a status that nobody has heard of."""
        ...

    async def vanish(self, spec: InstanceSpec) -> None:
        """The attempt's instance is gone from one moment to the next."""
        ...

    async def interrupt(self, spec: InstanceSpec) -> None:
        """The attempt's instance is taken back by the backend."""
        ...

    async def fail_next_boot(self, message: str) -> None:
        """The next instance fails while it boots."""
        ...

    async def linger(self, calls: int) -> None:
        """The next delete is accepted, and so many reads still see the instance running."""
        ...

    async def deny_existence(self) -> None:
        """The next delete answers "no such instance" and does nothing."""
        ...

    async def instances(self, spec: InstanceSpec) -> int:
        """How many of the attempt live, by the far side's own truth."""
        ...

    async def price_next(self, usd_per_hour: Decimal) -> None:
        """The next instance costs more than its offer said. Nothing where a create is not told what it costs."""
        ...

    async def alive(self) -> list[str]:
        """All that exists or is charged for, by the far side's own truth, sub-resources too; but for what no read has
        shown yet, and so nobody could delete."""
        ...


def _calls(
    provider: Provider, spec: InstanceSpec, offer: Offer, handle: Handle
) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "offers": lambda: provider.offers(OfferQuery()),
        "create": lambda: provider.create(spec, offer),
        "get": lambda: provider.get(handle),
        "find": lambda: provider.find(spec.attempt_id),
        "list": provider.list_owned,
        "delete": lambda: provider.terminate(handle),
        "logs": lambda: provider.logs(handle, None),
    }


class ProviderFaultConformance:
    """Goes with `ProviderConformance` as a second base class."""

    __test__ = False

    @pytest.fixture
    def faults(self) -> Faults:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    async def nothing_is_left(self, faults: Faults) -> AsyncIterator[None]:
        """Whatever went wrong, all that was made goes with the instances that the provider lists."""
        yield
        assert await faults.alive() == []

    # A lost answer to create -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("way", LOSSES)
    async def test_a_create_whose_answer_was_lost_is_ambiguous_and_find_adopts_its_instance(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, way: str
    ) -> None:
        spec = make_spec()
        await faults.lose("create", way)
        with pytest.raises(Ambiguous):
            await provider.create(spec, offer)
        (handle,) = await provider.find(spec.attempt_id)
        assert (await provider.create(spec, offer)).provider_id == handle.provider_id
        assert await faults.instances(spec) == 1

    @pytest.mark.parametrize("way", LOSSES)
    async def test_a_create_that_is_repeated_while_reads_lag_makes_no_second_instance(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, way: str
    ) -> None:
        spec = make_spec()
        await faults.lose("create", way, hidden_calls=2)
        with pytest.raises(Ambiguous):
            await provider.create(spec, offer)
        assert (await provider.create(spec, offer)).provider_id
        assert await faults.instances(spec) == 1

    @pytest.mark.parametrize("kind", REFUSALS)
    async def test_a_refused_create_says_why_and_makes_nothing(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, kind: type[ProviderError]
    ) -> None:
        spec = make_spec()
        await faults.refuse("create", kind)
        with pytest.raises(ProviderError) as caught:
            await provider.create(spec, offer)
        assert type(caught.value) is kind
        assert spec.attempt_id in caught.value.message
        assert await faults.instances(spec) == 0
        assert await provider.find(spec.attempt_id) == []

    @pytest.mark.parametrize("kind", REFUSALS)
    async def test_an_error_object_in_a_success_is_an_error(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, kind: type[ProviderError]
    ) -> None:
        await faults.refuse_with_status_200("create", kind)
        with pytest.raises(ProviderError) as caught:
            await provider.create(make_spec(), offer)
        assert type(caught.value) is kind

    async def test_a_rate_limit_carries_the_wait_that_the_backend_asks_for(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        await faults.refuse("create", RateLimited, retry_after_seconds=7)
        with pytest.raises(RateLimited) as caught:
            await provider.create(make_spec(), offer)
        assert caught.value.retry_after_seconds == 7

    async def test_the_price_of_a_create_is_what_the_backend_says_and_not_what_the_offer_said(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        await faults.price_next(offer.price_usd_hr + Decimal("1.0203"))
        spec = make_spec()
        handle = await provider.create(spec, offer)
        assert handle.price_usd_hr in {None, offer.price_usd_hr + Decimal("1.0203")}
        (found,) = await provider.find(spec.attempt_id)
        assert found.price_usd_hr == handle.price_usd_hr

    # Every call --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("way", LOSSES)
    @pytest.mark.parametrize("operation", [o for o in OPERATIONS if o not in ("verify", "create")])
    async def test_a_lost_answer_is_an_ambiguous_error_never_an_empty_answer(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, operation: str, way: str
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.lose(operation, way)
        with pytest.raises(Ambiguous):
            await _calls(provider, spec, offer, handle)[operation]()

    @pytest.mark.parametrize("operation", [o for o in OPERATIONS if o not in ("verify", "create")])
    async def test_an_error_object_in_the_success_of_any_call_is_an_error(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, operation: str
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.refuse_with_status_200(operation, AuthError)
        with pytest.raises(AuthError):
            await _calls(provider, spec, offer, handle)[operation]()
        assert await faults.instances(spec) == 1

    async def test_an_instance_outlives_the_credentials_that_it_was_made_with(
        self, provider: Provider, make_provider: MakeProvider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        """Each call is refused, none is taken for an absence; with new ones the instance is found, and deleted."""
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        for operation in ("get", "find", "list", "delete", "create"):
            await faults.refuse(operation, AuthError)
            # A create of an attempt that is there may find it first, and ask for nothing.
            asked = make_spec() if operation == "create" else spec
            with pytest.raises(AuthError):
                await _calls(provider, asked, offer, handle)[operation]()
        assert await faults.instances(spec) == 1

        renewed = make_provider(OWNER)
        assert [view.attempt_id for view in await renewed.list_owned()] == [spec.attempt_id]
        (found,) = await renewed.find(spec.attempt_id)
        assert found.provider_id == handle.provider_id
        await until_gone(renewed, handle)
        assert await faults.instances(spec) == 0
        await renewed.close()

    @pytest.mark.parametrize("operation", [o for o in OPERATIONS if o != "verify"])
    @pytest.mark.parametrize("kind", [RateLimited, AuthError, PermissionDenied, BillingBlocked])
    async def test_a_refusal_of_any_call_is_of_the_closed_set(
        self,
        provider: Provider,
        faults: Faults,
        make_spec: MakeSpec,
        offer: Offer,
        operation: str,
        kind: type[ProviderError],
    ) -> None:
        spec = make_spec()
        handle = await provider.create(make_spec(), offer)
        await faults.refuse(operation, kind)
        with pytest.raises(ProviderError) as caught:
            await _calls(provider, spec, offer, handle)[operation]()
        assert type(caught.value) is kind

    @pytest.mark.parametrize(
        ("kind", "status"),
        [(AuthError, "auth"), (PermissionDenied, "permission"), (RateLimited, "unreachable")],
    )
    async def test_verify_reports_and_never_raises(
        self, provider: Provider, faults: Faults, kind: type[ProviderError], status: str
    ) -> None:
        await faults.refuse("verify", kind)
        report = await provider.verify()
        assert report.status == status
        assert report.message

    @pytest.mark.parametrize("way", LOSSES)
    async def test_verify_reports_a_backend_that_does_not_answer_as_unreachable(
        self, provider: Provider, faults: Faults, way: str
    ) -> None:
        await faults.lose("verify", way)
        assert (await provider.verify()).status == "unreachable"

    @pytest.mark.parametrize("operation", ["offers", "list", "find"])
    async def test_a_partial_page_is_an_error_never_a_shorter_list(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, operation: str
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.cut_list_page(operation)
        with pytest.raises(Ambiguous):
            await _calls(provider, spec, offer, handle)[operation]()

    @pytest.mark.parametrize("operation", ["create", "delete", "list"])
    async def test_an_error_that_echoes_the_request_shows_no_secret(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, operation: str
    ) -> None:
        spec = make_spec()
        handle = await provider.create(make_spec(), offer)
        await faults.echo(operation)
        with pytest.raises(ProviderRejected) as caught:
            await _calls(provider, spec, offer, handle)[operation]()
        error: BaseException | None = caught.value
        while error is not None:
            assert_holds_no_secret(error)
            error = error.__cause__

    async def test_a_huge_error_body_becomes_a_short_message(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        await faults.huge_refusal("create")
        with pytest.raises(ProviderError) as caught:
            await provider.create(make_spec(), offer)
        assert len(caught.value.message) <= 2000

    # States ------------------------------------------------------------------------------------------------------

    async def test_an_unknown_status_is_still_billing(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.unknown_status(spec)
        view = await provider.get(handle)
        assert view is not None
        assert view.state in {ProviderState.PENDING, ProviderState.RUNNING}
        assert [v.state for v in await provider.list_owned()] == [view.state]

    async def test_an_instance_that_one_read_missed_is_not_gone(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        await faults.hide_next_instance(calls=1)
        handle = await provider.create(make_spec(), offer)
        assert await provider.get(handle) is not None

    async def test_an_instance_that_vanished_is_gone(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        await faults.vanish(spec)
        assert await provider.get(handle) is None
        assert await provider.terminate(handle) is TerminateState.GONE

    async def test_an_instance_that_vanishes_before_it_runs_ends_its_provision(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.vanish(spec)
        with pytest.raises(ProviderNotFound):
            await provider.provision(handle, spec, no_progress)

    @pytest.mark.parametrize("phase", ["pending", "starting", "running"])
    async def test_an_instance_that_is_taken_back_in_any_phase_says_so_and_can_be_given_back(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, phase: str
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        if phase == "running":
            await provider.provision(handle, spec, no_progress)
            await faults.interrupt(spec)
        else:
            if phase == "pending":
                await faults.interrupt(spec)
            booting = asyncio.create_task(provider.provision(handle, spec, no_progress))
            if phase == "starting":
                await asyncio.sleep(0)
                await faults.interrupt(spec)
            # Some learn of it by the view alone, or were up by then: the boot ends by itself either way.
            (outcome,) = await asyncio.gather(booting, return_exceptions=True)
            assert isinstance(outcome, ProviderError | Handle), outcome
        view = await provider.get(handle)
        assert view is not None
        assert view.state is ProviderState.INTERRUPTED
        assert view.message
        await until_gone(provider, handle)
        assert await faults.instances(spec) == 0

    async def test_a_boot_that_fails_says_why(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        await faults.fail_next_boot("kernel panic")
        handle = await provider.create(spec, offer)
        with pytest.raises(BootstrapFailed, match="kernel panic"):
            await provider.provision(handle, spec, no_progress)

    # Deletes that lie --------------------------------------------------------------------------------------------

    async def test_a_delete_that_was_accepted_is_gone_only_once_no_read_sees_the_instance(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.linger(calls=3)
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        assert await faults.instances(spec) == 1
        await until_gone(provider, handle)
        assert await faults.instances(spec) == 0

    async def test_a_delete_that_denies_what_is_listed_is_not_believed(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.deny_existence()
        assert await provider.terminate(handle) is TerminateState.REQUESTED
        assert await faults.instances(spec) == 1
        await until_gone(provider, handle)
        assert await faults.instances(spec) == 0

    @pytest.mark.parametrize("kind", [RateLimited, AuthError, PermissionDenied, ProviderRejected])
    async def test_a_delete_that_is_refused_leaves_the_instance_and_is_repeated_in_peace(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, kind: type[ProviderError]
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await faults.refuse("delete", kind)
        with pytest.raises(ProviderError) as caught:
            await provider.terminate(handle)
        assert type(caught.value) is kind
        assert await faults.instances(spec) == 1
        assert [view.attempt_id for view in await provider.list_owned()] == [spec.attempt_id]
        await until_gone(provider, handle)
        assert await faults.instances(spec) == 0

    @pytest.mark.parametrize("way", LOSSES)
    async def test_a_delete_whose_answer_was_lost_is_repeated_in_peace(
        self, provider: Provider, faults: Faults, make_spec: MakeSpec, offer: Offer, way: str
    ) -> None:
        handle = await provider.create(make_spec(), offer)
        await faults.lose("delete", way)
        started = time.monotonic()
        with pytest.raises(Ambiguous):
            await provider.terminate(handle)
        assert await provider.terminate(handle) is TerminateState.GONE
        assert time.monotonic() - started < 10
