"""The request that makes a machine at EC2: what it says, its limits, its token. boto3 itself, against moto."""

import gzip
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote_plus

import pytest
from pydantic import SecretStr

from agent.script import agent_script
from domain.errors import Ambiguous, NoCapacity, ProviderError, ProviderRejected
from domain.offers import Offer
from domain.spec import RegistryCredential
from providers.aws.launch import client_token, user_data
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsOptions
from providers.base import AgentBootstrap, OfferQuery, ProviderState, TerminateState
from providers.virtual_machine import gibibytes
from tests.providers.aws_server import Answer, AwsServer, Call, Fault, ec2_error
from tests.providers.aws_support import SECRET_KEY, URL, MakeProvider, launch, offer_for, spec_for
from tests.providers.conformance import OWNER, PASSWORD, TOKEN, no_progress, until_gone


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


async def test_the_machine_gets_the_host_agent_and_no_secret_but_the_bootstrap_token(
    provider: AwsProvider, aws: AwsServer
) -> None:
    registry = RegistryCredential(username="robot", password=SecretStr(PASSWORD))
    spec = spec_for(registry=registry)
    await provider.create(spec, await offer_for(provider))
    script = gzip.decompress(aws.user_data(aws.instance(spec.attempt_id))).decode()
    assert script.startswith("#!/bin/bash\n")
    assert f"hh_url='{URL}'\nhh_token='{TOKEN}'\nhh_attempt='{spec.attempt_id}'\nhh_image='{spec.image}'\n" in script
    assert agent_script() in script
    for secret in (PASSWORD, "robot", SECRET_KEY):
        assert secret not in script


async def test_the_machine_deletes_itself_when_it_powers_off_and_has_no_identity(
    provider: AwsProvider, aws: AwsServer
) -> None:
    spec = spec_for()
    await provider.create(spec, await offer_for(provider))
    form = launch(aws).form
    assert form["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert form["MetadataOptions.HttpTokens"] == "required"
    assert form["MetadataOptions.HttpPutResponseHopLimit"] == "1"
    assert form["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
    for absent in ("KeyName", "IamInstanceProfile", "SecurityGroup", "NetworkInterface", "SubnetId"):
        assert not any(key.startswith(absent) for key in form), absent


async def test_the_machine_and_its_volume_say_whose_they_are(provider: AwsProvider, aws: AwsServer) -> None:
    spec = spec_for()
    await provider.create(spec, await offer_for(provider))
    expected = {
        "Name": f"{OWNER}-{spec.attempt_id}", "headrace-owner": OWNER, "headrace-attempt": spec.attempt_id,
        "headrace-job": "job_1", "headrace-org": "org_1",
    }  # fmt: skip
    assert aws.tags(aws.instance(spec.attempt_id)) == expected
    (volume,) = (v for v in aws.backend("us-east-1").volumes.values() if v.get_tags())
    assert {tag["key"]: tag["value"] for tag in volume.get_tags()} == expected


async def test_a_spot_machine_is_asked_for_once_and_deleted_when_it_is_taken_back(
    provider: AwsProvider, aws: AwsServer
) -> None:
    await provider.create(spec_for(), await offer_for(provider, spot=True))
    form = launch(aws).form
    assert form["InstanceMarketOptions.MarketType"] == "spot"
    assert form["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert form["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"


async def test_an_on_demand_machine_is_no_spot_machine(provider: AwsProvider, aws: AwsServer) -> None:
    await provider.create(spec_for(), await offer_for(provider))
    assert not any("Market" in key for key in launch(aws).form)


async def test_the_disk_has_room_for_the_image_and_what_was_asked_for(provider: AwsProvider, aws: AwsServer) -> None:
    await provider.create(spec_for(), await offer_for(provider))
    image = await provider._image("us-east-1", AwsOptions().cpu_image, "test")
    assert image.size_gb > 0
    assert int(launch(aws).form["BlockDeviceMapping.1.Ebs.VolumeSize"]) == image.size_gb + 94


async def test_groups_and_subnets_of_the_account_are_used_where_they_are_named(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    backend = aws.backend("us-east-1")
    subnet = next(
        s for zones in backend.subnets.values() for s in zones.values() if s.availability_zone == "us-east-1b"
    )
    group = next(g for groups in backend.groups.values() for g in groups.values() if g.name == "default")
    provider = make_aws_provider(security_group_ids=(group.id,), subnet_ids={"us-east-1b": subnet.id})
    offers = await provider.offers(OfferQuery())
    assert {offer.zone for offer in offers} == {"us-east-1b"}
    await provider.create(spec_for(), offers[0])
    assert launch(aws).form["SecurityGroupId.1"] == group.id
    assert launch(aws).form["SubnetId"] == subnet.id


async def test_nothing_is_made_but_the_machine(provider: AwsProvider, aws: AwsServer) -> None:
    def made() -> tuple[int, int]:
        backend = aws.backend("us-east-1")
        return len(backend.key_pairs), sum(len(groups) for groups in backend.groups.values())

    before = made()
    handle = await provider.provision(
        await provider.create(spec := spec_for(), await offer_for(provider)), spec, no_progress
    )
    assert made() == before
    await until_gone(provider, handle)
    assert made() == before
    assert not [v for v in aws.backend("us-east-1").volumes.values() if v.get_tags()]


# Its limits -----------------------------------------------------------------------------------------------------------


def test_user_data_is_the_same_bytes_for_every_retry_of_an_attempt() -> None:
    spec = spec_for()
    assert user_data(spec, AwsOptions()) == user_data(replace(spec), AwsOptions())
    assert len(user_data(spec, AwsOptions())) < 16_384


@pytest.mark.parametrize(("limited", "seconds"), [(None, 7 * 24 * 3600), (5_400, 5_400), (10**7, 10**7)])
def test_a_machine_powers_itself_off_by_the_jobs_limits_or_else_the_connections(
    limited: int | None, seconds: int
) -> None:
    script = gzip.decompress(user_data(spec_for(lifetime_seconds=limited), AwsOptions())).decode()
    assert f"\nhh_lifetime_seconds={seconds}\n" in script


def test_a_machine_asks_for_a_registrys_credentials_only_where_the_job_has_them() -> None:
    credential = RegistryCredential(username="robot", password=SecretStr(PASSWORD))
    public, private = (
        gzip.decompress(user_data(spec_for(registry=registry), AwsOptions())).decode()
        for registry in (None, credential)
    )
    assert "\nhh_private=0\n" in public
    assert "\nhh_private=1\n" in private
    assert PASSWORD not in private
    assert "robot" not in private


def test_a_token_is_of_the_attempt_and_the_offer_and_fits(provider: AwsProvider) -> None:
    spec = spec_for()
    here = _priced_offer("us-east-1a:m7i.large:on-demand")
    assert client_token(spec, here) == client_token(replace(spec), here)
    assert client_token(spec, here) != client_token(spec, _priced_offer("us-east-1b:m7i.large:on-demand"))
    assert client_token(spec, here) != client_token(spec_for(), here)
    assert re.fullmatch(r"[0-9a-f]{64}", client_token(spec, here))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"agent": AgentBootstrap("x", SecretStr(TOKEN), socket="/run/headrace.sock")}, "public URL"),
        ({"image": 'a"b'}, "hh_image"),
        ({"job_id": "j" * 257}, "257 characters"),
    ],
)
async def test_a_request_that_breaks_a_limit_is_refused_before_it_is_sent(
    provider: AwsProvider, aws: AwsServer, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ProviderRejected, match=why) as caught:
        await provider.create(spec_for(**changes), await offer_for(provider))
    assert TOKEN not in str(caught.value)
    assert not [call for call in aws.calls if call.operation == "create"]


async def test_an_agent_that_does_not_fit_the_user_data_is_refused(provider: AwsProvider) -> None:
    noise = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(8_000))
    agent = AgentBootstrap(noise, SecretStr(TOKEN), url=URL)
    with pytest.raises(ProviderRejected, match="at most 16384"):
        await provider.create(spec_for(agent=agent), await offer_for(provider))


def test_volumes_are_counted_in_gibibytes() -> None:
    assert gibibytes(100) == 94
    assert gibibytes(1) == 1


async def test_an_error_that_repeats_the_user_data_does_not_show_it(provider: AwsProvider, aws: AwsServer) -> None:
    def echo(call: Call) -> Answer:
        data = call.form["UserData"]
        return ec2_error(400, "InvalidParameterValue", f"{data[:40]} is no user data: {data} {quote_plus(data)}")

    spec = spec_for()
    aws.faults.append(Fault("create", before=echo))
    with pytest.raises(ProviderRejected) as caught:
        await provider.create(spec, await offer_for(provider))
    shown = caught.value.message.partition(" is no user data: ")[2]
    assert shown == "*** ***"


# Tokens ---------------------------------------------------------------------------------------------------------------


async def test_a_retry_after_the_machine_image_changed_adopts_what_the_token_made(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    spec, provider = spec_for(), make_aws_provider()
    offer = await offer_for(provider)
    first = await provider.create(spec, offer)
    other = next(
        i.id for i in aws.backend("us-east-1").describe_images() if i.id != aws.instance(spec.attempt_id).image_id
    )
    again = await make_aws_provider(cpu_image=other).create(spec, offer)
    assert again.provider_id == first.provider_id
    assert len(aws.instances(spec.attempt_id)) == 1


async def test_a_retry_after_the_machine_died_gets_the_dead_one_and_no_second(
    provider: AwsProvider, aws: AwsServer
) -> None:
    spec, offer = spec_for(), await offer_for(provider)
    first = await provider.create(spec, offer)
    aws.end(aws.instance(spec.attempt_id), "Server.SpotInstanceTermination", "taken back")
    again = await provider.create(spec, offer)
    assert again.provider_id == first.provider_id
    view = await provider.get(again)
    assert view is not None
    assert view.state is ProviderState.INTERRUPTED
    assert await provider.terminate(again) is TerminateState.GONE


async def test_a_create_is_sent_once_whatever_answers(provider: AwsProvider, aws: AwsServer) -> None:
    offer = await offer_for(provider)
    for status, code in ((500, "InternalError"), (503, "RequestLimitExceeded"), (500, "InsufficientInstanceCapacity")):
        aws.calls.clear()
        aws.faults.append(Fault("create", before=lambda call, s=status, c=code: ec2_error(s, c, "no")))
        with pytest.raises(ProviderError):
            await provider.create(spec_for(), offer)
        assert len([call for call in aws.calls if call.operation == "create"]) == 1


async def test_an_answer_without_an_instance_is_ambiguous(provider: AwsProvider, aws: AwsServer) -> None:
    empty = Answer(200, b"<RunInstancesResponse><instancesSet/></RunInstancesResponse>")
    aws.faults.append(Fault("create", before=lambda call: empty))
    with pytest.raises(Ambiguous):
        await provider.create(spec_for(), await offer_for(provider))


async def test_a_zone_without_capacity_says_so_and_the_next_zone_serves(provider: AwsProvider, aws: AwsServer) -> None:
    first, second = [o for o in await provider.offers(OfferQuery("nvidia-h100-80gb", 8)) if not o.spot][:2]
    aws.faults.append(Fault("create", before=lambda call: ec2_error(500, "InsufficientInstanceCapacity", "none left")))
    with pytest.raises(NoCapacity, match="none left"):
        await provider.create(spec_for("nvidia-h100-80gb", 8), first)
    handle = await provider.create(spec_for("nvidia-h100-80gb", 8), second)
    assert handle.data["zone"] == second.zone != first.zone


def _priced_offer(offer_id: str) -> Offer:
    return Offer(
        id=offer_id, provider="aws", connection_id="aws-1", provider_sku="m7i.large", accelerator="cpu-general",
        gpu_count=0, vcpus=2, memory_gb=8, ephemeral_disk_gb=1, price_usd_hr=Decimal(1),
        observed_at="2026-11-30T00:00:00Z",
    )  # fmt: skip
