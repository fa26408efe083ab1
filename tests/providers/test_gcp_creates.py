"""Instances of Compute Engine from create to end, whatever its answers and operations say."""

from datetime import UTC, datetime

import pytest

from domain.errors import Ambiguous, NoCapacity, ProviderError, ProviderRejected, QuotaExceeded
from providers.base import OfferQuery, ProviderState, TerminateState
from providers.gcp.provider import GcpProvider
from tests.providers.conformance import no_progress, until_gone
from tests.providers.gcp_fake import Answer, Fault, GcpServer, google_error
from tests.providers.gcp_support import MakeProvider, launches, offer_for, spec_for


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


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


async def test_a_name_that_another_machine_of_ours_has_is_refused(provider: GcpProvider, gcp: GcpServer) -> None:
    spec, offer = spec_for(), await offer_for(provider)
    await provider.create(spec, offer)
    gcp.cloud._requests.clear()
    gcp.cloud.of(spec.attempt_id)[0].resource["machineType"] = "zones/us-central1-a/machineTypes/a3-highgpu-8g"
    with pytest.raises(ProviderRejected, match="as a3-highgpu-8g"):
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


async def test_the_serial_port_goes_on_from_its_cursor(provider: GcpProvider, gcp: GcpServer) -> None:
    handle = await provider.create(spec_for(), await offer_for(provider))
    first = await provider.logs(handle, None)
    gcp.cloud.console += "three\n"
    second = await provider.logs(handle, first.cursor)
    assert (first.text, second.text) == ("one\ntwo\n", "three\n")
    assert (await provider.logs(handle, second.cursor)).text == ""
    assert (await provider.logs(handle, "nonsense")).text == "one\ntwo\nthree\n"


async def test_jobs_among_faults_leave_nothing_and_no_charge_runs_on(provider: GcpProvider, gcp: GcpServer) -> None:
    """Every other create loses its answer or finds nothing; whoever asks again as the control plane does ends well."""
    losses, started = ("reset", "html_502", "truncated", "internal"), datetime.now(UTC)
    offers = [o for o in await provider.offers(OfferQuery("cpu-general", 0)) if o.available]
    for number in range(8):
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
    assert len(gcp.cloud.bill) == 8
    assert gcp.cloud.running_charges() == []
    assert all(charge.started_at >= started.timestamp() - 1 for charge in gcp.cloud.bill)
    assert (gcp.cloud.machines, gcp.cloud.disks) == ({}, {})
    assert await provider.list_owned() == []
