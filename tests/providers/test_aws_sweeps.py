"""Reads of machines at EC2, and sweeps: what is there, and what a machine left behind. boto3 itself, against moto."""

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from domain.errors import Ambiguous
from providers.aws.provider import AwsProvider
from providers.base import Handle, InstanceSpec, OfferQuery, TerminateState
from tests.providers.aws_server import AwsServer, Fault, ec2_error
from tests.providers.aws_support import MakeProvider, offer_for, spec_for
from tests.providers.conformance import until_gone


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


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
    held = ec2_error(400, "VolumeInUse", "the volume is attached still")
    aws.faults.append(Fault("DeleteVolume", before=lambda call: held))
    assert await provider.terminate(handle) is TerminateState.REQUESTED
    assert volume.id in aws.backend("us-east-1").volumes
    assert await provider.terminate(handle) is TerminateState.GONE
    assert volume.id not in aws.backend("us-east-1").volumes


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


async def test_a_sweep_asks_three_times_a_region_however_many_machines_there_are(
    provider: AwsProvider, aws: AwsServer
) -> None:
    offer = await offer_for(provider)
    for _ in range(2):
        await provider.create(spec_for(), offer)
    aws.calls.clear()
    assert len(await provider.list_owned()) == 2
    kinds = ("DescribeInstances", "DescribeVolumes", "DescribeSecurityGroups")
    assert Counter(call.action for call in aws.calls) == dict.fromkeys(kinds, 2)


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
