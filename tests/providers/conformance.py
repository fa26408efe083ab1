"""What every provider must do: the sentences of `providers/base.py`, each as a test.

A backend's test module subclasses `ProviderConformance`, sets `__test__ = True`, and overrides fixtures:
`make_provider` always, the others where the defaults do not serve. One whose far side can be told to fail also
subclasses `ProviderFaultConformance` (fault_conformance.py) and gives `faults`. Nothing is skipped: what a backend
cannot do is in its `capabilities`, and then the tests assert what is documented for that.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import SecretStr

from domain import images
from domain.errors import ImagePullFailed
from domain.ids import new_attempt_id
from domain.images import MAX_NAME, MAX_TAG
from domain.offers import Capabilities, Offer
from domain.spec import ComputeRequest, Port, RegistryCredential
from providers.base import (
    AgentBootstrap,
    Handle,
    InstanceSpec,
    InstanceView,
    OfferQuery,
    Provider,
    ProviderState,
    TerminateState,
)

OWNER = "hr-conformance"
OTHER_OWNER = "hr-somebody-else"
TOKEN = "hrb.canary-token-5cfd4e1a"  # looked for wherever it must not be
PASSWORD = 'canary "password" 77f0'

MakeProvider = Callable[[str], Provider]
MakeSpec = Callable[..., InstanceSpec]

ALIVE = {ProviderState.PENDING, ProviderState.STARTING, ProviderState.RUNNING}


async def no_progress(line: str) -> None:
    """For tests that do not look at progress."""


async def until_gone(provider: Provider, handle: Handle, seconds: float = 30) -> None:
    """Deletes until the provider says that it is gone, as a deallocation would.

    Raises:
        AssertionError: it is still there after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while await provider.terminate(handle) is not TerminateState.GONE:
        assert time.monotonic() < deadline, f"{handle.provider_id} is still there after {seconds} s of deleting"
        await asyncio.sleep(0.1)


def is_gone(view: InstanceView | None) -> bool:
    return view is None or view.state is ProviderState.GONE


def assert_holds_no_secret(value: object) -> None:
    """Neither as its text, nor as its representation, nor as the JSON that would be stored."""
    texts = [str(value), repr(value)]
    if isinstance(value, Handle):
        texts.append(value.model_dump_json())
    for text in texts:
        assert TOKEN not in text
        assert PASSWORD not in text
        assert json.dumps(PASSWORD)[1:-1] not in text


class ProviderConformance:
    __test__ = False

    pulls_image = True
    """Whether `provision` sees the image pulled. Where the machine itself pulls it, its host agent tells of a fault."""

    # What an implementation gives -------------------------------------------------------------------------------

    @pytest.fixture
    def make_provider(self) -> MakeProvider:
        """Builds a provider for an owner id, all at the same backend, as separate processes would."""
        raise NotImplementedError

    @pytest.fixture
    def image(self) -> str:
        """An image that can be had."""
        return "localhost/headrace/host:latest"

    @pytest.fixture
    def missing_image(self) -> str:
        """An image that does not exist."""
        return "localhost/headrace/no-such-image:latest"

    @pytest.fixture
    def agent(self) -> AgentBootstrap:
        """An agent that stays, whoever it finds."""
        return AgentBootstrap(script="exec sleep 600\n", token=SecretStr(TOKEN), url="http://127.0.0.1:9")

    @pytest.fixture
    def compute(self) -> ComputeRequest:
        return ComputeRequest(accelerator="cpu-general", gpu_count=0, ephemeral_disk_gb=1)

    # What the tests use ------------------------------------------------------------------------------------------

    @pytest.fixture
    async def provider(self, make_provider: MakeProvider) -> AsyncIterator[Provider]:
        """Leaves nothing behind, whatever the test did."""
        provider = make_provider(OWNER)
        yield provider
        for view in await provider.list_owned():
            await until_gone(provider, view.handle)
        await provider.close()

    @pytest.fixture
    async def stranger(self, make_provider: MakeProvider) -> AsyncIterator[Provider]:
        """Another control plane at the same backend."""
        provider = make_provider(OTHER_OWNER)
        yield provider
        for view in await provider.list_owned():
            await until_gone(provider, view.handle)
        await provider.close()

    @pytest.fixture
    def make_spec(self, image: str, compute: ComputeRequest, agent: AgentBootstrap) -> MakeSpec:
        def make(**changes: object) -> InstanceSpec:
            values: dict[str, object] = {
                "attempt_id": new_attempt_id(),
                "owner_id": OWNER,
                "job_id": "job_conformance",
                "org_id": "org_conformance",
                "image": image,
                "compute": compute,
                "agent": agent,
                **changes,
            }
            return InstanceSpec(**values)  # type: ignore[arg-type]

        return make

    @pytest.fixture
    async def offer(self, provider: Provider, compute: ComputeRequest) -> Offer:
        offers = await provider.offers(OfferQuery(compute.accelerator, compute.gpu_count))
        return next(
            o
            for o in offers
            if (o.accelerator, o.gpu_count) == (compute.accelerator, compute.gpu_count) and o.available
        )

    @pytest.fixture
    async def absent(self, provider: Provider, make_spec: MakeSpec, offer: Offer) -> Handle:
        """The handle of an instance that was, and is confirmed gone."""
        handle = await provider.create(make_spec(), offer)
        await until_gone(provider, handle)
        return handle

    # verify, offers ----------------------------------------------------------------------------------------------

    def test_a_provider_names_itself_and_declares_its_capabilities_as_data(self, provider: Provider) -> None:
        assert provider.name
        assert isinstance(provider.capabilities, Capabilities)

    async def test_verify_reports_good_credentials_as_ok(self, provider: Provider) -> None:
        report = await provider.verify()
        assert (report.status, report.message) == ("ok", "")

    async def test_offers_say_whose_they_are_what_they_cost_and_when_they_were_seen(self, provider: Provider) -> None:
        offers = await provider.offers(OfferQuery())
        assert offers
        assert len({offer.id for offer in offers}) == len(offers)
        for offer in offers:
            assert offer.provider == provider.name
            assert offer.connection_id
            assert isinstance(offer.price_usd_hr, Decimal)
            assert offer.price_usd_hr >= 0
            assert offer.observed_at.tzinfo is not None

    async def test_an_offer_keeps_its_id_while_it_is_offered(self, provider: Provider) -> None:
        before, after = await provider.offers(OfferQuery()), await provider.offers(OfferQuery())
        assert [offer.id for offer in before] == [offer.id for offer in after]

    async def test_a_query_narrows_and_loses_nothing_that_matches(self, provider: Provider, offer: Offer) -> None:
        everything = await provider.offers(OfferQuery())
        matching = {o.id for o in everything if (o.accelerator, o.gpu_count) == (offer.accelerator, offer.gpu_count)}
        narrowed = {o.id for o in await provider.offers(OfferQuery(offer.accelerator, offer.gpu_count))}
        assert matching <= narrowed <= {o.id for o in everything}

    # create, find ------------------------------------------------------------------------------------------------

    async def test_the_handle_of_a_create_survives_being_stored(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        handle = await provider.create(make_spec(), offer)
        assert handle.provider_id
        assert handle.resource_type
        stored = Handle.model_validate_json(handle.model_dump_json())
        assert stored == handle
        view = await provider.get(stored)
        assert view is not None
        assert view.state in ALIVE

    async def test_the_most_that_a_job_may_say_breaks_no_limit_of_the_backends(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        """And no encoding: what the API lets in is refused by no provider after the job was accepted."""
        can = provider.capabilities
        protocols = [name for name, yes in (("http", can.http_ports), ("tcp", can.tcp_ports)) if yes]
        ports = [
            Port(
                name=f"{'p' * 60}{number:03}",
                container_port=65_535 - number,
                protocol=protocols[number % len(protocols)],
            )
            for number in range(16 if protocols else 0)
        ]
        name = "registry.example:5005/".ljust(MAX_NAME, "o")
        image = f"{name}:{'t' * MAX_TAG}@sha512:{'a' * 128}"
        odd = "\"'`$(x)\\ ;&|<>%~ü漢🙂= -"
        username, password = odd.ljust(255, "u"), odd.ljust(16_384, "p")
        assert str(images.parse(image)) == image
        assert images.credential_problem(username, password) is None
        spec = make_spec(
            image=image,
            ports=tuple(ports),
            registry=RegistryCredential(username=username, password=SecretStr(password)),
            ssh_public_key=f"ssh-rsa {'A' * 16_000} ü",
        )
        handle = await provider.create(spec, offer)
        assert [found.provider_id for found in await provider.find(spec.attempt_id)] == [handle.provider_id]

    async def test_a_price_in_the_create_answer_is_a_decimal(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        handle = await provider.create(make_spec(), offer)
        price: object = handle.price_usd_hr
        assert price is None or (isinstance(price, Decimal) and price >= 0)

    async def test_a_repeated_create_yields_the_same_instance(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        first, second = await provider.create(spec, offer), await provider.create(spec, offer)
        assert first.provider_id == second.provider_id
        assert [h.provider_id for h in await provider.find(spec.attempt_id)] == [first.provider_id]

    async def test_a_create_repeated_by_another_process_yields_the_same_instance(
        self, provider: Provider, make_provider: MakeProvider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        first = await provider.create(spec, offer)
        restarted = make_provider(OWNER)
        second = await restarted.create(spec, offer)
        assert first.provider_id == second.provider_id
        assert len(await restarted.find(spec.attempt_id)) == 1
        await restarted.close()

    async def test_a_create_repeated_after_provision_yields_the_same_instance(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        again = await provider.create(spec, offer)
        assert again.provider_id == handle.provider_id
        view = await provider.get(again)
        assert view is not None
        assert view.state is ProviderState.RUNNING

    async def test_find_knows_an_attempt_from_its_create_on(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        created = await provider.create(spec, offer)
        assert [h.provider_id for h in await provider.find(spec.attempt_id)] == [created.provider_id]
        await provider.provision(created, spec, no_progress)
        assert [h.provider_id for h in await provider.find(spec.attempt_id)] == [created.provider_id]

    async def test_find_answers_empty_for_an_unknown_attempt(self, provider: Provider) -> None:
        assert await provider.find(new_attempt_id()) == []

    async def test_a_found_handle_serves_as_well_as_the_created_one(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        await provider.create(spec, offer)
        (found,) = await provider.find(spec.attempt_id)
        ready = await provider.provision(found, spec, no_progress)
        await until_gone(provider, ready)
        assert await provider.find(spec.attempt_id) == []

    # provision ---------------------------------------------------------------------------------------------------

    async def test_provision_ends_with_a_running_instance(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        ready = await provider.provision(handle, spec, no_progress)
        assert ready.provider_id == handle.provider_id
        view = await provider.get(ready)
        assert view is not None
        assert view.state is ProviderState.RUNNING
        assert view.attempt_id == spec.attempt_id

    async def test_provision_reports_progress_in_single_lines(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        lines: list[str] = []

        async def progress(line: str) -> None:
            lines.append(line)

        spec = make_spec()
        await provider.provision(await provider.create(spec, offer), spec, progress)
        for line in lines:
            assert line.strip()
            assert "\n" not in line
            assert_holds_no_secret(line)

    async def test_a_repeated_provision_finds_the_same_instance_running(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        first = await provider.provision(handle, spec, no_progress)
        second = await provider.provision(handle, spec, no_progress)
        third = await provider.provision(first, spec, no_progress)
        assert first.provider_id == second.provider_id == third.provider_id
        assert len(await provider.find(spec.attempt_id)) == 1

    async def test_a_provision_that_was_cancelled_can_be_repeated(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        cut = asyncio.create_task(provider.provision(handle, spec, no_progress))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        ready = await provider.provision(handle, spec, no_progress)
        view = await provider.get(ready)
        assert view is not None
        assert view.state is ProviderState.RUNNING
        assert len(await provider.find(spec.attempt_id)) == 1

    async def test_a_provision_that_was_cancelled_leaves_nothing_that_terminate_misses(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        cut = asyncio.create_task(provider.provision(handle, spec, no_progress))
        await asyncio.sleep(0.02)
        cut.cancel()
        await asyncio.wait([cut])
        await until_gone(provider, handle)
        assert await provider.list_owned() == []

    async def test_an_image_that_does_not_exist_is_the_images_fault(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer, missing_image: str
    ) -> None:
        spec = make_spec(image=missing_image)
        handle = await provider.create(spec, offer)
        if provider.capabilities.custom_image and self.pulls_image:
            with pytest.raises(ImagePullFailed) as caught:
                await provider.provision(handle, spec, no_progress)
            assert caught.value.message
        else:
            await provider.provision(handle, spec, no_progress)
        await until_gone(provider, handle)

    # get, logs, endpoints ----------------------------------------------------------------------------------------

    async def test_get_tells_attempt_handle_and_age(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        view = await provider.get(handle)
        assert view is not None
        assert view.attempt_id == spec.attempt_id
        assert view.handle.provider_id == handle.provider_id
        assert view.created_at is None or isinstance(view.created_at, datetime)
        assert len(view.message) <= 2000

    async def test_get_of_a_deleted_instance_is_none_or_gone(self, provider: Provider, absent: Handle) -> None:
        assert is_gone(await provider.get(absent))

    async def test_logs_go_on_from_their_cursor(self, provider: Provider, make_spec: MakeSpec, offer: Offer) -> None:
        spec = make_spec()
        ready = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        page = await provider.logs(ready, None)
        assert_holds_no_secret(page.text)
        if not provider.capabilities.logs_api:
            assert page.text == ""
        elif page.cursor is not None:
            following = await provider.logs(ready, page.cursor)
            assert page.text == "" or page.text not in following.text

    async def test_logs_of_a_deleted_instance_are_no_error(self, provider: Provider, absent: Handle) -> None:
        assert isinstance((await provider.logs(absent, None)).text, str)

    async def test_requested_ports_are_published_where_the_backend_can(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        wanted = tuple(
            Port(name=protocol, container_port=number, protocol=protocol)
            for protocol, number, can in (
                ("http", 8080, provider.capabilities.http_ports),
                ("tcp", 2222, provider.capabilities.tcp_ports),
            )
            if can
        )
        spec = make_spec(ports=wanted)
        ready = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        view = await provider.get(ready)
        assert view is not None
        assert {(e.name, e.protocol) for e in view.endpoints} == {(p.name, p.protocol) for p in wanted}
        assert all(e.host and 0 < e.port < 65536 for e in view.endpoints)

    # terminate ---------------------------------------------------------------------------------------------------

    async def test_terminate_ends_an_instance_that_was_never_provisioned(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        handle = await provider.create(spec, offer)
        await until_gone(provider, handle)
        assert is_gone(await provider.get(handle))
        assert await provider.find(spec.attempt_id) == []

    async def test_terminate_ends_a_running_instance_with_all_that_belongs_to_it(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        ready = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        await until_gone(provider, ready)
        assert is_gone(await provider.get(ready))
        assert await provider.list_owned() == []

    async def test_terminate_by_the_handle_of_the_create_ends_what_provision_made(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        created = await provider.create(spec, offer)
        await provider.provision(created, spec, no_progress)
        await until_gone(provider, created)
        assert await provider.list_owned() == []

    async def test_terminate_of_a_missing_instance_is_gone_every_time(self, provider: Provider, absent: Handle) -> None:
        assert await provider.terminate(absent) is TerminateState.GONE
        assert await provider.terminate(absent) is TerminateState.GONE

    async def test_two_terminates_at_once_are_both_accepted(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        handle = await provider.create(make_spec(), offer)
        answers = await asyncio.gather(provider.terminate(handle), provider.terminate(handle))
        assert all(isinstance(answer, TerminateState) for answer in answers)
        await until_gone(provider, handle)

    async def test_terminate_says_gone_only_of_what_is_not_there(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        ready = await provider.provision(await provider.create(spec, offer), spec, no_progress)
        if await provider.terminate(ready) is TerminateState.GONE:
            assert is_gone(await provider.get(ready))
        await until_gone(provider, ready)
        assert is_gone(await provider.get(ready))

    async def test_terminate_touches_no_other_instance(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        doomed, kept = make_spec(), make_spec()
        doomed_handle, kept_handle = await provider.create(doomed, offer), await provider.create(kept, offer)
        kept_handle = await provider.provision(kept_handle, kept, no_progress)
        await until_gone(provider, doomed_handle)
        view = await provider.get(kept_handle)
        assert view is not None
        assert view.state is ProviderState.RUNNING

    # list_owned, close -------------------------------------------------------------------------------------------

    async def test_list_owned_is_empty_where_nothing_was_made(self, provider: Provider) -> None:
        assert await provider.list_owned() == []

    async def test_list_owned_has_every_instance_of_ours_on_all_pages(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        specs = [make_spec() for _ in range(3)]
        for spec in specs:
            await provider.provision(await provider.create(spec, offer), spec, no_progress)
        views = await provider.list_owned()
        assert sorted(str(v.attempt_id) for v in views) == sorted(spec.attempt_id for spec in specs)
        assert {v.state for v in views} == {ProviderState.RUNNING}

    async def test_list_owned_has_nothing_of_another_owner(
        self, provider: Provider, stranger: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        ours, theirs = make_spec(), make_spec(owner_id=OTHER_OWNER)
        await provider.provision(await provider.create(ours, offer), ours, no_progress)
        await stranger.provision(await stranger.create(theirs, offer), theirs, no_progress)
        assert [v.attempt_id for v in await provider.list_owned()] == [ours.attempt_id]
        assert [v.attempt_id for v in await stranger.list_owned()] == [theirs.attempt_id]

    async def test_a_listed_handle_is_enough_to_delete(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        spec = make_spec()
        await provider.provision(await provider.create(spec, offer), spec, no_progress)
        (view,) = await provider.list_owned()
        await until_gone(provider, view.handle)
        assert await provider.list_owned() == []

    async def test_close_leaves_the_instances(
        self, provider: Provider, make_provider: MakeProvider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        short_lived, spec = make_provider(OWNER), make_spec()
        handle = await short_lived.provision(await short_lived.create(spec, offer), spec, no_progress)
        await short_lived.close()
        view = await provider.get(handle)
        assert view is not None
        assert view.state is ProviderState.RUNNING

    # secrets -----------------------------------------------------------------------------------------------------

    async def test_no_secret_shows_in_specs_handles_views_or_command_lines(
        self, provider: Provider, make_spec: MakeSpec, offer: Offer
    ) -> None:
        credential = RegistryCredential(username="robot", password=SecretStr(PASSWORD))
        spec = make_spec(registry=credential if provider.capabilities.private_image else None)
        handle = await provider.create(spec, offer)
        booting = asyncio.create_task(provider.provision(handle, spec, no_progress))
        while not booting.done():
            assert_on_no_command_line()
            await asyncio.wait([booting], timeout=0.02)
        ready = await booting
        assert_on_no_command_line()
        for value in (spec, handle, ready, await provider.get(ready), *await provider.list_owned()):
            assert_holds_no_secret(value)
        for found in await provider.find(spec.attempt_id):
            assert_holds_no_secret(found)


def assert_on_no_command_line() -> None:
    """No process of this machine has a secret among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes()
        except OSError:  # it ended meanwhile
            continue
        assert TOKEN.encode() not in arguments, path
        assert PASSWORD.encode() not in arguments, path
