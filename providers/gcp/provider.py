"""The adapter to Compute Engine: a virtual machine for an attempt, found again by its name and its labels.

The name and the request id of a create are of the attempt, so Google itself makes no second machine of a repeated one.
No network, no key and no service account is made or given; a firewall rule for a job that publishes something only.

A create is answered by an operation, in which a lack of capacity shows seconds later: a create waits for that a little,
and `provision` goes on. The machine pulls the image itself: `provision` ends when it runs, and what goes wrong later is
told by the host agent (`/agent/v1/fault`, and its last words on the serial port), after which it powers itself off.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
)
from domain.ids import AttemptId
from domain.offers import Capabilities, Offer
from providers.base import (
    CredentialReport,
    Handle,
    InstanceSpec,
    InstanceView,
    LogPage,
    OfferQuery,
    Progress,
    ProviderContext,
    ProviderState,
    TerminateState,
)
from providers.gcp.calls import GcpCalls
from providers.gcp.disks import Disks
from providers.gcp.errors import AlreadyThere, error_of_operation, is_done, of_a_create
from providers.gcp.firewall import FirewallRules, published_ports
from providers.gcp.launch import MachineImage, instance_resource, request_id
from providers.gcp.market import SERVICE, Market
from providers.gcp.offers import Machine, offers_of, split_sku
from providers.gcp.settings import GcpCredentials, GcpOptions
from providers.gcp.views import (
    ATTEMPT_LABEL,
    DISK,
    ENDED,
    FIREWALL,
    OWNER_LABEL,
    InstanceEnd,
    absent_view,
    end_of,
    instance_handle,
    instance_view,
    label_filter,
    last_part,
    ports_data,
    time_of,
)
from providers.virtual_machine import booted

_INSTANCE, _OPERATION = "compute#instance", "compute#operation"


class GcpProvider:
    """A connection to GCP; `GcpOptions` names the options of the context."""

    name = "gcp"
    slots: int | None = None
    capabilities = Capabilities(http_ports=True, tcp_ports=True, ssh=True, private_image=True, logs_api=True)

    def __init__(self, context: ProviderContext, credentials: GcpCredentials) -> None:
        self._context = context
        self._options = GcpOptions.model_validate(context.options)
        self._calls = GcpCalls(credentials, self._options)
        self._market = Market(self._calls, self._options)
        self._disks = Disks(self._calls, context.owner_id)
        self._rules = FirewallRules(self._calls, self._options, context.owner_id)
        self._images: dict[str, tuple[float, MachineImage]] = {}

    async def verify(self) -> CredentialReport:
        try:
            await self._calls.call("Projects", "get", "verify", kind="compute#project")
            await self._calls.billing(f"/v1/services/{SERVICE}/skus", "verify", pageSize="1")
            # What a sweep needs is asked for here: a role without it would let nothing be swept.
            await self._rules.list_owned("verify")
        except AuthError as error:
            return CredentialReport(status="auth", message=error.message)
        except (PermissionDenied, BillingBlocked, ProviderNotFound) as error:
            return CredentialReport(status="permission", message=error.message)
        except ProviderError as error:
            return CredentialReport(status="unreachable", message=error.message)
        return CredentialReport(status="ok")

    async def offers(self, query: OfferQuery) -> list[Offer]:
        catalog = await self._market.catalog()
        quotas = await self._market.quotas()
        wanted = [machine for machine in catalog.machines if _wanted(machine, query)]
        return offers_of(wanted, catalog.prices, quotas, self._context.connection_id, datetime.now(UTC))

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        what = f"create {spec.attempt_id}"
        image = await self._image(self._options.gpu_image if offer.gpu_count else self._options.cpu_image, what)
        resource = instance_resource(spec, offer, image, self._options)
        name, zone = resource["name"], offer.zone or ""
        secrets = _secrets(spec, resource)
        try:
            operation = await self._calls.call(
                "Instances",
                "insert_unary",
                what,
                kind=_OPERATION,
                secrets=secrets,
                zone=zone,
                request_id=request_id(spec, offer),
                instance_resource=resource,
            )
        except AlreadyThere:
            return await self._adopt(spec, offer, name, what)
        except ProviderNotFound as error:
            raise of_a_create(error) from None
        if not operation.name:
            raise Ambiguous(f"{what}: an operation without a name")
        ports = published_ports(spec)
        handle = instance_handle(
            name,
            zone,
            spec.attempt_id,
            operation.target_id,
            time_of(operation.insert_time),
            operation=operation.name,
            is_reached=bool(ports),
        )
        handle = handle.model_copy(update={"data": handle.data | ports_data(ports)})
        try:
            await self._follow(handle, operation, what, secrets)
        except AlreadyThere:
            return await self._adopt(spec, offer, name, what)
        return handle

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        what = f"provision {spec.attempt_id}"
        # A handle that was found lacks the names of the ports.
        handle = handle.model_copy(update={"data": handle.data | ports_data(published_ports(spec))})
        await self._rules.open(spec, what)

        async def look() -> InstanceView | None:
            inserting = await self._is_inserting(handle, what)
            view = await self.get(handle)
            if view is None and inserting:
                # No read shows it before its create has ended.
                return InstanceView(attempt_id=spec.attempt_id, handle=handle, state=ProviderState.PENDING)
            return view

        return await booted(
            look,
            f"{what}: {handle.provider_id}",
            progress,
            boot_seconds=self._options.boot_seconds,
            pause_seconds=self._options.look_pause_seconds,
        )

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        for look in range(self._options.looks):
            if look:
                await asyncio.sleep(self._options.look_pause_seconds)
            if found := await self._labelled(f"find {attempt_id}", attempt_id):
                return [instance_view(instance).handle for instance in found]
        return []

    async def get(self, handle: Handle) -> InstanceView | None:
        what = f"get {handle.provider_id}"
        if handle.resource_type == DISK:
            return await self._disks.view(handle.provider_id, _zone(handle), what)
        if handle.resource_type == FIREWALL:
            return await self._rules.view(handle.provider_id, what)
        instance = await self._instance(handle, what)
        if instance is None:
            ended = await self._end(handle, what)
            return None if ended is None else absent_view(handle, ended)
        ended = await self._end(handle, what) if instance.status in ENDED else None
        return instance_view(instance, ended, handle.data)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        """The serial port from the cursor on, a count of bytes: its last megabyte, seconds late."""
        if handle.resource_type in (DISK, FIREWALL):
            return LogPage("", cursor)
        start = int(cursor) if cursor and cursor.isdecimal() else 0
        try:
            output = await self._calls.call(
                "Instances",
                "get_serial_port_output",
                f"logs {handle.provider_id}",
                kind="compute#serialPortOutput",
                zone=_zone(handle),
                instance=handle.provider_id,
                port=1,
                start=start,
            )
        except ProviderNotFound:
            return LogPage("", cursor)
        return LogPage(output.contents, str(output.next_))

    async def terminate(self, handle: Handle) -> TerminateState:
        what = f"delete {handle.provider_id}"
        if handle.resource_type == FIREWALL:
            return await self._rules.close(handle.provider_id, what)
        zone = _zone(handle)
        if handle.resource_type == DISK:
            return await self._disks.delete(handle.provider_id, zone, what)
        with contextlib.suppress(ProviderNotFound):
            await self._calls.call(
                "Instances", "delete_unary", what, kind=_OPERATION, zone=zone, instance=handle.provider_id
            )
        # Whatever the delete answered, only what reads say counts.
        if await self._instance(handle, what) is not None:
            return TerminateState.REQUESTED
        left = [await self._disks.delete(str(handle.data.get("disk") or handle.provider_id), zone, what)]
        if rule := handle.data.get("firewall"):
            left.append(await self._rules.close(str(rule), what))
        return TerminateState.REQUESTED if TerminateState.REQUESTED in left else TerminateState.GONE

    async def list_owned(self) -> list[InstanceView]:
        instances, disks, rules = await asyncio.gather(
            self._labelled("list"), self._disks.list_alone("list"), self._rules.list_owned("list")
        )
        views = [instance_view(instance) for instance in instances]
        # Both go with their instance, whose name they have; only one that is left alone is listed. Of two with one name
        # a sweep takes the later, and the other the next time: first what bills.
        present = {view.handle.provider_id for view in views}
        return views + [view for view in (*rules, *disks) if view.handle.provider_id not in present]

    async def close(self) -> None:
        self._calls.close()

    # Creating -----------------------------------------------------------------------------------------------------

    async def _image(self, name: str, what: str) -> MachineImage:
        """The image of a name (`GcpOptions.gpu_image`), kept for a while: a retry meets the same."""
        read_at, image = self._images.get(name, (0.0, None))
        if image is not None and time.monotonic() - read_at <= self._options.catalog_seconds:
            return image
        _, project, _, _, *rest = name.split("/")
        method, field = ("get_from_family", "family") if rest[0] == "family" else ("get", "image")
        try:
            found = await self._calls.call(
                "Images", method, what, kind="compute#image", **{"project": project, field: rest[-1]}
            )
        except ProviderNotFound as error:
            raise ProviderRejected(f"{what}: there is no machine image {name}: {error.message}") from None
        if not (found.self_link and found.disk_size_gb):
            raise Ambiguous(f"{what}: the image {name} came without its size")
        image = MachineImage(found.self_link, found.disk_size_gb)
        self._images[name] = (time.monotonic(), image)
        return image

    async def _follow(self, handle: Handle, operation: Any, what: str, secrets: Iterable[str]) -> None:
        """Waits a little for the operation of a create. When it still runs then, or cannot be read, `provision` goes
        on with it: the instance's name is known.

        Raises:
            ProviderError, AlreadyThere: what the operation ended with. Nothing was made.
        """
        deadline = time.monotonic() + self._options.capacity_seconds
        while True:
            if (error := error_of_operation(operation, what, secrets)) is not None:
                raise error
            if is_done(operation) or time.monotonic() >= deadline:
                return
            await asyncio.sleep(min(self._options.look_pause_seconds, max(0, deadline - time.monotonic())))
            try:
                operation = await self._operation(handle, what)
            except ProviderError:
                return
            if operation is None:
                return

    async def _is_inserting(self, handle: Handle, what: str) -> bool:
        """Whether the create's operation still runs; raises what it failed with."""
        operation = await self._operation(handle, what) if handle.data.get("operation") else None
        if operation is None:
            return False
        if isinstance(error := error_of_operation(operation, what, ()), ProviderError):
            raise error
        return not is_done(operation)

    async def _operation(self, handle: Handle, what: str) -> Any | None:
        """The operation of the create; None once Google has forgotten it."""
        try:
            return await self._calls.call(
                "ZoneOperations",
                "get",
                what,
                kind=_OPERATION,
                zone=_zone(handle),
                operation=handle.data["operation"],
            )
        except ProviderNotFound:
            return None

    async def _adopt(self, spec: InstanceSpec, offer: Offer, name: str, what: str) -> Handle:
        """The instance that has the attempt's name: an earlier create made it, even if no read shows it yet."""
        zone = offer.zone or ""
        try:
            instance = await self._calls.call("Instances", "get", what, kind=_INSTANCE, zone=zone, instance=name)
        except ProviderNotFound:
            return instance_handle(name, zone, spec.attempt_id, None, None, is_reached=bool(published_ports(spec)))
        if instance.labels.get(OWNER_LABEL) != spec.owner_id or instance.labels.get(ATTEMPT_LABEL) != spec.attempt_id:
            raise ProviderRejected(f"{what}: an instance {name} in {zone} is there, and is not ours")
        if last_part(instance.machine_type) != split_sku(offer.provider_sku)[0]:
            # Names and request ids are of the attempt, which has one offer: this is not what was asked for.
            raise ProviderRejected(f"{what}: {name} in {zone} is there as {last_part(instance.machine_type)}")
        return instance_view(instance).handle

    # Reads --------------------------------------------------------------------------------------------------------

    async def _labelled(self, what: str, attempt_id: AttemptId | None = None) -> list[Any]:
        """Our instances in all zones. Whatever the server filters by, only what carries our labels is ours."""
        labels = {OWNER_LABEL: self._context.owner_id}
        if attempt_id is not None:
            labels[ATTEMPT_LABEL] = attempt_id
        instances = await self._instances(label_filter(labels), what)
        return [instance for instance in instances if labels.items() <= dict(instance.labels).items()]

    async def _instances(self, filter: str, what: str) -> list[Any]:
        pages = await self._calls.pages(
            "Instances", "aggregated_list", what, kind="compute#instanceAggregatedList", filter=filter
        )
        found = [instance for page in pages for scope in page.items.values() for instance in scope.instances]
        for instance in found:
            instance_view(instance)  # an instance that cannot be read spoils the list
        return found

    async def _instance(self, handle: Handle, what: str) -> Any | None:
        """None after enough misses in a row: by its name, and last among all that a filter finds."""
        for _ in range(self._options.looks - 1):
            try:
                return await self._calls.call(
                    "Instances", "get", what, kind=_INSTANCE, zone=_zone(handle), instance=handle.provider_id
                )
            except ProviderNotFound:
                await asyncio.sleep(self._options.look_pause_seconds)
        found = await self._instances(f'name = "{handle.provider_id}"', what)
        return next((instance for instance in found if instance.name == handle.provider_id), None)

    async def _end(self, handle: Handle, what: str) -> InstanceEnd | None:
        """How Google ended the instance; None if it did not."""
        number = str(handle.data.get("id") or "")
        narrowed = f"targetId = {number}" if number else 'operationType = "compute.instances.preempted"'
        pages = await self._calls.pages(
            "ZoneOperations", "list", what, kind="compute#operationList", zone=_zone(handle), filter=narrowed
        )
        return end_of((operation for page in pages for operation in page.items), handle.provider_id, number)


def _wanted(machine: Machine, query: OfferQuery) -> bool:
    return query.accelerator in (None, machine.accelerator) and query.gpu_count in (None, machine.shape.gpu_count)


def _secrets(spec: InstanceSpec, resource: dict[str, Any]) -> tuple[str, ...]:
    """What an error might repeat of the request: the token, and the script that holds it."""
    return spec.agent.token.get_secret_value(), resource["metadata"]["items"][0]["value"]


def _zone(handle: Handle) -> str:
    zone = handle.data.get("zone")
    if not zone:
        raise ProviderNotFound(f"{handle.provider_id} names no zone")
    return str(zone)
