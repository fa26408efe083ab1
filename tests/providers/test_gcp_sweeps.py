"""Nothing of ours at Compute Engine is overlooked, and nothing of others is touched."""

import json
from typing import Any

import pytest

from domain.errors import Ambiguous
from providers.base import Handle, InstanceSpec, TerminateState
from providers.gcp.provider import GcpProvider
from tests.providers.conformance import OWNER, until_gone
from tests.providers.gcp_fake import Answer, Call, Fault, GcpServer
from tests.providers.gcp_support import MakeProvider, offer_for, spec_for


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


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


async def test_a_sweep_lists_three_times_however_many_machines_there_are(provider: GcpProvider, gcp: GcpServer) -> None:
    offer = await offer_for(provider)
    for _ in range(2):
        await provider.create(spec_for(), offer)
    gcp.calls.clear()
    assert len(await provider.list_owned()) == 2
    assert sorted(call.path.rpartition("/")[2] for call in gcp.calls) == ["disks", "firewalls", "instances"]


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
