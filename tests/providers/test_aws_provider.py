"""What is EC2's own: the launch request, tokens, offers, volumes, regions. boto3 itself, against moto."""

import asyncio
import gzip
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from agent.script import agent_script
from domain.errors import Ambiguous, NoCapacity, ProviderError, ProviderRejected
from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest, Interconnect, RegistryCredential
from providers.aws.launch import client_token, gibibytes, user_data
from providers.aws.market import batches
from providers.aws.provider import AwsProvider, _after
from providers.aws.settings import AwsCredentials, AwsOptions
from providers.base import AgentBootstrap, Handle, InstanceSpec, OfferQuery, ProviderState, TerminateState
from tests.providers.aws_server import Answer, AwsServer, Call, Fault, ec2_error
from tests.providers.aws_support import CREDENTIALS, SECRET_KEY
from tests.providers.conformance import OWNER, PASSWORD, TOKEN, no_progress, until_gone

MakeProvider = Callable[..., AwsProvider]
URL = "https://headrace.example"
AGENT = AgentBootstrap(agent_script(), SecretStr(TOKEN), url=URL)


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


def spec_for(accelerator: str = "cpu-general", gpu_count: int = 0, **changes: Any) -> InstanceSpec:
    compute = ComputeRequest(accelerator=accelerator, gpu_count=gpu_count, ephemeral_disk_gb=100)
    spec = InstanceSpec(new_attempt_id(), OWNER, "job_1", "org_1", "registry.example/a/b:1", compute, AGENT)
    return replace(spec, **changes)


async def offer_for(
    provider: AwsProvider, accelerator: str = "cpu-general", count: int = 0, spot: bool = False
) -> Offer:
    return next(o for o in await provider.offers(OfferQuery(accelerator, count)) if o.spot is spot)


def launch(aws: AwsServer) -> Call:
    return next(call for call in aws.calls if call.operation == "create")


# The launch request ---------------------------------------------------------------------------------------------------


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
    here = _offer("us-east-1a:m7i.large:on-demand")
    assert client_token(spec, here) == client_token(replace(spec), here)
    assert client_token(spec, here) != client_token(spec, _offer("us-east-1b:m7i.large:on-demand"))
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


# Offers ---------------------------------------------------------------------------------------------------------------


async def test_a_machine_is_offered_in_each_of_its_zones_on_demand_and_spot(
    provider: AwsProvider, aws: AwsServer
) -> None:
    aws.spot_prices["p5.48xlarge"] = "21.123400"
    offers = await provider.offers(OfferQuery("nvidia-h100-80gb", 8))
    assert {offer.provider_sku for offer in offers} == {"p5.48xlarge"}
    zones = {offer.zone for offer in offers}
    assert len(offers) == 2 * len(zones) > 2
    assert {(o.spot, o.price_usd_hr) for o in offers} == {(False, Decimal("55.04")), (True, Decimal("21.1234"))}
    one = offers[0]
    assert (one.gpu_count, one.gpu_memory_gb, one.vcpus, one.memory_gb) == (8, 80, 192, 2048)
    assert one.interconnect is Interconnect.NVLINK
    assert one.region == "us-east-1"
    assert one.pricing_model.unit_seconds == 1


async def test_everything_that_the_catalog_knows_is_offered_and_parts_of_gpus_are_not(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    aws.stock = (
        "g4dn.xlarge", "g5.xlarge", "g5g.xlarge", "g6.xlarge", "g6e.xlarge", "g6f.large", "g7e.2xlarge", "m7i.large",
        "m7i.metal-24xl", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge",
        "p6-b200.48xlarge", "p6-b300.48xlarge",
    )  # fmt: skip
    aws.prices = dict.fromkeys(aws.stock, "1.5")
    offered = {offer.provider_sku: offer.accelerator for offer in await make_aws_provider().offers(OfferQuery())}
    assert offered == {
        "g4dn.xlarge": "nvidia-t4-16gb",
        "g5.xlarge": "nvidia-a10g-24gb",
        "g6.xlarge": "nvidia-l4-24gb",
        "g6e.xlarge": "nvidia-l40s-48gb",
        "g7e.2xlarge": "nvidia-rtx-pro-6000-blackwell-96gb",
        "m7i.large": "cpu-general",
        "p3dn.24xlarge": "nvidia-v100-32gb",
        "p4d.24xlarge": "nvidia-a100-40gb",
        "p4de.24xlarge": "nvidia-a100-80gb",
        "p5.48xlarge": "nvidia-h100-80gb",
        "p5en.48xlarge": "nvidia-h200-141gb",
        "p6-b200.48xlarge": "nvidia-b200-192gb",
        "p6-b300.48xlarge": "nvidia-b300-288gb",
    }


async def test_more_types_than_one_request_takes_have_their_prices_from_several(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    families = ("g4dn", "g5", "g6", "g6e", "g7e", "m5", "m6i", "m7i")
    sizes = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
    aws.stock = tuple(f"{family}.{size}" for family in families for size in sizes)
    aws.stock += tuple(f"m6id.{size}" for size in sizes) + tuple(f"m6idn.{size}" for size in sizes)
    aws.stock += tuple(f"m7i-flex.{size}" for size in sizes)
    aws.prices = dict.fromkeys(aws.stock, "1.5")
    provider = make_aws_provider(cpu_families=("m5", "m6i", "m6id", "m6idn", "m7i", "m7i-flex"))
    offers = await provider.offers(OfferQuery())
    priced = {offer.provider_sku for offer in offers if not offer.spot}
    assert len(",".join(priced)) > 900
    assert priced == {offer.provider_sku for offer in offers}
    assert len([call for call in aws.calls if call.action == "GetProducts"]) > 1


def test_names_are_divided_by_the_length_of_their_list() -> None:
    assert batches(["aa", "bb", "c", "dddddd"], 5) == [["aa", "bb"], ["c"], ["dddddd"]]
    assert batches([], 5) == []


async def test_a_machine_without_a_price_is_not_offered(provider: AwsProvider, aws: AwsServer) -> None:
    del aws.prices["g5.xlarge"]
    offers = await provider.offers(OfferQuery("nvidia-a10g-24gb", 1))
    assert {offer.spot for offer in offers} == {True}


async def test_a_spot_price_is_asked_for_each_time_and_the_list_price_kept_for_a_while(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    keeping, asking = make_aws_provider(), make_aws_provider(catalog_seconds=0)
    for provider in (keeping, asking):
        await provider.offers(OfferQuery("cpu-general"))
    aws.prices["m7i.large"], aws.spot_prices["m7i.large"] = "0.2", "0.07"
    expected = {keeping: Decimal("0.1008"), asking: Decimal("0.2")}
    for provider, price in expected.items():
        offers = [o for o in await provider.offers(OfferQuery("cpu-general")) if o.provider_sku == "m7i.large"]
        assert {(o.spot, o.price_usd_hr) for o in offers} == {(False, price), (True, Decimal("0.07"))}


@pytest.mark.parametrize("price", ["NaN", "-1", "cheap"])
async def test_a_price_that_is_none_spoils_the_list(provider: AwsProvider, aws: AwsServer, price: str) -> None:
    aws.prices["m7i.large"] = price
    aws.spot_prices["m7i.large"] = "0.01"
    with pytest.raises(Ambiguous):
        await provider.offers(OfferQuery())


async def test_a_region_that_does_not_answer_is_an_error_of_the_whole_list(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    provider = make_aws_provider(regions=("us-east-1", "eu-west-1"))
    assert {offer.region for offer in await provider.offers(OfferQuery())} == {"us-east-1", "eu-west-1"}
    aws.faults.append(Fault("offers", before=lambda call: ec2_error(500, "InternalError", "no")))
    with pytest.raises(Ambiguous):
        await provider.offers(OfferQuery())


async def test_a_crowd_asks_for_spot_prices_once(make_aws_provider: MakeProvider, aws: AwsServer) -> None:
    provider = make_aws_provider(spot_seconds=60)
    lists = await asyncio.gather(*(provider.offers(OfferQuery("cpu-general")) for _ in range(5)))
    assert all(offers and len(offers) == len(lists[0]) for offers in lists)
    assert len([call for call in aws.calls if call.action == "DescribeSpotPriceHistory"]) == 1
    await provider.offers(OfferQuery("nvidia-h100-80gb"))
    assert len([call for call in aws.calls if call.action == "DescribeSpotPriceHistory"]) == 2


# Reads ----------------------------------------------------------------------------------------------------------------


async def test_reads_of_many_machines_at_once_are_one_request(provider: AwsProvider, aws: AwsServer) -> None:
    offer = await offer_for(provider)
    specs = [spec_for() for _ in range(3)]
    handles = [await provider.create(spec, offer) for spec in specs]
    aws.page_size = "1000"
    aws.calls.clear()
    views = await asyncio.gather(*(provider.get(handle) for handle in handles))
    assert [view and view.attempt_id for view in views] == [spec.attempt_id for spec in specs]
    assert [call.action for call in aws.calls] == ["DescribeInstances"]


async def test_a_read_that_fails_fails_for_all_who_waited_and_for_nobody_later(
    provider: AwsProvider, aws: AwsServer
) -> None:
    offer = await offer_for(provider)
    handles = [await provider.create(spec_for(), offer) for _ in range(2)]
    aws.faults.append(Fault("get", loss="reset"))
    answers = await asyncio.gather(*(provider.get(handle) for handle in handles), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Ambiguous, Ambiguous]
    assert all(await asyncio.gather(*(provider.get(handle) for handle in handles)))


async def test_a_reader_that_gave_up_takes_nobody_with_it(provider: AwsProvider) -> None:
    offer = await offer_for(provider)
    handle = await provider.create(spec_for(), offer)
    hasty, patient = asyncio.create_task(provider.get(handle)), asyncio.create_task(provider.get(handle))
    await asyncio.sleep(0)
    hasty.cancel()
    assert await patient is not None


# Volumes and regions --------------------------------------------------------------------------------------------------


@pytest.fixture
async def left_volume(provider: AwsProvider, aws: AwsServer) -> tuple[InstanceSpec, Handle, Any]:
    """A volume that outlived its instance."""
    spec = spec_for()
    handle = await provider.create(spec, await offer_for(provider))
    instance = aws.instance(spec.attempt_id)
    for device in instance.block_device_mapping.values():
        device.delete_on_termination = False
    instance.terminate()
    (volume,) = (v for v in aws.backend("us-east-1").volumes.values() if v.get_tags())
    return spec, handle, volume


async def test_a_volume_that_was_left_behind_keeps_the_attempt_from_being_gone(
    provider: AwsProvider, aws: AwsServer, left_volume: tuple[InstanceSpec, Handle, Any]
) -> None:
    _, handle, volume = left_volume
    assert await provider.terminate(handle) is TerminateState.REQUESTED
    assert volume.id not in aws.backend("us-east-1").volumes
    assert await provider.terminate(handle) is TerminateState.GONE


async def test_a_sweep_finds_a_volume_that_was_left_behind_and_can_delete_it(
    provider: AwsProvider, left_volume: tuple[InstanceSpec, Handle, Any]
) -> None:
    spec, _, volume = left_volume
    (view,) = await provider.list_owned()
    assert (view.handle.provider_id, view.handle.resource_type) == (volume.id, "volume")
    assert view.attempt_id == spec.attempt_id
    assert await provider.find(spec.attempt_id) == []
    assert await provider.get(view.handle) is not None
    await until_gone(provider, view.handle)
    assert await provider.get(view.handle) is None
    assert await provider.list_owned() == []


async def test_a_machine_in_a_region_that_is_not_used_any_more_is_still_found(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    before = make_aws_provider(regions=("eu-west-1",), former_regions=())
    spec = spec_for()
    handle = await before.create(spec, await offer_for(before))
    assert handle.region == "eu-west-1"
    now = make_aws_provider(regions=("us-east-1",), former_regions=("eu-west-1",))
    assert {offer.region for offer in await now.offers(OfferQuery())} == {"us-east-1"}
    assert [view.attempt_id for view in await now.list_owned()] == [spec.attempt_id]
    assert [found.provider_id for found in await now.find(spec.attempt_id)] == [handle.provider_id]
    await until_gone(now, handle)


async def test_a_sweep_asks_twice_a_region_however_many_machines_there_are(
    provider: AwsProvider, aws: AwsServer
) -> None:
    offer = await offer_for(provider)
    for _ in range(2):
        await provider.create(spec_for(), offer)
    aws.calls.clear()
    assert len(await provider.list_owned()) == 2
    assert sorted(call.action for call in aws.calls) == 2 * ["DescribeInstances"] + 2 * ["DescribeVolumes"]


async def test_a_sweep_tells_what_a_spot_machine_costs_now(provider: AwsProvider, aws: AwsServer) -> None:
    offer = await offer_for(provider, spot=True)
    await provider.create(spec_for(), offer)
    (before,) = await provider.list_owned()
    aws.spot_prices[offer.provider_sku] = "0.0777"
    (after,) = await provider.list_owned()
    assert (before.price_usd_hr, after.price_usd_hr) == (offer.price_usd_hr, Decimal("0.0777"))


async def test_a_sweep_needs_no_prices(provider: AwsProvider, aws: AwsServer) -> None:
    spec = spec_for()
    await provider.create(spec, await offer_for(provider, spot=True))
    aws.faults.append(Fault("offers", before=lambda call: ec2_error(500, "InternalError", "no")))
    assert [(view.attempt_id, view.price_usd_hr) for view in await provider.list_owned()] == [(spec.attempt_id, None)]


# Logs, credentials, the SDK -------------------------------------------------------------------------------------------


def test_the_console_goes_on_from_its_cursor_and_is_whole_once_it_rolled_on() -> None:
    first = _after(None, "one\n")
    second = _after(first.cursor, "one\ntwo\n")
    assert (first.text, second.text) == ("one\n", "two\n")
    assert _after(second.cursor, "one\ntwo\n").text == ""
    assert _after(second.cursor, "two\nthree\n").text == "two\nthree\n"
    assert _after("nonsense", "one\n").text == "one\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=8), max_size=8))
def test_a_console_that_grows_is_read_without_gap_or_double(pieces: list[str]) -> None:
    cursor, console, read = None, "", ""
    for piece in pieces:
        console += piece
        page = _after(cursor, console)
        cursor, read = page.cursor, read + page.text
    assert read == console


async def test_credentials_that_do_not_suffice_are_told_by_the_dry_run(provider: AwsProvider, aws: AwsServer) -> None:
    refuse = ec2_error(403, "UnauthorizedOperation", "You are not authorized to perform this operation.")
    aws.faults += [Fault("verify"), Fault("verify", before=lambda call: refuse)]
    report = await provider.verify()
    assert report.status == "permission"
    assert "not authorized" in report.message
    assert [call.action for call in aws.calls if call.operation == "verify"] == ["GetCallerIdentity", "RunInstances"]


async def test_a_dry_run_makes_nothing(provider: AwsProvider, aws: AwsServer) -> None:
    assert (await provider.verify()).status == "ok"
    assert aws.instances() == []


def test_credentials_are_the_fields_of_the_form_and_show_no_secret() -> None:
    assert set(AwsCredentials.model_fields) == {"access_key_id", "secret_access_key"}
    assert SECRET_KEY not in repr(CREDENTIALS) + CREDENTIALS.model_dump_json()
    with pytest.raises(ValidationError):
        AwsCredentials(access_key_id="not a key id!", secret_access_key=SecretStr("x"))


@pytest.mark.parametrize("options", [{"regions": ("nowhere",)}, {"page_size": 1}, {"unheard_of": 1}])
def test_options_that_are_none_are_refused(make_aws_provider: MakeProvider, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_aws_provider(**options)


async def test_nothing_comes_from_the_profiles_of_the_workers_machine(
    provider: AwsProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\n[broken")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHEROTHEROTHER1")
    assert (await provider.verify()).status == "ok"


def test_the_sdk_is_not_loaded_before_the_first_call() -> None:
    code = """
import sys
from pydantic import SecretStr
from providers.aws.market import batches
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsCredentials
from providers.base import ProviderContext
credentials = AwsCredentials(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key=SecretStr("x"))
AwsProvider(ProviderContext("aws-1", "owner", "/nonexistent"), credentials)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("boto3", "botocore", "urllib3")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _offer(offer_id: str) -> Offer:
    return Offer(
        id=offer_id, provider="aws", connection_id="aws-1", provider_sku="m7i.large", accelerator="cpu-general",
        gpu_count=0, vcpus=2, memory_gb=8, ephemeral_disk_gb=1, price_usd_hr=Decimal(1),
        observed_at="2026-11-30T00:00:00Z",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def leaves_nothing(aws: AwsServer) -> Iterator[None]:
    yield
    aws.clear()
