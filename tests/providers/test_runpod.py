"""What is particular to RunPod: its catalog, bodies, errors, credentials for images, logs, and the restart trap."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import psutil
import pytest
from pydantic import SecretStr, ValidationError

from agent.script import agent_script
from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    BootstrapFailed,
    ImagePullFailed,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
)
from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest, Interconnect, Port, RegistryCredential, Workload
from providers.base import (
    AgentBootstrap,
    InstanceSpec,
    OfferQuery,
    ProviderContext,
    ProviderState,
    TerminateState,
)
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.fake.script import AgentScript
from providers.runpod.answers import PodPage, kind_of_sentence, read_graphql, read_rest
from providers.runpod.catalog import ANYWHERE, accelerator_of
from providers.runpod.credentials import RunPodCredentials
from providers.runpod.pods import MOST_STRING_BYTES, WITHOUT_VENDOR_KEY, attempt_of, create_body
from providers.runpod.provider import RunPodProvider
from tests.agent.site import until
from tests.providers.conformance import OWNER, PASSWORD, TOKEN, assert_holds_no_secret, no_progress, until_gone
from tests.providers.control_plane import ControlPlane
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod, serve_runpod
from tests.providers.runpod_support import make_runpod
from tests.support.clock import SettableClock

RTX_4090 = "nvidia-rtx-4090-24gb"
LOGIN = RegistryCredential(username="robot", password=SecretStr(PASSWORD))


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


def make_spec(**changes: Any) -> InstanceSpec:
    values: dict[str, Any] = {
        "attempt_id": new_attempt_id(),
        "owner_id": OWNER,
        "job_id": "job",
        "org_id": "org",
        "image": "pytorch/pytorch:2.8.0",
        "compute": ComputeRequest(accelerator=RTX_4090, gpu_count=1, ephemeral_disk_gb=20),
        "agent": AgentBootstrap(script="exec sleep 600", token=SecretStr(TOKEN), url="https://headrace.example"),
        **changes,
    }
    return InstanceSpec(**values)


async def offer_of(provider: RunPodProvider, *, spot: bool = False, region: str | None = None) -> Offer:
    offers = await provider.offers(OfferQuery(RTX_4090, 1))
    return next(o for o in offers if o.spot is spot and region in (None, o.region) and o.available)


class TestOffers:
    async def test_an_offer_costs_what_all_its_gpus_cost(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb"))
        prices = {(o.gpu_count, o.interconnect, o.spot): o.price_usd_hr for o in offers}
        assert prices[8, Interconnect.NVLINK, False] == Decimal("23.92")
        assert prices[8, Interconnect.NVLINK, True] == Decimal("14.00")
        assert prices[3, Interconnect.PCIE, False] == Decimal("7.17")

    async def test_each_data_center_with_stock_is_an_offer_of_its_own(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery(RTX_4090, 1))
        assert {o.region for o in offers if not o.spot} == {"EU-RO-1", "US-KS-2"}
        assert {o.region for o in offers if o.spot} == {ANYWHERE}

    async def test_what_is_out_of_stock_is_offered_as_unavailable(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb", 1))
        pcie = [o for o in offers if o.interconnect is Interconnect.PCIE and not o.spot]
        assert [(o.region, o.available) for o in pcie] == [(ANYWHERE, False)]

    async def test_no_offer_is_larger_than_the_largest_machine(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb"))
        assert {o.gpu_count for o in offers if o.interconnect is Interconnect.PCIE} == {1, 2, 3, 4}

    async def test_a_product_without_a_name_of_ours_is_not_offered(self, provider: RunPodProvider) -> None:
        assert not [o for o in await provider.offers(OfferQuery()) if "SUPER" in o.provider_sku]

    async def test_the_community_cloud_is_offered_only_when_it_is_asked_for(self, runpod: RunningRunPod) -> None:
        for community in (False, True):
            provider = make_runpod(runpod, community=community)
            skus = {o.provider_sku for o in await provider.offers(OfferQuery(RTX_4090, 1))}
            assert ("NVIDIA GeForce RTX 4090|COMMUNITY" in skus) is community
            await provider.close()

    async def test_a_machine_says_how_many_vcpus_come_with_it(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery(RTX_4090, 2))
        assert {(o.vcpus, o.memory_gb) for o in offers} == {(16, 120)}

    async def test_fewer_gpus_than_were_asked_about_come_with_their_share(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery(RTX_4090))
        assert {(o.gpu_count, o.vcpus) for o in offers} == {(n, 8 * n) for n in range(1, 9)}

    async def test_a_burst_of_jobs_reads_the_catalog_once(self, runpod: RunningRunPod, control: CloudControl) -> None:
        provider = make_runpod(runpod, offers_seconds=60)
        await asyncio.gather(*(provider.offers(OfferQuery(RTX_4090, 1)) for _ in range(20)))
        assert len(await control.journal("offers")) == 2
        assert await provider.offers(OfferQuery("nvidia-h100-80gb", 1))
        assert len(await control.journal("offers")) == 2
        assert await provider.offers(OfferQuery(RTX_4090, 2))
        assert len(await control.journal("offers")) == 4
        await provider.close()

    async def test_an_old_answer_does_not_serve_again(self, runpod: RunningRunPod, control: CloudControl) -> None:
        clock = SettableClock()
        context = ProviderContext("conn-runpod", OWNER, "/nonexistent", {"offers_seconds": 10})
        credentials = RunPodCredentials(api_key=SecretStr(API_KEY))
        provider = RunPodProvider(context, credentials, runpod.endpoints, clock=clock)
        seen = [await provider.offers(OfferQuery(RTX_4090, 1))]
        clock.advance(9)
        seen.append(await provider.offers(OfferQuery(RTX_4090, 1)))
        clock.advance(1)
        seen.append(await provider.offers(OfferQuery(RTX_4090, 1)))
        assert [(offers[0].observed_at - seen[0][0].observed_at).seconds for offers in seen] == [0, 0, 10]
        await provider.close()

    @pytest.mark.parametrize("count", [0, 9, 16])
    async def test_numbers_of_gpus_that_no_pod_has_are_not_asked_for(
        self, provider: RunPodProvider, control: CloudControl, count: int
    ) -> None:
        assert await provider.offers(OfferQuery(None, count)) == []
        assert await control.journal("offers") == []

    async def test_an_empty_catalog_is_an_error(
        self, provider: RunPodProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.providers.runpod_fake.app.GPUS", ())
        with pytest.raises(Ambiguous, match="empty"):
            await provider.offers(OfferQuery())

    @pytest.mark.parametrize(
        ("gpu_id", "memory_gb", "expected"),
        [
            ("NVIDIA H100 80GB HBM3", 80, ("nvidia-h100-80gb", "nvlink")),
            ("NVIDIA H100 PCIe", 80, ("nvidia-h100-80gb", "pcie")),
            ("NVIDIA H100 NVL", 94, ("nvidia-h100-nvl-94gb", "pcie")),
            ("NVIDIA H200", 141, ("nvidia-h200-141gb", "pcie")),
            ("NVIDIA B200", 180, ("nvidia-b200-192gb", "nvlink")),
            ("NVIDIA A100-SXM4-80GB", 80, ("nvidia-a100-80gb", "nvlink")),
            ("NVIDIA A100 80GB PCIe", 80, ("nvidia-a100-80gb", "pcie")),
            ("NVIDIA A40", 48, ("nvidia-a40-48gb", "pcie")),
            ("NVIDIA L40S", 48, ("nvidia-l40s-48gb", "pcie")),
            ("NVIDIA L4", 24, ("nvidia-l4-24gb", "pcie")),
            ("NVIDIA RTX 6000 Ada Generation", 48, ("nvidia-rtx-6000-ada-48gb", "pcie")),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, ("nvidia-rtx-pro-6000-blackwell-96gb", "pcie")),
            ("NVIDIA GeForce RTX 5090", 32, ("nvidia-rtx-5090-32gb", "pcie")),
            ("Tesla V100-SXM2-32GB", 32, ("nvidia-v100-32gb", "nvlink")),
            ("AMD Instinct MI300X OAM", 192, ("amd-mi300x-192gb", "infinity_fabric")),
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 96, None),
            ("NVIDIA GeForce RTX 3090 Ti", 24, None),
            ("NVIDIA GeForce RTX 4080 SUPER", 16, None),
            ("NVIDIA RTX A2000", 6, None),
        ],
    )
    def test_gpu_ids_have_these_names(self, gpu_id: str, memory_gb: int, expected: tuple[str, str] | None) -> None:
        found = accelerator_of(gpu_id, memory_gb)
        assert (found and (found[0].name, str(found[1]))) == expected


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "detail", "kind"),
        [
            (400, "There are no longer any instances available with the requested specifications.", NoCapacity),
            (400, "This machine does not have the resources to deploy your pod.", NoCapacity),
            (400, "Renting this pod would exceed your spend limit of $80 per hour.", QuotaExceeded),
            (400, "Your account balance is too low to rent this pod.", BillingBlocked),
            (400, "exactly one of gpu and cpu must be set", ProviderRejected),
            (401, "missing bearer token", AuthError),
            (402, "Insufficient balance", BillingBlocked),
            (403, "access denied", PermissionDenied),
            (403, "Your account cannot access the requested pool.", QuotaExceeded),
            (404, "pod not found", ProviderNotFound),
            (409, "the pod belongs to a cluster", ProviderRejected),
            (422, "Request validation failed.", ProviderRejected),
            (422, "access denied to the image, or there are no instances available of it", ProviderRejected),
            (429, "rate limit exceeded for the minute window", RateLimited),
            (500, "internal error", Ambiguous),
            (503, "There are no longer any instances available", Ambiguous),
        ],
    )
    @pytest.mark.parametrize("http_status", [None, 200])
    def test_rest_refusals_are_of_these_kinds(
        self, status: int, detail: str, kind: type[ProviderError], http_status: int | None
    ) -> None:
        body = {"title": "x", "status": status, "detail": detail}
        with pytest.raises(ProviderError) as caught:
            read_rest(httpx.Response(http_status or status, json=body), PodPage, "list", ())
        assert type(caught.value) is kind

    @pytest.mark.parametrize(
        ("status", "code", "message", "kind"),
        [
            (
                200,
                "RUNPOD",
                "There are no longer any instances available with the requested specifications.",
                NoCapacity,
            ),
            (200, "INTERNAL_SERVER_ERROR", "There are no longer any instances available", NoCapacity),
            (200, "RUNPOD", "Your bid is too low to rent this pod", NoCapacity),
            (200, "INTERNAL_SERVER_ERROR", "Something went wrong. Please try again later.", Ambiguous),
            (200, "INTERNAL_SERVER_ERROR", "x is undefined", Ambiguous),
            (200, "BAD_USER_INPUT", "Variable $input got an invalid value", ProviderRejected),
            (200, "UNAUTHENTICATED", "no", AuthError),
            (200, "FORBIDDEN", "no", PermissionDenied),
            (200, "RUNPOD", "You do not have permission to do this", PermissionDenied),
            (200, "RUNPOD", "Your account balance is too low", BillingBlocked),
            (200, "RUNPOD", "You have reached the maximum number of pods", QuotaExceeded),
            (200, "RUNPOD", "what is this", ProviderRejected),
            (429, "x", "slow down", RateLimited),
            (502, "x", "bad gateway", Ambiguous),
        ],
    )
    def test_graphql_refusals_are_of_these_kinds(
        self, status: int, code: str, message: str, kind: type[ProviderError]
    ) -> None:
        body = {"errors": [{"message": message, "extensions": {"code": code}}], "data": None}
        with pytest.raises(ProviderError) as caught:
            read_graphql(httpx.Response(status, json=body), "create", ())
        assert type(caught.value) is kind

    def test_words_that_a_refusal_repeats_of_the_request_decide_nothing(self) -> None:
        assert kind_of_sentence("cannot read the request: " + "x" * 200 + " quota, spend limit, forbidden") is None

    @pytest.mark.parametrize(
        "body",
        [
            b"[]", b"{}", b"null", b"", b"<html>", b'{"pods": null}', b'{"pods": [{}]}', b'{"pods": [null]}',
            b'{"pods": [], "pagination": {}}', b'{"pods": [], "pagination": {"hasNextPage": "perhaps"}}',
        ],
    )  # fmt: skip
    def test_a_list_of_another_shape_is_no_list(self, body: bytes) -> None:
        with pytest.raises(Ambiguous):
            read_rest(httpx.Response(200, content=body), PodPage, "list", ())


class TestCreate:
    async def test_the_agent_is_the_whole_command_and_its_token_is_not_in_it(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        spec = make_spec(ports=(Port(name="web", container_port=8080, protocol="http"),))
        await provider.create(spec, await offer_of(provider, region="EU-RO-1"))
        (body,) = [body for method, path, body in runpod.account.requests if (method, path) == ("POST", "/v2/pods")]
        assert json.loads(body["args"]) == {
            "entrypoint": ["bash", "-c"],
            "cmd": [WITHOUT_VENDOR_KEY + "exec sleep 600"],
        }
        assert body["env"] == {
            "HEADRACE_TOKEN": TOKEN, "HEADRACE_URL": "https://headrace.example", "HEADRACE_IDLE_AFTER_EXIT": "1",
        }  # fmt: skip
        assert body["name"] == f"{OWNER}-{spec.attempt_id}"
        assert body["ports"] == ["8080/http"]
        assert body["dataCenterIds"] == ["EU-RO-1"]
        assert body["gpu"] == {"id": "NVIDIA GeForce RTX 4090", "count": 1}
        assert body["disk"] == 20

    async def test_a_spot_pod_bids_the_offers_price_per_gpu(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb", 4))
        offer = next(o for o in offers if o.spot and o.interconnect is Interconnect.NVLINK)
        handle = await provider.create(make_spec(), offer)
        body = next(
            body for _, path, body in runpod.account.requests if path == "/graphql" and "input" in body["variables"]
        )
        assert body["variables"]["input"]["bidPerGpu"] == 1.75
        assert handle.price_usd_hr == Decimal("7.0")

    async def test_quotes_and_braces_stay_what_they_are_in_graphql(
        self, provider: RunPodProvider, control: CloudControl, runpod: RunningRunPod
    ) -> None:
        script = 'echo "}) { id } } #\' \\" {{ $input }}\n'
        agent = AgentBootstrap(script=script, token=SecretStr(TOKEN), url="https://headrace.example")
        spec = make_spec(agent=agent, image='evil/"image"}:latest')
        await provider.create(spec, await offer_of(provider, spot=True))
        (pod,) = runpod.account.pods.values()
        assert json.loads(pod.args)["cmd"] == [WITHOUT_VENDOR_KEY + script]
        ((instance),) = await control.instances(spec.attempt_id)
        assert instance["offer"].endswith("|spot")

    async def test_the_price_of_the_create_answer_counts(self, provider: RunPodProvider, control: CloudControl) -> None:
        for spot in (False, True):
            offer = await offer_of(provider, spot=spot)
            await control.fault("create", price_usd_hr="0.71")
            assert (await provider.create(make_spec(), offer)).price_usd_hr == Decimal("0.71")

    async def test_a_create_that_answered_500_and_made_a_pod_is_found_and_not_repeated(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        for spot in (False, True):
            spec, offer = make_spec(), await offer_of(provider, spot=spot)
            await control.fault("create", Answer.INTERNAL, stage="after", hide_calls=2)
            with pytest.raises(Ambiguous):
                await provider.create(spec, offer)
            (found,) = await provider.find(spec.attempt_id)
            assert (await provider.create(spec, offer)).provider_id == found.provider_id
            assert len(await control.instances(spec.attempt_id)) == 1

    async def test_two_creates_at_once_make_one_pod(self, provider: RunPodProvider, control: CloudControl) -> None:
        spec, offer = make_spec(), await offer_of(provider)
        first, second = await asyncio.gather(provider.create(spec, offer), provider.create(spec, offer))
        assert first.provider_id == second.provider_id
        assert len(await control.instances(spec.attempt_id)) == 1

    @pytest.mark.parametrize(
        "changes",
        [
            {"agent": AgentBootstrap(script="x", token=SecretStr(TOKEN), socket="/run/agent.sock")},
            {"agent": AgentBootstrap(script="x" * MOST_STRING_BYTES, token=SecretStr(TOKEN), url="https://h.example")},
            {"agent": AgentBootstrap(script="é" * 70_000, token=SecretStr(TOKEN), url="https://h.example")},
            {"agent": AgentBootstrap(script="a\0b", token=SecretStr(TOKEN), url="https://h.example")},
            {"compute": ComputeRequest(accelerator=RTX_4090, gpu_count=1, ephemeral_disk_gb=1_001)},
            {"ports": tuple(Port(name=f"p{n}", container_port=8000 + n, protocol="http") for n in range(11))},
            {"registry": RegistryCredential(username="", password=SecretStr("x"))},
        ],
        ids=["no URL", "long script", "long in bytes", "NUL", "large disk", "many ports", "no user name"],
    )
    async def test_what_does_not_fit_is_refused_before_anything_is_made(
        self, provider: RunPodProvider, control: CloudControl, changes: dict[str, Any]
    ) -> None:
        offer = await offer_of(provider)
        with pytest.raises(ProviderRejected) as caught:
            await provider.create(make_spec(**changes), offer)
        assert len(caught.value.message) < 300
        assert await control.alive() == []

    async def test_the_real_agent_fits(self, provider: RunPodProvider) -> None:
        agent = AgentBootstrap(script=agent_script(), token=SecretStr(TOKEN), url="https://headrace.example")
        spec, offer = make_spec(agent=agent), await offer_of(provider)
        assert create_body(spec, offer, None) == create_body(spec, offer, None)

    async def test_no_workload_has_the_key_that_runpod_gives_to_pods(self, provider: RunPodProvider) -> None:
        script = "tr '\\0' '\\n' </proc/$$/environ; env; echo \"the script's $HEADRACE_TOKEN\""
        agent = AgentBootstrap(script=script, token=SecretStr(TOKEN), url="https://headrace.example")
        body = create_body(make_spec(agent=agent), await offer_of(provider), None)
        args = json.loads(body["args"])
        environment = {"PATH": os.environ["PATH"], "RUNPOD_API_KEY": "canary-vendor-key", **body["env"]}
        ran = await asyncio.create_subprocess_exec(
            *args["entrypoint"], *args["cmd"], env=environment, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await ran.communicate()
        assert f"the script's {TOKEN}".encode() in printed
        assert b"canary-vendor-key" not in printed

    @pytest.mark.parametrize(
        ("name", "attempt"),
        [
            (f"{OWNER}-inst-{'a' * 20}", f"inst-{'a' * 20}"),
            (f"{OWNER}-x-inst-{'a' * 20}", None),
            (f"x-{OWNER}-inst-{'a' * 20}", None),
            (f"{OWNER}-inst-short", None),
            ("my training pod", None),
        ],
    )
    def test_only_names_of_ours_belong_to_us(self, name: str, attempt: str | None) -> None:
        assert attempt_of(name, OWNER) == attempt


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


class TestBoot:
    async def test_a_command_that_ended_idles_and_is_not_started_again(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        plane = ControlPlane(workload=Workload(argv=("fake", AgentScript(status=3, stdout="once\n").model_dump_json())))
        await control.script()
        provider = make_runpod(runpod)
        assert provider.capabilities.restarts_finished
        async with plane.listening() as url:
            attempt = new_attempt_id()
            agent = AgentBootstrap(script="", token=SecretStr(f"hrb.{attempt}"), url=url)
            spec = make_spec(attempt_id=attempt, agent=agent)
            handle = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
            await plane.until(lambda: bool(plane.exits))
            told = await _until_told(control, "idles")
        assert "restarted" not in told
        assert plane.output[attempt, "stdout"] == b"once\n"
        view = await provider.get(handle)
        assert view is not None
        assert (view.state, view.exit_code) == (ProviderState.RUNNING, None)
        await until_gone(provider, handle)
        await provider.close()

    async def test_the_real_agent_runs_as_the_command_of_a_pod_and_idles(self, provider: RunPodProvider) -> None:
        attempt = new_attempt_id()
        plane = ControlPlane(workload=Workload(argv=("bash", "-c", "echo out; echo err >&2; exit 5")))
        async with plane.listening() as url:
            agent = AgentBootstrap(script=agent_script(), token=SecretStr(f"hrb.{attempt}"), url=url)
            body = create_body(make_spec(attempt_id=attempt, agent=agent), await offer_of(provider), None)
            args, environment = json.loads(body["args"]), {"PATH": os.environ["PATH"], "RUNPOD_API_KEY": "x"}
            ran = await asyncio.create_subprocess_exec(
                *args["entrypoint"], *args["cmd"], env={**environment, **body["env"]}
            )
            try:
                await plane.until(lambda: bool(plane.exits), seconds=30)
                await asyncio.sleep(0.3)
                assert ran.returncode is None
            finally:
                # With job control each of its children has a process group of its own.
                children = psutil.Process(ran.pid).children(recursive=True)
                for process in (psutil.Process(ran.pid), *children):
                    process.kill()
                await ran.wait()
        assert (plane.exits[attempt]["status"], plane.exits[attempt]["signal"]) == ("5", "0")
        assert (plane.output[attempt, "stdout"], plane.output[attempt, "stderr"]) == (b"out\n", b"err\n")

    async def test_an_agent_that_ended_its_container_would_be_started_again(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        """The trap is there: the fake springs it on whoever does not idle."""
        plane = ControlPlane(workload=Workload(argv=("fake", AgentScript().model_dump_json())))
        await control.script()
        async with plane.listening() as url, httpx.AsyncClient() as client:
            body = {
                "name": f"{OWNER}-{new_attempt_id()}", "image": "y", "gpu": {"id": "NVIDIA GeForce RTX 4090"},
                "env": {"HEADRACE_TOKEN": "hrb.x", "HEADRACE_URL": url},
            }  # fmt: skip
            headers = {"authorization": f"Bearer {API_KEY}"}
            (await client.post(f"{runpod.url}/v2/pods", json=body, headers=headers)).raise_for_status()
            await _until_told(control, "restarted")

    async def test_what_the_host_says_of_the_boot_is_progress(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        await control.settings(pending_seconds=0.1, starting_seconds=0.2)
        lines: list[str] = []

        async def progress(line: str) -> None:
            lines.append(line)

        spec = make_spec()
        handle = await provider.create(spec, await offer_of(provider))
        await provider.provision(handle, spec, progress)
        assert f"{handle.provider_id} is pending" in lines
        assert "create container pytorch/pytorch:2.8.0" in lines

    @pytest.mark.parametrize(
        ("said", "kind"),
        [
            ("Error response from daemon: manifest for a/b:c not found: manifest unknown", ImagePullFailed),
            ("pull access denied for a/b, repository does not exist or may require 'docker login'", ImagePullFailed),
            ('Head "https://r.example/v2/a/manifests/b": unauthorized: authentication required', ImagePullFailed),
            ("failed to register layer: write /x: no space left on device", ImagePullFailed),
            ('exec: "bash": executable file not found in $PATH: unknown', BootstrapFailed),
            ("the GPU has fallen off the bus", BootstrapFailed),
        ],
    )
    async def test_a_boot_that_will_never_succeed_says_why(
        self, provider: RunPodProvider, control: CloudControl, said: str, kind: type[ProviderError]
    ) -> None:
        spec, offer = make_spec(), await offer_of(provider)
        await control.fault("create", boot_failure="boot_failed", boot_message=said)
        handle = await provider.create(spec, offer)
        with pytest.raises(kind, match=re.escape(said[:20])):
            await provider.provision(handle, spec, no_progress)

    async def test_a_boot_has_a_deadline(self, runpod: RunningRunPod, control: CloudControl) -> None:
        await control.settings(pending_seconds=600)
        provider = make_runpod(runpod, boot_seconds=0.1)
        spec = make_spec()
        handle = await provider.create(spec, await offer_of(provider))
        with pytest.raises(BootstrapFailed, match=r"after 0\.1 s"):
            await provider.provision(handle, spec, no_progress)
        await provider.close()

    async def test_a_rate_limit_only_delays_a_boot(self, provider: RunPodProvider, control: CloudControl) -> None:
        spec = make_spec()
        handle = await provider.create(spec, await offer_of(provider))
        await control.fault("list", Answer.RATE_LIMIT, times=2)
        ready = await provider.provision(handle, spec, no_progress)
        assert ready.provider_id == handle.provider_id

    async def test_boots_share_one_list(self, runpod: RunningRunPod, control: CloudControl) -> None:
        await control.settings(starting_seconds=0.5)
        provider = make_runpod(runpod, poll_seconds=0.2)
        offer = await offer_of(provider)
        specs = [make_spec() for _ in range(10)]
        handles = [await provider.create(spec, offer) for spec in specs]
        before = len(await control.journal("list"))
        await asyncio.gather(*(provider.provision(h, s, no_progress) for h, s in zip(handles, specs, strict=True)))
        assert len(await control.journal("list")) - before <= 8
        assert await control.journal("get") == []
        await provider.close()


class TestEndpoints:
    async def test_http_goes_through_the_proxy_and_tcp_to_the_host(self, provider: RunPodProvider) -> None:
        ports = (
            Port(name="web", container_port=8080, protocol="http"),
            Port(name="metrics", container_port=9100, protocol="tcp"),
        )
        spec = make_spec(ports=ports)
        handle = await provider.create(spec, await offer_of(provider))
        ready = await provider.provision(handle, spec, no_progress)
        view = await provider.get(ready)
        assert view is not None
        assert [(e.name, e.host, e.port) for e in view.endpoints] == [
            ("web", f"{handle.provider_id}-8080.proxy.runpod.net", 443),
            ("metrics", "198.51.100.7", 40_001),
        ]

    async def test_a_key_opens_the_direct_ssh_port(self, provider: RunPodProvider) -> None:
        spec = make_spec(ssh_public_key="ssh-ed25519 AAAA me")
        ready = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
        assert ready.data["ssh"] == {"host": "198.51.100.7", "port": 40_000, "user": "root"}
        view = await provider.get(ready)
        assert view is not None
        assert [(e.name, e.port) for e in view.endpoints] == [("ssh", 40_000)]

    async def test_a_found_pod_learns_the_names_of_its_ports_again(self, provider: RunPodProvider) -> None:
        spec = make_spec(ports=(Port(name="web", container_port=8080, protocol="http"),))
        await provider.create(spec, await offer_of(provider))
        (found,) = await provider.find(spec.attempt_id)
        view = await provider.get(await provider.provision(found, spec, no_progress))
        assert view is not None
        assert [e.name for e in view.endpoints] == ["web"]


class TestLogs:
    async def test_pages_follow_each_other_without_gap_or_double(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        """Three lines share each id, and a stream resumes with all lines of the id that it is given."""
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
        instance: Any = runpod.account.cloud.resources[handle.provider_id]
        text, cursor = "", None
        for number in range(12):
            instance.console.append(f"line {number}")
            page = await provider.logs(handle, cursor)
            text, cursor = text + page.text, page.cursor
        page = await provider.logs(handle, cursor)
        assert (page.text, page.cursor) == ("", cursor)
        written = [line for _, line in runpod.account.log(instance)]
        assert text.splitlines() == written

    async def test_a_page_of_a_pod_that_never_falls_silent_ends_and_the_next_one_goes_on(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        provider = make_runpod(runpod, log_page_seconds=0.5)
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
        instance: Any = runpod.account.cloud.resources[handle.provider_id]

        async def chatter() -> None:
            while True:
                instance.console.append(f"line {len(instance.console)}")
                await asyncio.sleep(0.02)

        talking = asyncio.create_task(chatter())
        async with asyncio.timeout(10):
            first = await provider.logs(handle, None)
            second = await provider.logs(handle, first.cursor)
        talking.cancel()
        lines = (first.text + second.text).splitlines()
        assert lines == [line for _, line in runpod.account.log(instance)][: len(lines)]
        assert len(second.text.splitlines()) > 5
        await provider.close()

    async def test_an_event_that_is_cut_off_is_an_error(self, provider: RunPodProvider, control: CloudControl) -> None:
        handle = await provider.create(make_spec(), await offer_of(provider))
        await control.fault("logs", Answer.TRUNCATED, stage="after")
        with pytest.raises(Ambiguous):
            await provider.logs(handle, None)


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


class TestCredentials:
    async def test_a_wrong_key_is_reported(self, runpod: RunningRunPod) -> None:
        provider = make_runpod(runpod, key="rpa_wrong_key_canary")
        report = await provider.verify()
        assert report.status == "auth"
        assert "rpa_wrong_key_canary" not in report.message
        await provider.close()

    async def test_a_key_without_rights_on_pods_is_reported(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        await control.fault("list", Answer.PERMISSION)
        assert (await provider.verify()).status == "permission"

    async def test_the_check_leaves_the_environment_as_it_was(self, provider: RunPodProvider) -> None:
        before = dict(os.environ)
        assert (await provider.verify()).status == "ok"
        assert dict(os.environ) == before

    def test_the_sdk_adds_no_handler_to_our_logs(self) -> None:
        code = (
            "import logging, sys\n"
            "from domain.errors import Ambiguous\n"
            "from providers.runpod.account import account_id\n"
            "try:\n    account_id('key', 'http://127.0.0.1:9/graphql')\n"
            "except Ambiguous:\n    sys.exit(bool(logging.getLogger().handlers) or 'runpod' not in sys.modules)\n"
            "sys.exit(2)\n"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0

    def test_a_key_is_never_shown_and_never_empty(self) -> None:
        credentials = RunPodCredentials(api_key=SecretStr("rpa_secret_canary"))
        assert "rpa_secret_canary" not in repr(credentials) + credentials.model_dump_json()
        assert not credentials.include_community
        with pytest.raises(ValidationError):
            RunPodCredentials(api_key=SecretStr(""))

    def test_the_sdk_is_not_loaded_before_it_is_needed(self) -> None:
        code = (
            "import sys; from pydantic import SecretStr; from providers.base import ProviderContext;"
            "from providers.runpod.credentials import RunPodCredentials;"
            "from providers.runpod.provider import RunPodProvider;"
            "RunPodProvider(ProviderContext('c', 'o', '/tmp'), RunPodCredentials(api_key=SecretStr('k')));"
            "sys.exit('runpod' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


async def _until_told(control: CloudControl, what: str) -> list[str]:
    """All that the only pod's agent did, once it has done this."""
    told: list[str] = []

    async def done() -> bool:
        (instance,) = await control.instances()
        told[:] = [event for _, event in instance["agent"]]
        return what in told

    await until(done, what=what)
    return told
