"""The request that makes an instance at Compute Engine: what is in it, and the limits that it is kept to."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from agent.script import agent_script
from domain.errors import ProviderRejected
from domain.spec import RegistryCredential
from providers.base import AgentBootstrap, OfferQuery
from providers.gcp.launch import request_id, user_data
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpOptions
from tests.providers.conformance import OWNER, PASSWORD, TOKEN, until_gone
from tests.providers.gcp_fake import Answer, Call, Fault, GcpServer, google_error
from tests.providers.gcp_support import (
    URL,
    MakeProvider,
    key_pair,
    launched,
    launches,
    metadata,
    offer_for,
    spec_for,
)


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


async def test_the_machine_gets_the_host_agent_and_no_secret_but_the_bootstrap_token(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    registry = RegistryCredential(username="robot", password=SecretStr(PASSWORD))
    spec = spec_for(registry=registry)
    await provider.create(spec, await offer_for(provider))
    script = metadata(launched(gcp))["user-data"]
    assert script.startswith("#!/bin/bash\n")
    assert f"hh_url='{URL}'\nhh_token='{TOKEN}'\nhh_attempt='{spec.attempt_id}'\nhh_image='{spec.image}'\n" in script
    assert "\nhh_cloud=gcp\n" in script
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
