"""The security group that lets people in: one of an attempt's own, made before its instance, and only where the job
publishes something. Otherwise there is none, and nobody gets in.

It carries the attempt's tags from its first moment: whatever happens before the instance is there, a sweep finds it.
`leftovers.py` deletes it, once the instance has let go of it.
"""

import asyncio
import contextlib
from typing import Any

from agent.host import machine_ports
from domain.errors import Ambiguous, ProviderNotFound
from domain.offers import Offer
from domain.ssh_access import with_ssh
from providers.aws.calls import AwsCalls
from providers.aws.errors import AlreadyThere
from providers.aws.launch import name_of, tags_of
from providers.aws.settings import AwsOptions
from providers.aws.views import ATTEMPT_TAG, OWNER_TAG
from providers.base import InstanceSpec

_EVERYBODY = "0.0.0.0/0"
_DESCRIPTION = "The published ports of a Headrace job"


class Groups:
    """Makes the groups of a connection's attempts."""

    def __init__(self, calls: AwsCalls, options: AwsOptions) -> None:
        self._calls = calls
        self._options = options

    async def permitted(self, region: str, subnet: str | None, what: str) -> None:
        """Nothing is made.

        Raises:
            PermissionDenied: no group can be made.
        """
        await self._calls.call(
            "ec2",
            region,
            "create_security_group",
            what,
            DryRun=True,
            GroupName="headrace-dry-run",
            Description=_DESCRIPTION,
            **await self._network(region, subnet, what),
        )

    async def opened(self, spec: InstanceSpec, offer: Offer) -> str | None:
        """The id of the attempt's group, by which its ports are reached; None for a job that publishes none.

        Repeating it for one attempt yields the same group.

        Raises:
            Ambiguous: there is one, and it does not show yet.
        """
        if not with_ssh(spec.ports, spec.ssh_public_key):
            return None
        region, what = offer.region, f"create {spec.attempt_id}"
        try:
            answer = await self._calls.call(
                "ec2",
                region,
                "create_security_group",
                what,
                GroupName=name_of(spec),
                Description=_DESCRIPTION,
                TagSpecifications=[{"ResourceType": "security-group", "Tags": tags_of(spec)}],
                **await self._network(region, self._options.subnet_ids.get(offer.zone or ""), what),
            )
        except AlreadyThere:
            answer = await self._existing(region, spec, what)
        group_id = answer.get("GroupId")
        if not isinstance(group_id, str):
            raise Ambiguous(f"{what}: an answer without a security group")
        await self._let_in(region, group_id, spec, what)
        return group_id

    async def _network(self, region: str, subnet: str | None, what: str) -> dict[str, str]:
        """The network of the subnet; nothing where the account's default one serves."""
        if subnet is None:
            return {}
        answer = await self._calls.call("ec2", region, "describe_subnets", what, SubnetIds=[subnet])
        try:
            return {"VpcId": answer["Subnets"][0]["VpcId"]}
        except (KeyError, TypeError, IndexError):
            raise Ambiguous(f"{what}: the subnet {subnet} came without a network") from None

    async def _existing(self, region: str, spec: InstanceSpec, what: str) -> dict[str, Any]:
        tags = {OWNER_TAG: spec.owner_id, ATTEMPT_TAG: spec.attempt_id}
        filters = [{"Name": f"tag:{name}", "Values": [value]} for name, value in tags.items()]
        found = await self._calls.pages(
            "ec2", region, "describe_security_groups", "SecurityGroups", what, Filters=filters, MaxResults=1000
        )
        if not found:
            raise Ambiguous(f"{what}: its security group is there, and does not show")
        return dict(found[0])

    async def _let_in(self, region: str, group_id: str, spec: InstanceSpec, what: str) -> None:
        """All rules in one call, so that they are there together or not at all."""
        ports = machine_ports(with_ssh(spec.ports, spec.ssh_public_key)).values()
        permissions = [
            {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": _EVERYBODY}]}
            for port in ports
        ]
        for look in range(self._options.looks):
            if look:
                await asyncio.sleep(self._options.look_pause_seconds)
            # A group that was just made may not be known everywhere.
            with contextlib.suppress(ProviderNotFound):
                with contextlib.suppress(AlreadyThere):
                    await self._calls.call(
                        "ec2",
                        region,
                        "authorize_security_group_ingress",
                        what,
                        GroupId=group_id,
                        IpPermissions=permissions,
                    )
                return
        raise Ambiguous(f"{what}: the security group {group_id} was made, and does not show")
