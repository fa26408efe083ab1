"""Users reach what a job publishes on Compute Engine, by a firewall rule of its attempt's own, and nothing else."""

from dataclasses import replace

import pytest

from domain.errors import Ambiguous, ProviderRejected, QuotaExceeded
from domain.spec import Port
from providers.base import Handle, InstanceSpec, TerminateState
from providers.gcp.provider import GcpProvider
from tests.providers.conformance import OWNER, no_progress, until_gone
from tests.providers.gcp_fake import Fault, GcpServer, google_error
from tests.providers.gcp_support import MakeProvider, launched, metadata, offer_for, spec_for

PORTS = (
    Port(name="ui", container_port=8080, protocol="http"),
    Port(name="rpc", container_port=7000, protocol="tcp"),
)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIa4yvvyQGHq1JZ1sG2Z7fQ9H7o5o2gmhJ0R0yM2l5rP"


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


async def running(provider: GcpProvider, spec: InstanceSpec) -> Handle:
    handle = await provider.create(spec, await offer_for(provider))
    return await provider.provision(handle, spec, no_progress)


async def test_what_a_job_publishes_is_reached_at_its_machine(provider: GcpProvider, gcp: GcpServer) -> None:
    spec = spec_for(ports=PORTS, ssh_public_key=KEY)
    handle = await running(provider, spec)
    view = await provider.get(handle)
    assert view is not None
    address = gcp.cloud.of(spec.attempt_id)[0].resource["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    assert {(e.name, e.protocol, e.host, e.port) for e in view.endpoints} == {
        ("ui", "http", address, 8080), ("rpc", "tcp", address, 7000), ("ssh", "tcp", address, 2222),
    }  # fmt: skip
    (rule,) = gcp.cloud.firewalls.values()
    assert rule["allowed"] == [{"IPProtocol": "tcp", "ports": ["2222", "7000", "8080"]}]
    body = launched(gcp)
    assert rule["targetTags"] == body["tags"]["items"] == [handle.provider_id]
    assert (rule["name"], rule["network"]) == (handle.provider_id, body["networkInterfaces"][0]["network"])
    assert "hh_ports='8080:8080 7000:7000 2222:22'" in metadata(body)["user-data"]


async def test_nobody_is_let_in_where_nothing_is_published(provider: GcpProvider, gcp: GcpServer) -> None:
    handle = await running(provider, spec_for())
    assert gcp.cloud.firewalls == {}
    assert "tags" not in launched(gcp)
    view = await provider.get(handle)
    assert view is not None
    assert view.endpoints == ()
    gcp.calls.clear()
    await until_gone(provider, handle)
    assert not [call for call in gcp.calls if "firewalls" in call.path]


async def test_without_a_public_address_the_private_one_is_shown(
    make_gcp_provider: MakeProvider, gcp: GcpServer
) -> None:
    provider = make_gcp_provider(public_address=False)
    spec = spec_for(ports=PORTS[:1])
    view = await provider.get(await running(provider, spec))
    assert view is not None
    assert [e.host for e in view.endpoints] == [
        gcp.cloud.of(spec.attempt_id)[0].resource["networkInterfaces"][0]["networkIP"]
    ]


async def test_the_rule_is_made_once_and_goes_with_its_machine(provider: GcpProvider, gcp: GcpServer) -> None:
    spec = spec_for(ports=PORTS)
    handle = await running(provider, spec)
    gcp.cloud._requests.clear()  # Google forgot the request, not the name
    handle = await provider.provision(handle, spec, no_progress)
    assert len(gcp.cloud.firewalls) == 1
    assert [view.handle.resource_type for view in await provider.list_owned()] == ["instance"]
    await until_gone(provider, handle)
    assert (gcp.cloud.machines, gcp.cloud.disks, gcp.cloud.firewalls) == ({}, {}, {})


async def test_an_attempt_is_not_gone_before_its_rule_is(provider: GcpProvider, gcp: GcpServer) -> None:
    handle = await running(provider, spec_for(ports=PORTS))
    refuse = google_error(400, "resourceNotReady", "The resource is not ready")
    gcp.faults.append(Fault(f"DELETE global/firewalls/{handle.provider_id}", before=lambda call: refuse))
    with pytest.raises(ProviderRejected):
        await provider.terminate(handle)
    assert len(gcp.cloud.firewalls) == 1
    assert await provider.terminate(handle) is TerminateState.GONE
    assert gcp.cloud.firewalls == {}


async def test_an_instance_that_was_found_has_its_ports_and_its_rule(provider: GcpProvider, gcp: GcpServer) -> None:
    spec = spec_for(ports=PORTS)
    offer = await offer_for(provider)
    gcp.faults.append(Fault("create", loss="reset"))
    with pytest.raises(Ambiguous):
        await provider.create(spec, offer)
    (found,) = await provider.find(spec.attempt_id)
    view = await provider.get(await provider.provision(found, spec, no_progress))
    assert view is not None
    assert {endpoint.name for endpoint in view.endpoints} == {"ui", "rpc"}
    # Even a handle that knows no ports closes what was opened.
    await until_gone(provider, found)
    assert gcp.cloud.firewalls == {}


async def test_a_sweep_finds_a_rule_that_was_left_behind_and_can_delete_it(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec = spec_for(ports=PORTS)
    await running(provider, spec)
    gcp.cloud.vanish(gcp.cloud.of(spec.attempt_id)[0])
    (view,) = await provider.list_owned()
    assert (view.handle.resource_type, view.attempt_id) == ("firewall", spec.attempt_id)
    assert await provider.get(view.handle) is not None
    await until_gone(provider, view.handle)
    assert await provider.get(view.handle) is None
    assert await provider.list_owned() == []


async def test_of_all_that_was_left_behind_the_disk_comes_last_which_a_sweep_takes_first(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    spec = spec_for(ports=PORTS)
    await running(provider, spec)
    (machine,) = gcp.cloud.of(spec.attempt_id)
    machine.keeps_disk = True
    gcp.cloud.vanish(machine)
    assert [view.handle.resource_type for view in await provider.list_owned()] == ["firewall", "disk"]


async def test_a_rule_of_others_is_left_alone_whatever_its_name_is(
    make_gcp_provider: MakeProvider, provider: GcpProvider, gcp: GcpServer
) -> None:
    spec = spec_for(ports=PORTS)
    await running(provider, spec)
    (rule,) = gcp.cloud.firewalls.values()
    rule["description"] = f"Headrace: attempt {spec.attempt_id} of somebody"
    gcp.cloud.vanish(gcp.cloud.of(spec.attempt_id)[0])
    assert await provider.list_owned() == []
    # The name of one owner may begin with that of another.
    other = f"{OWNER}-2"
    await running(make_gcp_provider(other), replace(spec_for(ports=PORTS), owner_id=other))
    assert await provider.list_owned() == []


async def test_a_rule_that_a_stranger_has_is_refused(provider: GcpProvider, gcp: GcpServer) -> None:
    spec = spec_for(ports=PORTS)
    handle = await running(provider, spec)
    gcp.cloud._requests.clear()
    gcp.cloud.firewalls[handle.provider_id]["description"] = "by hand"
    with pytest.raises(ProviderRejected, match="not ours"):
        await provider.provision(handle, spec, no_progress)


async def test_a_key_that_may_make_no_rules_fails_the_job_and_not_the_connection(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    refuse = google_error(403, "forbidden", "Required 'compute.firewalls.create' permission")
    gcp.faults.append(Fault("POST global/firewalls", before=lambda call: refuse))
    with pytest.raises(ProviderRejected, match=r"compute\.firewalls\.create"):
        await running(provider, spec_for(ports=PORTS))


async def test_a_project_with_as_many_rules_as_it_may_have_says_so_in_the_operation(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    gcp.cloud.next_firewall_failure = ("QUOTA_EXCEEDED", "Quota 'FIREWALLS' exceeded. Limit: 100.0 globally.")
    with pytest.raises(QuotaExceeded, match="FIREWALLS"):
        await running(provider, spec_for(ports=PORTS))


async def test_a_role_that_cannot_list_rules_does_not_pass_verification(provider: GcpProvider, gcp: GcpServer) -> None:
    refuse = google_error(403, "forbidden", "Required 'compute.firewalls.list' permission")
    gcp.faults.append(Fault("GET global/firewalls", before=lambda call: refuse))
    report = await provider.verify()
    assert (report.status, "compute.firewalls.list" in report.message) == ("permission", True)
