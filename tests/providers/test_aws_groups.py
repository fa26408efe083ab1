"""Ports and SSH at EC2: a security group for an attempt that publishes something, and nothing of it left behind.

boto3 itself, against moto.
"""

import asyncio
from typing import Any

import pytest

from domain.errors import Ambiguous, NoCapacity, ProviderError, QuotaExceeded
from domain.spec import Port
from providers.aws.provider import AwsProvider
from providers.aws.views import instance_view, ports_data
from providers.base import InstanceSpec, TerminateState
from tests.providers.aws_server import AwsServer, Fault, ec2_error
from tests.providers.aws_support import MakeProvider, launch, offer_for, spec_for
from tests.providers.conformance import OWNER, no_progress, until_gone

WEB = Port(name="web", container_port=8080, protocol="http")
RAW = Port(name="raw", container_port=2222, protocol="tcp")
ALSO_WEB = Port(name="also-web", container_port=8080, protocol="tcp")
KEY = "ssh-ed25519 AAAA me"


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


def published(**changes: Any) -> InstanceSpec:
    return spec_for(**{"ports": (WEB, RAW, ALSO_WEB), "ssh_public_key": KEY, **changes})


def opened(group: Any) -> list[tuple[str, int, int, str]]:
    """What a group lets in."""
    return [(r.ip_protocol, r.from_port, r.to_port, r.ip_range["CidrIp"]) for r in group.ingress_rules]


async def test_a_job_that_publishes_is_reached_at_its_ports_and_nowhere_else(
    provider: AwsProvider, aws: AwsServer
) -> None:
    spec = published()
    await provider.create(spec, await offer_for(provider))
    (group,) = aws.groups()
    assert group.name == f"{OWNER}-{spec.attempt_id}"
    assert {tag["key"]: tag["value"] for tag in group.get_tags()} == aws.tags(aws.instance(spec.attempt_id))
    # 2222 is the job's: SSH has the next one. The machine's own sshd, at 22, is not reached.
    assert opened(group) == [("tcp", port, port, "0.0.0.0/0") for port in (8080, 2222, 2223)]
    assert launch(aws).form["SecurityGroupId.1"] == group.id
    assert "hh_ports='8080:8080 2222:2222 2223:22'\n" in aws.script(aws.instance(spec.attempt_id))


async def test_its_endpoints_are_at_the_public_address_once_it_runs(provider: AwsProvider, aws: AwsServer) -> None:
    spec = published()
    created = await provider.create(spec, await offer_for(provider))
    view = await provider.get(await provider.provision(created, spec, no_progress))
    assert view is not None
    address = aws.instance(spec.attempt_id).public_ip
    assert [(e.name, e.protocol, e.host, e.port) for e in view.endpoints] == [
        ("web", "http", address, 8080),
        ("raw", "tcp", address, 2222),
        ("also-web", "tcp", address, 8080),
        ("ssh", "tcp", address, 2223),
    ]
    aws.instance(spec.attempt_id)._state.name = "pending"
    waiting = await provider.get(view.handle)
    assert waiting is not None
    assert waiting.endpoints == ()


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        ({"PublicIpAddress": "203.0.113.7", "PrivateIpAddress": "10.0.0.7"}, "203.0.113.7"),
        ({"PrivateIpAddress": "10.0.0.7"}, "10.0.0.7"),
        ({}, None),
    ],
)
def test_where_no_public_address_is_given_the_private_one_is_shown(addresses: dict[str, str], host: str | None) -> None:
    described = {"InstanceId": "i-1", "State": {"Name": "running"}, **addresses}
    view = instance_view(described, "us-east-1", ports_data((WEB,)))
    assert view.handle.host == host
    assert [(e.host, e.port) for e in view.endpoints] == ([(host, 8080)] if host else [])


async def test_the_connections_groups_stay_beside_the_attempts_own(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    backend = aws.backend("us-east-1")
    subnet = next(
        s for zones in backend.subnets.values() for s in zones.values() if s.availability_zone == "us-east-1b"
    )
    default = next(g for groups in backend.groups.values() for g in groups.values() if g.name == "default")
    provider = make_aws_provider(security_group_ids=(default.id,), subnet_ids={"us-east-1b": subnet.id})
    await provider.create(published(), await offer_for(provider))
    (group,) = aws.groups()
    form = launch(aws).form
    assert (form["SecurityGroupId.1"], form["SecurityGroupId.2"]) == (default.id, group.id)
    assert group.vpc_id == subnet.vpc_id


async def test_a_create_that_is_repeated_has_one_group(provider: AwsProvider, aws: AwsServer) -> None:
    spec, offer = published(), await offer_for(provider)
    first = await provider.create(spec, offer)
    again = await provider.create(spec, offer)
    assert again.provider_id == first.provider_id
    (group,) = aws.groups()
    assert len(opened(group)) == 3
    assert len(aws.instances(spec.attempt_id)) == 1


@pytest.mark.parametrize("operation", ["CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "create"])
async def test_a_create_whose_answer_was_lost_anywhere_goes_on_with_the_same_group(
    provider: AwsProvider, aws: AwsServer, operation: str
) -> None:
    spec, offer = published(), await offer_for(provider)
    aws.faults.append(Fault(operation, loss="internal"))
    with pytest.raises(Ambiguous):
        await provider.create(spec, offer)
    await provider.create(spec, offer)
    (group,) = aws.groups()
    assert len(opened(group)) == 3
    assert launch(aws).form["SecurityGroupId.1"] == group.id
    assert len(aws.instances(spec.attempt_id)) == 1


async def test_a_group_that_does_not_show_yet_is_waited_for(provider: AwsProvider, aws: AwsServer) -> None:
    unknown = ec2_error(400, "InvalidGroup.NotFound", "The security group does not exist")
    aws.faults += [Fault("AuthorizeSecurityGroupIngress", before=lambda call: unknown) for _ in range(2)]
    await provider.create(published(), offer := await offer_for(provider))
    aws.faults.append(Fault("create", before=lambda call: unknown))
    with pytest.raises(Ambiguous, match="does not show"):
        await provider.create(published(), offer)


@pytest.mark.parametrize(
    ("code", "kind"), [("InsufficientInstanceCapacity", NoCapacity), ("VcpuLimitExceeded", QuotaExceeded)]
)
async def test_a_machine_that_cannot_be_had_leaves_no_group(
    provider: AwsProvider, aws: AwsServer, code: str, kind: type[ProviderError]
) -> None:
    offer = await offer_for(provider)
    aws.faults.append(Fault("create", before=lambda call: ec2_error(400, code, "no")))
    with pytest.raises(kind):
        await provider.create(published(), offer)
    assert aws.groups() == []


async def test_a_group_goes_after_its_machine_and_keeps_the_attempt_until_then(
    provider: AwsProvider, aws: AwsServer
) -> None:
    spec = published()
    handle = await provider.create(spec, await offer_for(provider))
    held = ec2_error(400, "DependencyViolation", "resource has a dependent object")
    aws.faults.append(Fault("DeleteSecurityGroup", before=lambda call: held))
    assert await provider.terminate(handle) is TerminateState.REQUESTED
    assert len(aws.groups()) == 1
    assert await provider.terminate(handle) is TerminateState.GONE
    assert aws.groups() == []


async def test_a_sweep_finds_the_group_of_a_create_that_went_no_further(provider: AwsProvider, aws: AwsServer) -> None:
    spec = published()
    aws.faults.append(Fault("create", before=lambda call: ec2_error(500, "InternalError", "no")))
    with pytest.raises(Ambiguous):
        await provider.create(spec, await offer_for(provider))
    assert await provider.find(spec.attempt_id) == []
    (view,) = await provider.list_owned()
    assert (view.attempt_id, view.handle.resource_type) == (spec.attempt_id, "security group")
    assert await provider.get(view.handle) is not None
    await until_gone(provider, view.handle)
    assert (await provider.get(view.handle), await provider.list_owned(), aws.groups()) == (None, [], [])


async def test_a_sweep_leaves_the_groups_of_machines_alone(provider: AwsProvider) -> None:
    spec = published()
    handle = await provider.create(spec, await offer_for(provider))
    assert [view.handle.provider_id for view in await provider.list_owned()] == [handle.provider_id]


async def test_a_group_of_another_control_plane_is_none_of_ours(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    other, ours = make_aws_provider("other-owner"), make_aws_provider()
    await other.create(published(owner_id="other-owner"), await offer_for(other))
    assert await ours.list_owned() == []
    mine = published()
    handle = await ours.create(mine, await offer_for(ours))
    await until_gone(ours, handle)
    assert [group.name.partition("-")[0] for group in aws.groups()] == ["other"]


async def test_creates_at_once_for_one_attempt_share_a_group(provider: AwsProvider, aws: AwsServer) -> None:
    spec, offer = published(), await offer_for(provider)
    handles = await asyncio.gather(*(provider.create(spec, offer) for _ in range(3)))
    assert len({handle.provider_id for handle in handles}) == 1
    assert len(aws.groups()) == 1


async def test_credentials_that_may_make_no_group_do_not_suffice(provider: AwsProvider, aws: AwsServer) -> None:
    refuse = ec2_error(403, "UnauthorizedOperation", "You are not authorized to perform: ec2:CreateSecurityGroup")
    aws.faults.append(Fault("CreateSecurityGroup", before=lambda call: refuse))
    report = await provider.verify()
    assert report.status == "permission"
    assert "ec2:CreateSecurityGroup" in report.message
