"""What is Compute Engine's own: the launch request, operations, offers, disks, logs. The SDK against our server."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from agent.script import agent_script
from domain.errors import (
    Ambiguous,
    AuthError,
    NoCapacity,
    ProviderError,
    ProviderRejected,
    QuotaExceeded,
)
from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest, Interconnect, RegistryCredential
from providers.base import AgentBootstrap, Handle, InstanceSpec, OfferQuery, ProviderState, TerminateState
from providers.gcp.launch import gibibytes, request_id, user_data
from providers.gcp.prices import Shape, price_of, prices_of
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpCredentials, GcpOptions
from tests.providers.conformance import OWNER, PASSWORD, TOKEN, no_progress, until_gone
from tests.providers.gcp_fake import Answer, Call, Fault, GcpServer, google_error, stock
from tests.providers.gcp_support import key_pair, service_account_key

MakeProvider = Callable[..., GcpProvider]
URL = "https://headrace.example"
AGENT = AgentBootstrap(agent_script(), SecretStr(TOKEN), url=URL)


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


def spec_for(accelerator: str = "cpu-general", gpu_count: int = 0, **changes: Any) -> InstanceSpec:
    compute = ComputeRequest(accelerator=accelerator, gpu_count=gpu_count, ephemeral_disk_gb=100)
    spec = InstanceSpec(new_attempt_id(), OWNER, "job_1aB", "org_1aB", "registry.example/a/b:1", compute, AGENT)
    return replace(spec, **changes)


async def offer_for(
    provider: GcpProvider, accelerator: str = "cpu-general", count: int = 0, spot: bool = False
) -> Offer:
    return next(o for o in await provider.offers(OfferQuery(accelerator, count)) if o.spot is spot)


def launches(gcp: GcpServer) -> list[Call]:
    return [call for call in gcp.calls if call.operation == "create"]


def launched(gcp: GcpServer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(launches(gcp)[-1].body)
    return body


def metadata(body: dict[str, Any]) -> dict[str, str]:
    return {item["key"]: item["value"] for item in body["metadata"]["items"]}


# The launch request ---------------------------------------------------------------------------------------------------


async def test_the_machine_gets_the_host_agent_and_no_secret_but_the_bootstrap_token(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    registry = RegistryCredential(username="robot", password=SecretStr(PASSWORD))
    spec = spec_for(registry=registry)
    await provider.create(spec, await offer_for(provider))
    script = metadata(launched(gcp))["user-data"]
    assert script.startswith("#!/bin/bash\n")
    assert f"hh_url='{URL}'\nhh_token='{TOKEN}'\nhh_attempt='{spec.attempt_id}'\nhh_image='{spec.image}'\n" in script
    assert agent_script() in script
    private_key_line = key_pair()[0].splitlines()[1]
    for secret in (PASSWORD, private_key_line):
        assert secret not in launches(gcp)[0].body


async def test_google_deletes_the_machine_by_itself_and_it_has_no_identity(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    await provider.create(spec_for(), await offer_for(provider))
    body = launched(gcp)
    assert body["scheduling"] == {
        "provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE", "automaticRestart": False,
        "instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": str(7 * 24 * 3600)},
    }  # fmt: skip
    assert not body.get("serviceAccounts")
    assert metadata(body)["block-project-ssh-keys"] == "true"
    assert "ssh-keys" not in metadata(body)


@pytest.mark.parametrize(("limited", "seconds"), [(5_400, 5_400), (10**8, 120 * 24 * 3600)])
async def test_a_machine_of_a_job_with_limits_is_deleted_by_those_as_far_as_google_counts(
    provider: GcpProvider, gcp: GcpServer, limited: int, seconds: int
) -> None:
    await provider.create(spec_for(lifetime_seconds=limited), await offer_for(provider))
    assert launched(gcp)["scheduling"]["maxRunDuration"] == {"seconds": str(seconds)}


async def test_a_spot_machine_is_deleted_when_it_is_taken_back(provider: GcpProvider, gcp: GcpServer) -> None:
    await provider.create(spec_for(), await offer_for(provider, spot=True))
    scheduling = launched(gcp)["scheduling"]
    assert scheduling["provisioningModel"] == "SPOT"
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert [charge.spot for charge in gcp.cloud.bill] == [True]


async def test_the_machine_and_its_disk_say_whose_they_are_and_go_together(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec = spec_for()
    handle = await provider.create(spec, await offer_for(provider))
    body, expected = launched(gcp), {"headrace-owner": OWNER, "headrace-attempt": spec.attempt_id}
    (disk,) = body["disks"]
    assert body["labels"] == disk["initializeParams"]["labels"] == expected
    assert body["name"] == disk["initializeParams"]["diskName"] == handle.provider_id
    assert spec.attempt_id in body["name"]
    assert disk["autoDelete"] is True
    assert "job_1aB" in body["description"]
    assert "org_1aB" in body["description"]
    await until_gone(provider, handle)
    assert gcp.cloud.disks == {}
    assert gcp.cloud.running_charges() == []


async def test_the_disk_has_room_for_the_image_and_what_was_asked_for(provider: GcpProvider, gcp: GcpServer) -> None:
    await provider.create(spec_for(), await offer_for(provider))
    boot = launched(gcp)["disks"][0]["initializeParams"]
    assert int(boot["diskSizeGb"]) == 10 + 94
    assert boot["diskType"].endswith("/pd-balanced")
    assert gibibytes(1) == 1


async def test_gpus_that_are_no_part_of_a_machine_are_attached_to_it(provider: GcpProvider, gcp: GcpServer) -> None:
    offer = await offer_for(provider, "nvidia-t4-16gb", 2)
    await provider.create(spec_for("nvidia-t4-16gb", 2), offer)
    body = launched(gcp)
    assert body["machineType"] == f"zones/{offer.zone}/machineTypes/n1-standard-16"
    assert body["guestAccelerators"] == [
        {"acceleratorType": f"zones/{offer.zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    ]


async def test_a_machine_that_comes_with_its_gpus_gets_none_attached(provider: GcpProvider, gcp: GcpServer) -> None:
    await provider.create(spec_for("nvidia-h100-80gb", 8), await offer_for(provider, "nvidia-h100-80gb", 8))
    body = launched(gcp)
    assert "guestAccelerators" not in body
    assert "nvidia" in body["disks"][0]["initializeParams"]["sourceImage"]


async def test_networks_of_the_project_are_used_where_they_are_named(
    make_gcp_provider: MakeProvider, gcp: GcpServer
) -> None:
    subnetwork = "regions/us-central1/subnetworks/jobs"
    provider = make_gcp_provider(
        network="global/networks/jobs", subnetworks={"us-central1": subnetwork}, network_tags=("jobs",),
        public_address=False,
    )  # fmt: skip
    offers = await provider.offers(OfferQuery("cpu-general", 0))
    await provider.create(spec_for(), next(o for o in offers if o.region == "us-central1"))
    body = launched(gcp)
    assert body["networkInterfaces"] == [{"network": "global/networks/jobs", "subnetwork": subnetwork}]
    assert body["tags"] == {"items": ["jobs"]}
    with pytest.raises(ProviderRejected, match="no subnetwork"):
        await provider.create(spec_for(), next(o for o in offers if o.region == "us-east1"))


# Its limits -----------------------------------------------------------------------------------------------------------


def test_user_data_is_the_same_for_every_retry_of_an_attempt() -> None:
    spec = spec_for()
    assert user_data(spec, GcpOptions()) == user_data(replace(spec), GcpOptions())
    assert len(user_data(spec, GcpOptions()).encode()) < 262_144


async def test_a_request_id_is_of_the_attempt_and_the_offer(provider: GcpProvider) -> None:
    spec, (here, there, *_) = spec_for(), await provider.offers(OfferQuery("cpu-general", 0))
    assert request_id(spec, here) == request_id(replace(spec), here)
    assert request_id(spec, here) != request_id(spec, there)
    assert request_id(spec, here) != request_id(spec_for(), here)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"agent": AgentBootstrap("x", SecretStr(TOKEN), socket="/run/headrace.sock")}, "public URL"),
        ({"image": 'a"b'}, "hh_image"),
        ({"job_id": "j" * 2_048}, "at most 2048"),
        ({"owner_id": "Owner"}, "lower-case"),
        ({"owner_id": "o" * 40}, "no name of an instance"),
        ({"agent": AgentBootstrap("x" * 262_144, SecretStr(TOKEN), url=URL)}, "at most 262144"),
    ],
)
async def test_a_request_that_breaks_a_limit_is_refused_before_it_is_sent(
    provider: GcpProvider, gcp: GcpServer, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ProviderRejected, match=why) as caught:
        await provider.create(spec_for(**changes), await offer_for(provider))
    assert TOKEN not in str(caught.value)
    assert launches(gcp) == []


async def test_an_error_that_repeats_the_user_data_does_not_show_it(provider: GcpProvider, gcp: GcpServer) -> None:
    def echo(call: Call) -> Answer:
        script = metadata(json.loads(call.body))["user-data"]
        return google_error(400, "invalid", f"Invalid value for field 'metadata': '{script}'")

    gcp.faults.append(Fault("create", before=echo))
    with pytest.raises(ProviderRejected) as caught:
        await provider.create(spec_for(), await offer_for(provider))
    assert "hh_attempt" not in caught.value.message
    assert TOKEN not in caught.value.message


# Creates and their operations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"), [("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity), ("QUOTA_EXCEEDED", QuotaExceeded)]
)
async def test_a_zone_without_capacity_says_so_in_its_operation_and_the_next_zone_serves(
    provider: GcpProvider, gcp: GcpServer, code: str, kind: type[ProviderError]
) -> None:
    first, second = [o for o in await provider.offers(OfferQuery("nvidia-l4-24gb", 1)) if not o.spot][:2]
    gcp.cloud.next_failure = (code, "none left")
    with pytest.raises(kind, match="none left"):
        await provider.create(spec_for("nvidia-l4-24gb", 1), first)
    handle = await provider.create(spec_for("nvidia-l4-24gb", 1), second)
    assert handle.data["zone"] == second.zone != first.zone


async def test_a_lack_of_capacity_that_shows_late_ends_the_provision(
    make_gcp_provider: MakeProvider, gcp: GcpServer
) -> None:
    provider, spec = make_gcp_provider(capacity_seconds=0), spec_for()
    gcp.cloud.next_failure = ("ZONE_RESOURCE_POOL_EXHAUSTED", "none left")
    handle = await provider.create(spec, await offer_for(provider))
    # The first look finds the operation running, and no instance: that is not yet the end.
    with pytest.raises(NoCapacity, match="none left"):
        await provider.provision(handle, spec, no_progress)
    assert await provider.terminate(handle) is TerminateState.GONE


async def test_a_create_that_lost_its_answer_is_told_of_the_lack_of_capacity_when_it_is_repeated(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec, offer = spec_for(), await offer_for(provider)
    gcp.cloud.next_failure = ("ZONE_RESOURCE_POOL_EXHAUSTED", "none left")
    gcp.faults.append(Fault("create", loss="reset"))
    with pytest.raises(Ambiguous):
        await provider.create(spec, offer)
    assert await provider.find(spec.attempt_id) == []
    with pytest.raises(NoCapacity):
        await provider.create(spec, offer)


async def test_a_name_that_is_taken_is_the_instance_that_an_earlier_create_made(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec, offer = spec_for(), await offer_for(provider)
    first = await provider.create(spec, offer)
    gcp.cloud._requests.clear()  # Google forgot the request, not the name
    again = await provider.create(spec, offer)
    assert (again.provider_id, again.data["id"]) == (first.provider_id, first.data["id"])
    gcp.cloud.of(spec.attempt_id)[0].hidden_reads = 1
    unseen = await provider.create(spec, offer)
    assert unseen.provider_id == first.provider_id
    assert len(gcp.cloud.bill) == 1
    await until_gone(provider, unseen)


async def test_a_name_that_a_stranger_has_is_refused(provider: GcpProvider, gcp: GcpServer) -> None:
    spec, offer = spec_for(), await offer_for(provider)
    await provider.create(spec, offer)
    gcp.cloud._requests.clear()
    gcp.cloud.of(spec.attempt_id)[0].resource["labels"]["headrace-owner"] = "stranger"
    with pytest.raises(ProviderRejected, match="not ours"):
        await provider.create(spec, offer)


async def test_a_type_that_the_zone_does_not_have_is_no_capacity(provider: GcpProvider) -> None:
    offer = await offer_for(provider, "nvidia-h100-80gb", 8)
    with pytest.raises(NoCapacity, match="machineTypes"):
        await provider.create(
            spec_for("nvidia-h100-80gb", 8), offer.model_copy(update={"zone": "us-east1-c", "region": "us-east1"})
        )


async def test_a_machine_image_that_does_not_exist_is_a_mistake(make_gcp_provider: MakeProvider) -> None:
    provider = make_gcp_provider(cpu_image="projects/ubuntu-os-cloud/global/images/no-such-image")
    with pytest.raises(ProviderRejected, match="no-such-image"):
        await provider.create(spec_for(), await offer_for(provider))


async def test_a_create_is_sent_once_whatever_answers(provider: GcpProvider, gcp: GcpServer) -> None:
    offer = await offer_for(provider)
    for status, reason in ((500, "internalError"), (503, "backendError"), (401, "authError"), (429, "x")):
        gcp.calls.clear()
        gcp.faults.append(Fault("create", before=lambda call, s=status, r=reason: google_error(s, r, "no")))
        with pytest.raises(ProviderError):
            await provider.create(spec_for(), offer)
        assert len(launches(gcp)) == 1


async def test_an_answer_that_is_no_operation_is_ambiguous(provider: GcpProvider, gcp: GcpServer) -> None:
    offer = await offer_for(provider)
    for body in (b"{}", b"[]", b'{"kind": "compute#operation"}'):
        gcp.faults.append(Fault("create", before=lambda call, b=body: Answer(200, b)))
        with pytest.raises(Ambiguous):
            await provider.create(spec_for(), offer)


async def test_a_preempted_machine_is_interrupted_though_google_deleted_it(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec = spec_for()
    handle = await provider.create(spec, await offer_for(provider, spot=True))
    (machine,) = gcp.cloud.of(spec.attempt_id)
    gcp.cloud.end(machine, "compute.instances.preempted", "Instance was preempted.", delete=True)
    view = await provider.get(handle)
    assert view is not None
    assert (view.state, view.message) == (ProviderState.INTERRUPTED, "Instance was preempted.")
    assert view.attempt_id == spec.attempt_id
    assert await provider.terminate(handle) is TerminateState.GONE
    assert gcp.cloud.running_charges() == []


async def test_a_machine_that_powered_itself_off_is_there_until_it_is_deleted(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec = spec_for()
    handle = await provider.create(spec, await offer_for(provider))
    (machine,) = gcp.cloud.of(spec.attempt_id)
    gcp.cloud.end(machine, "compute.instances.guestTerminate", "Instance was terminated by guest OS.", delete=False)
    view = await provider.get(handle)
    assert view is not None
    assert view.state is ProviderState.EXITED
    assert [listed.state for listed in await provider.list_owned()] == [ProviderState.EXITED]
    await until_gone(provider, handle)
    assert gcp.cloud.disks == {}


# Offers ---------------------------------------------------------------------------------------------------------------


async def test_a_machine_is_offered_in_each_of_its_zones_on_demand_and_spot_for_the_sum_of_its_parts(
    provider: GcpProvider,
) -> None:
    offers = await provider.offers(OfferQuery("nvidia-l4-24gb", 1))
    assert {offer.zone for offer in offers} == {"us-central1-a", "us-central1-b", "us-east1-c"}
    # 4 x 0.024988 + 16 x 0.002927 + 0.56004, and 4 x 0.009995 + 16 x 0.001171 + 0.224016
    assert {(o.spot, o.price_usd_hr) for o in offers} == {(False, Decimal("0.706824")), (True, Decimal("0.282732"))}
    one = offers[0]
    assert (one.gpu_count, one.gpu_memory_gb, one.vcpus, one.memory_gb) == (1, 24, 4, 16)
    assert one.interconnect is Interconnect.PCIE
    assert one.terms.pricing_model.unit_seconds == 1


async def test_local_disks_that_come_with_a_machine_are_in_its_price(provider: GcpProvider) -> None:
    offer = await offer_for(provider, "nvidia-h100-80gb", 8)
    parts = 208 * Decimal("0.029311") + 1872 * Decimal("0.002553") + 8 * Decimal("9.79655")
    assert offer.price_usd_hr == (parts + 16 * 375 * Decimal("0.08") / 730).quantize(Decimal("1e-9"))
    assert offer.interconnect is Interconnect.NVLINK


async def test_everything_that_the_catalog_knows_is_offered(provider: GcpProvider) -> None:
    offered = {offer.provider_sku: offer.accelerator for offer in await provider.offers(OfferQuery())}
    assert offered == {
        "e2-standard-2": "cpu-general",
        "e2-standard-8": "cpu-general",
        "g2-standard-4": "nvidia-l4-24gb",
        "a2-highgpu-1g": "nvidia-a100-40gb",
        "a3-highgpu-8g": "nvidia-h100-80gb",
        "n1-standard-8+1xnvidia-tesla-t4": "nvidia-t4-16gb",
        "n1-standard-16+2xnvidia-tesla-t4": "nvidia-t4-16gb",
    }


async def test_a_used_up_quota_makes_an_offer_unavailable(provider: GcpProvider, gcp: GcpServer) -> None:
    async def available(accelerator: str, count: int) -> dict[bool, bool]:
        return {o.spot: o.available for o in await provider.offers(OfferQuery(accelerator, count))}

    assert await available("nvidia-l4-24gb", 1) == {False: True, True: True}
    gcp.cloud.quotas = {"NVIDIA_L4_GPUS": (2.0, 2.0), "PREEMPTIBLE_NVIDIA_L4_GPUS": (1.0, 0.0), "CPUS": (8.0, 7.0)}
    assert await available("nvidia-l4-24gb", 1) == {False: False, True: True}
    assert await available("cpu-general", 0) == {False: False, True: False}
    # A region states none for this one.
    assert await available("nvidia-h100-80gb", 8) == {False: True, True: True}
    gcp.cloud.project_quotas = {"GPUS_ALL_REGIONS": (8.0, 1.0)}
    assert await available("nvidia-h100-80gb", 8) == {False: False, True: False}


async def test_regions_that_are_not_asked_for_are_not_offered(make_gcp_provider: MakeProvider, gcp: GcpServer) -> None:
    for sku in gcp.skus:
        sku["serviceRegions"].append("europe-west4")
    some = await make_gcp_provider(regions=("us-east1",)).offers(OfferQuery())
    assert {offer.region for offer in some} == {"us-east1"}
    every = await make_gcp_provider(regions=()).offers(OfferQuery())
    assert {offer.region for offer in every} == {"us-central1", "us-east1", "europe-west4"}


async def test_a_price_is_kept_for_a_while_and_then_asked_for(make_gcp_provider: MakeProvider, gcp: GcpServer) -> None:
    keeping, asking = make_gcp_provider(), make_gcp_provider(catalog_seconds=0)
    for provider in (keeping, asking):
        await provider.offers(OfferQuery("cpu-general"))
    for sku in gcp.skus:
        if sku["description"] == "E2 Instance Core running in Americas" and sku["category"]["usageType"] == "OnDemand":
            sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = {"units": "1", "nanos": 0}
    expected = {keeping: Decimal("0.06701142"), asking: Decimal("2.02338824")}
    for provider, price in expected.items():
        assert (await offer_for(provider)).price_usd_hr == price


def test_the_dearer_of_two_prices_and_the_dearest_tier_count() -> None:
    skus = stock.skus()
    core = next(sku for sku in skus if sku["description"] == "E2 Instance Core running in Americas")
    rates = core["pricingInfo"][0]["pricingExpression"]["tieredRates"]
    rates.append({"startUsageAmount": 100, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 50_000_000}})
    shape = Shape("e2-standard-2", 2, 8192)
    assert price_of(shape, "us-east1", False, prices_of(skus)) == Decimal("0.12338824")
    assert price_of(shape, "nowhere", False, prices_of(skus)) is None


async def test_a_machine_of_which_a_part_has_no_price_is_not_offered(provider: GcpProvider, gcp: GcpServer) -> None:
    gcp.skus = [sku for sku in gcp.skus if sku["description"] != "Nvidia L4 GPU running in Americas"]
    assert {offer.spot for offer in await provider.offers(OfferQuery("nvidia-l4-24gb", 1))} == {True}


@pytest.mark.parametrize(
    "price", [{"units": "NaN"}, {"units": "-1"}, {"units": "cheap"}, {"units": "1", "currencyCode": "EUR"}]
)
async def test_a_price_that_is_none_spoils_the_list(
    provider: GcpProvider, gcp: GcpServer, price: dict[str, str]
) -> None:
    core = next(sku for sku in gcp.skus if sku["description"] == "E2 Instance Core running in Americas")
    core["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = price
    with pytest.raises(Ambiguous, match="price"):
        await provider.offers(OfferQuery())


@pytest.mark.parametrize(
    "change",
    [
        {"unreachables": ["zones/us-central1-b"]},
        {"warning": {"code": "UNREACHABLE", "message": "us-central1-b"}},
        {"items": {"zones/us-central1-b": {"warning": {"code": "UNREACHABLE", "message": "down"}}}},
        {"kind": "compute#something"},
        {"nextPageToken": "0"},
    ],
)
async def test_half_of_the_zones_is_no_list(provider: GcpProvider, gcp: GcpServer, change: dict[str, Any]) -> None:
    def spoil(call: Call, answer: Answer) -> Answer:
        return Answer(200, json.dumps({**json.loads(answer.body), **change}).encode())

    gcp.faults += [Fault("list", spoil=spoil), Fault("list", spoil=spoil)]
    with pytest.raises(Ambiguous):
        await provider.list_owned()


# Disks, sweeps --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def left_disk(provider: GcpProvider, gcp: GcpServer) -> tuple[InstanceSpec, Handle]:
    """A disk that outlived its instance."""
    spec = spec_for()
    handle = await provider.create(spec, await offer_for(provider))
    (machine,) = gcp.cloud.of(spec.attempt_id)
    machine.keeps_disk = True
    gcp.cloud.vanish(machine)
    assert len(gcp.cloud.disks) == 1
    return spec, handle


async def test_a_disk_that_was_left_behind_keeps_the_attempt_from_being_gone(
    provider: GcpProvider, gcp: GcpServer, left_disk: tuple[InstanceSpec, Handle]
) -> None:
    _, handle = left_disk
    assert await provider.terminate(handle) is TerminateState.REQUESTED
    assert gcp.cloud.disks == {}
    assert await provider.terminate(handle) is TerminateState.GONE


async def test_a_sweep_finds_a_disk_that_was_left_behind_and_can_delete_it(
    provider: GcpProvider, left_disk: tuple[InstanceSpec, Handle]
) -> None:
    spec, _ = left_disk
    (view,) = await provider.list_owned()
    assert view.handle.resource_type == "disk"
    assert view.attempt_id == spec.attempt_id
    assert await provider.find(spec.attempt_id) == []
    assert await provider.get(view.handle) is not None
    await until_gone(provider, view.handle)
    assert await provider.get(view.handle) is None
    assert await provider.list_owned() == []


async def test_a_sweep_lists_twice_however_many_machines_there_are(provider: GcpProvider, gcp: GcpServer) -> None:
    offer = await offer_for(provider)
    for _ in range(2):
        await provider.create(spec_for(), offer)
    gcp.calls.clear()
    assert len(await provider.list_owned()) == 2
    assert sorted(call.path.rpartition("/")[2] for call in gcp.calls) == ["disks", "instances"]


async def test_a_machine_in_a_region_that_is_not_used_any_more_is_still_found(
    make_gcp_provider: MakeProvider, provider: GcpProvider
) -> None:
    spec = spec_for()
    handle = await provider.create(spec, await offer_for(provider))
    now = make_gcp_provider(regions=("us-east1",))
    assert [view.attempt_id for view in await now.list_owned()] == [spec.attempt_id]
    assert [found.provider_id for found in await now.find(spec.attempt_id)] == [handle.provider_id]


async def test_what_a_filter_let_through_and_is_not_ours_is_left_alone(provider: GcpProvider, gcp: GcpServer) -> None:
    spec = spec_for()
    await provider.create(spec, await offer_for(provider))

    def disown(call: Call, answer: Answer) -> Answer:
        return Answer(200, answer.body.replace(OWNER.encode(), b"somebody"))

    gcp.faults += [Fault("list", spoil=disown), Fault("GET aggregated/disks", spoil=disown)]
    assert await provider.list_owned() == []


# Logs, credentials, the SDK -------------------------------------------------------------------------------------------


async def test_the_serial_port_goes_on_from_its_cursor(provider: GcpProvider, gcp: GcpServer) -> None:
    handle = await provider.create(spec_for(), await offer_for(provider))
    first = await provider.logs(handle, None)
    gcp.cloud.console += "three\n"
    second = await provider.logs(handle, first.cursor)
    assert (first.text, second.text) == ("one\ntwo\n", "three\n")
    assert (await provider.logs(handle, second.cursor)).text == ""
    assert (await provider.logs(handle, "nonsense")).text == "one\ntwo\nthree\n"


async def test_a_key_that_was_revoked_is_told_by_every_call(provider: GcpProvider, gcp: GcpServer) -> None:
    handle = await provider.create(spec_for(), await offer_for(provider))
    gcp.revoked = True
    assert (await provider.verify()).status == "auth"
    for call in (
        provider.get(handle),
        provider.terminate(handle),
        provider.list_owned(),
        provider.offers(OfferQuery()),
    ):
        with pytest.raises(AuthError):
            await call
    gcp.revoked = False
    assert await provider.get(handle) is not None


async def test_a_price_list_that_may_not_be_read_is_told_by_verify(provider: GcpProvider, gcp: GcpServer) -> None:
    refuse = google_error(403, "SERVICE_DISABLED", "Cloud Billing API has not been used in project 1 before.")
    gcp.faults += [Fault("verify"), Fault("verify", before=lambda call: refuse)]
    report = await provider.verify()
    assert report.status == "permission"
    assert "Cloud Billing API" in report.message


def test_credentials_are_the_fields_of_the_form_and_show_no_secret() -> None:
    assert set(GcpCredentials.model_fields) == {"project_id", "service_account_key"}
    credentials = GcpCredentials(service_account_key=SecretStr(service_account_key()))
    assert credentials.project_id == stock.PROJECT
    assert "PRIVATE KEY" not in repr(credentials) + credentials.model_dump_json()
    other = GcpCredentials(project_id="another-project", service_account_key=SecretStr(service_account_key()))
    assert other.project_id == "another-project"


def test_tokens_come_from_google_whatever_the_key_says() -> None:
    credentials = GcpCredentials(service_account_key=SecretStr(service_account_key(token_uri="http://10.0.0.1/")))
    assert credentials.key()["token_uri"] == "https://oauth2.googleapis.com/token"


@pytest.mark.parametrize(
    "key",
    [
        "not JSON", "[]", "{}", '{"type": "authorized_user"}', service_account_key(private_key=""),
        service_account_key(client_email=1), service_account_key(universe_domain="cloud.example"),
        service_account_key(project_id="No Project"),
    ],
)  # fmt: skip
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GcpCredentials.model_validate({"service_account_key": key})
    assert "PRIVATE KEY" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"regions": ("nowhere",)}, {"page_size": 501}, {"unheard_of": 1}, {"lifetime_seconds": 121 * 86_400},
        {"cpu_image": "ubuntu"}, {"cpu_families": ('e2"',)},
    ],
)  # fmt: skip
def test_options_that_are_none_are_refused(make_gcp_provider: MakeProvider, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_gcp_provider(**options)


def test_the_sdk_is_not_loaded_before_the_first_call() -> None:
    code = f"""
import sys
from pydantic import SecretStr
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpCredentials
from providers.base import ProviderContext
credentials = GcpCredentials(service_account_key=SecretStr({service_account_key()!r}))
GcpProvider(ProviderContext("gcp-1", "owner", "/nonexistent"), credentials)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("google", "requests", "proto", "urllib3")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_jobs_among_faults_leave_nothing_and_no_charge_runs_on(provider: GcpProvider, gcp: GcpServer) -> None:
    """Every other create loses its answer or finds nothing; whoever asks again as the control plane does ends well."""
    losses, started = ("reset", "html_502", "truncated", "internal"), datetime.now(UTC)
    offers = [o for o in await provider.offers(OfferQuery("cpu-general", 0)) if o.available]
    for number in range(12):
        spec = spec_for()
        if number % 2:
            gcp.faults.append(Fault("create", loss=losses[number // 2 % len(losses)]))
        elif number % 4 == 0:
            gcp.cloud.next_failure = ("ZONE_RESOURCE_POOL_EXHAUSTED", "none left")
        handle = None
        for offer in offers[:2]:
            try:
                handle = await provider.create(spec, offer)
            except Ambiguous:
                (handle,) = await provider.find(spec.attempt_id)
            except NoCapacity:
                continue
            break
        assert handle is not None
        ready = await provider.provision(handle, spec, no_progress)
        if number % 3 == 0:
            (machine,) = gcp.cloud.of(spec.attempt_id)
            gcp.cloud.end(machine, "compute.instances.preempted", "preempted", delete=True)
        await until_gone(provider, ready)
    assert len(gcp.cloud.bill) == 12
    assert gcp.cloud.running_charges() == []
    assert all(charge.started_at >= started.timestamp() - 1 for charge in gcp.cloud.bill)
    assert (gcp.cloud.machines, gcp.cloud.disks) == ({}, {})
    assert await provider.list_owned() == []
