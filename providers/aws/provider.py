"""The adapter to EC2: a virtual machine for an attempt, found again by its tags.

A create carries a token of the attempt, so AWS itself makes no second machine of a repeated one. No key pair is made.
The default group of a VPC lets everything out, and in only its own members; that is what the agent needs. Only a job
that publishes something gets a security group of its own (`groups.py`).

The machine pulls the image itself: `provision` ends when it runs, and what goes wrong later is told by the host agent
(`/agent/v1/fault`, and its last words on the console), after which it powers itself off.
"""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    RateLimited,
)
from domain.ids import AttemptId
from domain.offers import Capabilities, Offer
from domain.ssh_access import with_ssh
from providers.aws.calls import AwsCalls
from providers.aws.errors import TokenSpent
from providers.aws.groups import Groups
from providers.aws.launch import MachineImage, run_arguments
from providers.aws.leftovers import Leftovers
from providers.aws.market import Market
from providers.aws.offers import Catalog, Machine, offers_of
from providers.aws.quotas import Quotas
from providers.aws.reads import InstanceReads
from providers.aws.settings import AwsCredentials, AwsOptions
from providers.aws.views import ATTEMPT_TAG, INSTANCE, OWNER_TAG, instance_view, is_terminated, ports_data
from providers.base import (
    CredentialReport,
    Handle,
    InstanceSpec,
    InstanceView,
    LogPage,
    OfferQuery,
    Progress,
    ProviderContext,
    TerminateState,
)
from providers.virtual_machine import booted

_DRY_RUN_TYPE = "m7i.large"


class AwsProvider:
    """A connection to AWS; `AwsOptions` names the options of the context."""

    name = "aws"
    slots: int | None = None
    capabilities = Capabilities(http_ports=True, tcp_ports=True, ssh=True, private_image=True, logs_api=True)

    def __init__(self, context: ProviderContext, credentials: AwsCredentials) -> None:
        self._context = context
        self._options = AwsOptions.model_validate(context.options)
        self._calls = AwsCalls(credentials, self._options)
        self._reads = InstanceReads(self._calls)
        self._market = Market(self._calls, self._options)
        self._quotas = Quotas(self._calls, self._options)
        self._groups = Groups(self._calls, self._options)
        self._leftovers = Leftovers(self._calls, context.owner_id, self._options.page_size)
        self._images: dict[tuple[str, str], tuple[float, MachineImage]] = {}

    async def verify(self) -> CredentialReport:
        region = self._options.regions[0]
        try:
            await self._calls.call("sts", region, "get_caller_identity", "verify")
            image = await self._image(region, self._options.cpu_image, "verify")
            await self._calls.call(
                "ec2",
                region,
                "run_instances",
                "verify",
                DryRun=True,
                ImageId=image.id,
                InstanceType=_DRY_RUN_TYPE,
                MinCount=1,
                MaxCount=1,
                **({"SubnetId": subnet} if (subnet := _subnet_in(region, self._options)) else {}),
            )
            await self._groups.permitted(region, subnet, "verify")
            # What a sweep and a deletion read: without it nothing that was rented could be given back.
            await self._owned_in(region)
        except AuthError as error:
            return CredentialReport(status="auth", message=error.message)
        except (PermissionDenied, BillingBlocked) as error:
            return CredentialReport(status="permission", message=error.message)
        except ProviderError as error:
            return CredentialReport(status="unreachable", message=error.message)
        return CredentialReport(status="ok")

    async def offers(self, query: OfferQuery) -> list[Offer]:
        # All regions or an error: a list that lacks a region would say that there is nothing.
        regions = await asyncio.gather(*(self._offers_in(region, query) for region in self._options.regions))
        return [offer for offers in regions for offer in offers]

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        what = f"create {spec.attempt_id}"
        name = self._options.gpu_image if offer.gpu_count else self._options.cpu_image
        image = await self._image(offer.region, name, what)
        # Whatever breaks a limit is refused before anything is made.
        arguments = run_arguments(spec, offer, image, self._options)
        group_id = await self._groups.opened(spec, offer)
        if group_id is not None:
            arguments["SecurityGroupIds"] = [*self._options.security_group_ids, group_id]
        try:
            return _with_ports(await self._run(spec, offer, arguments), spec)
        except (Ambiguous, RateLimited):
            # It will be asked for again, with the same group.
            raise
        except ProviderError:
            if group_id is not None:
                with contextlib.suppress(ProviderError):  # a sweep finds it
                    await self._leftovers.discard_group(offer.region, group_id, what)
            raise

    async def _run(self, spec: InstanceSpec, offer: Offer, arguments: dict[str, Any]) -> Handle:
        what = f"create {spec.attempt_id}"
        secrets = (spec.agent.token.get_secret_value(), base64.b64encode(arguments["UserData"]).decode())
        try:
            answer = await self._calls.call("ec2", offer.region, "run_instances", what, secrets=secrets, **arguments)
        except TokenSpent as spent:
            return await self._adopt(spec, offer, spent)
        except ProviderNotFound as error:
            raise Ambiguous(f"{error.message}: it was just made, and does not show") from None
        instances = answer.get("Instances")
        if not isinstance(instances, list) or len(instances) != 1:
            raise Ambiguous(f"{what}: an answer without exactly one instance")
        return instance_view(instances[0], offer.region).handle

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        handle = _with_ports(handle, spec)  # one that was found lacks them
        return await booted(
            partial(self.get, handle),
            f"provision {spec.attempt_id}: {handle.provider_id}",
            progress,
            boot_seconds=self._options.boot_seconds,
            pause_seconds=self._options.look_pause_seconds,
        )

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        what = f"find {attempt_id}"
        for look in range(self._options.looks):
            if look:
                await asyncio.sleep(self._options.look_pause_seconds)
            found = await asyncio.gather(*(self._tagged(region, what, attempt_id) for region in self._swept_regions()))
            handles = [
                instance_view(instance, region).handle
                for region, instances in zip(self._swept_regions(), found, strict=True)
                for instance in instances
                if not is_terminated(instance)
            ]
            if handles:
                return handles
        return []

    async def get(self, handle: Handle) -> InstanceView | None:
        region = _region(handle)
        if handle.resource_type != INSTANCE:
            return await self._leftovers.get(handle, region)
        instance = await self._instance(handle)
        return None if instance is None else instance_view(instance, region, handle.data)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        """The console as it is now: its last 64 KB. Of older types (Xen) as it was, minutes late."""
        if handle.resource_type != INSTANCE:
            return LogPage("", cursor)
        what = f"logs {handle.provider_id}"
        region, instance = _region(handle), handle.provider_id
        try:
            try:
                answer = await self._calls.call(
                    "ec2", region, "get_console_output", what, InstanceId=instance, Latest=True
                )
            except ProviderRejected:
                # An older type of machine shows only what it said by a while after its start, and that without asking.
                answer = await self._calls.call("ec2", region, "get_console_output", what, InstanceId=instance)
        except ProviderNotFound:
            return LogPage("", cursor)
        if answer.get("InstanceId") != handle.provider_id:
            raise Ambiguous(f"{what}: an answer about no instance")
        return _after(cursor, answer.get("Output") or "")

    async def terminate(self, handle: Handle) -> TerminateState:
        region, what = _region(handle), f"delete {handle.provider_id}"
        if handle.resource_type != INSTANCE:
            return await self._leftovers.delete(handle, region, what)
        with contextlib.suppress(ProviderNotFound):
            await self._calls.call("ec2", region, "terminate_instances", what, InstanceIds=[handle.provider_id])
        # Whatever the delete answered, only what reads say counts.
        instance = await self._instance(handle)
        if instance is not None and not is_terminated(instance):
            return TerminateState.REQUESTED
        return await self._leftovers.delete_of(handle, region, what)

    async def list_owned(self) -> list[InstanceView]:
        regions = await asyncio.gather(*(self._owned_in(region) for region in self._swept_regions()))
        return [view for views in regions for view in views]

    async def close(self) -> None:
        self._calls.close()

    # Offers and images --------------------------------------------------------------------------------------------

    async def _offers_in(self, region: str, query: OfferQuery) -> list[Offer]:
        catalog, quotas = await asyncio.gather(self._market.catalog(region), self._quotas.of(region))
        wanted = [machine for machine in catalog.machines.values() if _wanted(machine, query)]
        spot = await self._market.spot_prices(region, [m.type for m in wanted if _can_be_spot(m, catalog)])
        return offers_of(catalog, wanted, spot, quotas, self._context.connection_id, datetime.now(UTC))

    async def _image(self, region: str, name: str, what: str) -> MachineImage:
        """The machine image of a name (`AwsOptions.gpu_image`), kept for a while: a retry meets the same."""
        read_at, image = self._images.get((region, name), (0.0, None))
        if image is not None and time.monotonic() - read_at <= self._options.catalog_seconds:
            return image
        image_id = name
        if not name.startswith("ami-"):
            answer = await self._calls.call("ssm", region, "get_parameter", what, Name=name)
            try:
                image_id = str(answer["Parameter"]["Value"])
            except (KeyError, TypeError):
                raise Ambiguous(f"{what}: the parameter {name} came without a value") from None
        answer = await self._calls.call("ec2", region, "describe_images", what, ImageIds=[image_id])
        try:
            described = answer["Images"][0]
            root = described["RootDeviceName"]
            devices = described["BlockDeviceMappings"]
            size = next(d["Ebs"]["VolumeSize"] for d in devices if d["DeviceName"] == root and "Ebs" in d)
        except (KeyError, TypeError, IndexError, StopIteration):
            raise Ambiguous(f"{what}: the image {image_id} in {region} came without a root volume") from None
        image = MachineImage(image_id, root, int(size))
        self._images[region, name] = (time.monotonic(), image)
        return image

    async def _adopt(self, spec: InstanceSpec, offer: Offer, spent: TokenSpent) -> Handle:
        """The instance that spent the attempt's token, dead or alive: who asked for it sees what became of it."""
        what = f"create {spec.attempt_id}"
        instances = await self._tagged(offer.region, what, spec.attempt_id)
        for instance in sorted(instances, key=is_terminated):
            return instance_view(instance, offer.region).handle
        if spent.dead:
            raise ProviderRejected(f"{what}: its instance was there, and is long gone: {spent}")
        raise Ambiguous(f"{what}: its token was used, and no instance shows: {spent}")

    # Reads --------------------------------------------------------------------------------------------------------

    def _swept_regions(self) -> Sequence[str]:
        return tuple(dict.fromkeys((*self._options.regions, *self._options.former_regions)))

    async def _tagged(self, region: str, what: str, attempt_id: AttemptId | None = None) -> list[dict[str, Any]]:
        """Our instances in a region, those that are no more as well. Not narrowed by state: an unknown one counts."""
        filters = [_filter(f"tag:{OWNER_TAG}", self._context.owner_id)]
        if attempt_id is not None:
            filters.append(_filter(f"tag:{ATTEMPT_TAG}", attempt_id))
        return await self._described(region, what, filters)

    async def _described(self, region: str, what: str, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        reservations = await self._calls.pages(
            "ec2",
            region,
            "describe_instances",
            "Reservations",
            what,
            Filters=filters,
            MaxResults=self._options.page_size,
        )
        instances: list[dict[str, Any]] = []
        for reservation in reservations:
            if not reservation.get("Instances"):
                raise Ambiguous(f"{what}: a reservation in {region} without instances")
            instances += reservation["Instances"]
        for instance in instances:
            instance_view(instance, region)  # an instance that cannot be read spoils the list
        return instances

    async def _instance(self, handle: Handle) -> dict[str, Any] | None:
        """None after enough misses in a row."""
        for look in range(self._options.looks):
            if look:
                await asyncio.sleep(self._options.look_pause_seconds)
            instance = await self._reads.read(_region(handle), handle.provider_id)
            if instance is not None:
                return instance
        return None

    async def _owned_in(self, region: str) -> list[InstanceView]:
        what = f"list in {region}"
        instances, left = await asyncio.gather(self._tagged(region, what), self._leftovers.owned(region, what))
        living = [instance for instance in instances if not is_terminated(instance)]
        prices = await self._spot_prices_of(region, living)
        views = [
            replace(instance_view(instance, region), price_usd_hr=prices.get(instance["InstanceId"]))
            for instance in living
        ]
        # What belongs to an instance goes with it; only what is left alone is listed.
        present = {view.attempt_id for view in views}
        return views + [view for view in left if view.attempt_id not in present]

    async def _spot_prices_of(self, region: str, instances: Sequence[dict[str, Any]]) -> dict[str, Decimal]:
        """What each spot instance costs now, by its id: AWS moves the price of those that run. A sweep goes on without
        it."""
        placed = {
            instance["InstanceId"]: (
                instance.get("InstanceType"),
                instance.get("Placement", {}).get("AvailabilityZone"),
            )
            for instance in instances
            if instance.get("InstanceLifecycle") == "spot"
        }
        types = sorted({str(name) for name, _ in placed.values()})
        try:
            prices = await self._market.spot_prices(region, types)
        except ProviderError:
            return {}
        return {name: prices[place] for name, place in placed.items() if place in prices}


def _subnet_in(region: str, options: AwsOptions) -> str | None:
    """One of the connection's subnets there; None where the default network serves."""
    return next((subnet for zone, subnet in options.subnet_ids.items() if zone.startswith(region)), None)


def _with_ports(handle: Handle, spec: InstanceSpec) -> Handle:
    ports = ports_data(with_ssh(spec.ports, spec.ssh_public_key))
    return handle.model_copy(update={"data": {**handle.data, **ports}})


def _wanted(machine: Machine, query: OfferQuery) -> bool:
    return query.accelerator in (None, machine.accelerator) and query.gpu_count in (None, machine.gpu_count)


def _can_be_spot(machine: Machine, catalog: Catalog) -> bool:
    return machine.spot and machine.type in catalog.zones


def _after(cursor: str | None, text: str) -> LogPage:
    """What the console has beyond the cursor, a length and a digest of what was seen; all of it once that rolled on."""
    seen, _, digest = (cursor or "0:").partition(":")
    length = int(seen) if seen.isdecimal() else 0
    fresh = text[length:] if _digest(text[:length]) == digest or not length else text
    return LogPage(fresh, f"{len(text)}:{_digest(text)}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _region(handle: Handle) -> str:
    if handle.region is None:
        raise ProviderNotFound(f"{handle.provider_id} names no region")
    return handle.region


def _filter(name: str, value: str) -> dict[str, Any]:
    return {"Name": name, "Values": [value]}
