"""What a pod is created from, and what is refused before it is."""

import asyncio
import json
import os
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from pydantic import SecretStr

from agent.bootstrap import bootstrap_command
from agent.script import agent_script
from domain.errors import (
    Ambiguous,
    ProviderRejected,
)
from domain.spec import ComputeRequest, Interconnect, Port, RegistryCredential
from providers.base import (
    AgentBootstrap,
    OfferQuery,
)
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.runpod.catalog import ANYWHERE
from providers.runpod.cpus import CPU_CLASS
from providers.runpod.pods import MOST_STRING_BYTES, WITHOUT_VENDOR_KEY, attempt_of, create_body
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import OWNER, TOKEN, until_gone
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import RTX_4090, make_runpod, make_spec, offer_of


class TestCreate:
    async def test_the_agent_is_the_whole_command_and_its_token_is_not_in_it(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        spec = make_spec(ports=(Port(name="web", container_port=8080, protocol="http"),))
        await provider.create(spec, await offer_of(provider, region="EU-RO-1"))
        (body,) = [body for method, path, body in runpod.account.requests if (method, path) == ("POST", "/v2/pods")]
        assert json.loads(body["args"]) == {
            "entrypoint": ["bash", "-c"],
            "cmd": [WITHOUT_VENDOR_KEY + bootstrap_command(spec.agent.script)],
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

    @pytest.mark.parametrize(("region", "place"), [("US-KS-2", "US-KS-2"), (ANYWHERE, None)])
    async def test_a_spot_pod_is_rented_where_its_offer_is(
        self, provider: RunPodProvider, runpod: RunningRunPod, region: str, place: str | None
    ) -> None:
        handle = await provider.create(make_spec(), await offer_of(provider, spot=True, region=region))
        assert runpod.account.pods[handle.provider_id].data_center == place

    async def test_a_cpu_pod_has_the_vcpus_of_its_offer_and_goes_as_every_other(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        compute = ComputeRequest(accelerator=CPU_CLASS, gpu_count=0, vcpu_count=3, ephemeral_disk_gb=40)
        offers = await provider.offers(OfferQuery(CPU_CLASS, 0))
        offer = next(o for o in offers if o.vcpus == 4 and o.available)
        handle = await provider.create(make_spec(compute=compute), offer)
        body = runpod.account.requests[-1][2]
        assert body["cpu"] == {"id": "cpu3g", "vcpuCount": 4}
        assert "gpu" not in body
        assert handle.price_usd_hr == offer.price_usd_hr == Decimal("0.16")
        assert [view.handle.provider_id for view in await provider.list_owned()] == [handle.provider_id]
        await provider.terminate(handle)
        await until_gone(provider, handle)
        small = next(o for o in offers if o.vcpus == 2 and o.available)
        with pytest.raises(ProviderRejected, match="40 GB is wanted, RunPod has 1 to 20"):
            await provider.create(make_spec(compute=compute), small)

    async def test_hosts_with_drivers_too_old_are_not_rented(self, runpod: RunningRunPod) -> None:
        provider = make_runpod(runpod, min_cuda_version="12.8")
        asked = []
        for spot in (False, True):
            handle = await provider.create(make_spec(), await offer_of(provider, spot=spot))
            asked.append(runpod.account.pods[handle.provider_id].cuda)
        assert asked[0] == "12.8"
        assert asked[1][:3] == ["12.8", "12.9", "13.0"]
        cpus = await provider.offers(OfferQuery(CPU_CLASS, 0))
        handle = await provider.create(make_spec(), next(o for o in cpus if o.vcpus == 2 and o.available))
        assert runpod.account.pods[handle.provider_id].cuda is None
        await provider.close()

    async def test_all_arrives_as_it_is_by_both_apis(self, provider: RunPodProvider, runpod: RunningRunPod) -> None:
        """Quotes, braces, dollars, backslashes, line ends and what is outside the basic plane, in a random order."""
        words = ["'", '"', "`", "$HOME", "$(", "\\", "\\n", "{{ $input }}", "})", "#", "=", ";", "-", "%s"]
        words += ["\n", "\r\n", "\t", " ", "é", "\u2028", "🚂"]
        token = "".join(Random(21).choices(words, k=1_000))
        agent = AgentBootstrap(
            script="exec sleep 600\n", token=SecretStr(token), url="https://headrace.example/é?a='b'"
        )
        for spot in (False, True):
            spec = make_spec(agent=agent, image='evil/"image"}:latest')
            handle = await provider.create(spec, await offer_of(provider, spot=spot))
            pod = runpod.account.pods[handle.provider_id]
            assert pod.spot is spot
            assert json.loads(pod.args)["cmd"] == [WITHOUT_VENDOR_KEY + bootstrap_command(agent.script)]
            assert (pod.env["HEADRACE_TOKEN"], pod.env["HEADRACE_URL"]) == (token, agent.url)

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
            {"agent": AgentBootstrap(script="x\n", token=SecretStr(TOKEN), socket="/run/agent.sock")},
            {
                "agent": AgentBootstrap(
                    script="x" * MOST_STRING_BYTES + "\n", token=SecretStr(TOKEN), url="https://h.example"
                )
            },
            {"agent": AgentBootstrap(script="é" * 70_000 + "\n", token=SecretStr(TOKEN), url="https://h.example")},
            {"agent": AgentBootstrap(script="a\0b\n", token=SecretStr(TOKEN), url="https://h.example")},
            {"agent": AgentBootstrap(script="no line feed", token=SecretStr(TOKEN), url="https://h.example")},
            {"agent": AgentBootstrap(script="x\n", token=SecretStr("t" * 131_072), url="https://h.example")},
            {"compute": ComputeRequest(accelerator=RTX_4090, gpu_count=1, ephemeral_disk_gb=1_001)},
            {"ports": tuple(Port(name=f"p{n}", container_port=8000 + n, protocol="http") for n in range(11))},
            {"registry": RegistryCredential(username="", password=SecretStr("x"))},
        ],
        ids=[
            "no URL",
            "long script",
            "long in bytes",
            "NUL",
            "no line",
            "long token",
            "large disk",
            "many ports",
            "no user name",
        ],
    )
    async def test_what_does_not_fit_is_refused_before_anything_is_made(
        self, provider: RunPodProvider, control: CloudControl, changes: dict[str, Any]
    ) -> None:
        offer = await offer_of(provider)
        with pytest.raises(ProviderRejected) as caught:
            await provider.create(make_spec(**changes), offer)
        assert len(caught.value.message) < 300
        assert await control.alive() == []

    async def test_the_agent_is_fetched_so_that_no_list_of_pods_carries_it(self, provider: RunPodProvider) -> None:
        agent = AgentBootstrap(script=agent_script(), token=SecretStr(TOKEN), url="https://headrace.example")
        spec, offer = make_spec(agent=agent), await offer_of(provider)
        body = create_body(spec, offer, None)
        assert body == create_body(spec, offer, None)
        assert len(json.dumps(body)) < 2_048

    async def test_no_workload_has_the_key_that_runpod_gives_to_pods(self, provider: RunPodProvider) -> None:
        body = create_body(make_spec(), await offer_of(provider), None)
        args = json.loads(body["args"])
        assert args["cmd"][0].startswith(WITHOUT_VENDOR_KEY)
        script = "tr '\\0' '\\n' </proc/$$/environ; env; echo \"the script's $HEADRACE_TOKEN\""
        environment = {"PATH": os.environ["PATH"], "RUNPOD_API_KEY": "canary-vendor-key", **body["env"]}
        ran = await asyncio.create_subprocess_exec(
            *args["entrypoint"], WITHOUT_VENDOR_KEY + script, env=environment, stdout=asyncio.subprocess.PIPE
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
