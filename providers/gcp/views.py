"""What Google says of an instance, a disk or an operation, in the terms of the provider contract."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from agent.host import machine_ports
from domain.errors import Ambiguous
from domain.ids import AttemptId
from domain.spec import Port
from providers.base import Handle, InstanceView, ProviderState, PublishedPort

INSTANCE, DISK, FIREWALL = "instance", "disk", "firewall"
OWNER_LABEL, ATTEMPT_LABEL = "headrace-owner", "headrace-attempt"

_STATES: Mapping[str, ProviderState] = {
    "PENDING": ProviderState.PENDING,
    "PROVISIONING": ProviderState.PENDING,
    "STAGING": ProviderState.STARTING,
    "RUNNING": ProviderState.RUNNING,
    "PENDING_STOP": ProviderState.STOPPING,
    "STOPPING": ProviderState.STOPPING,
    "DEPROVISIONING": ProviderState.STOPPING,
    # Their disks bill on, and nobody will start them again: they are to be deleted.
    "SUSPENDING": ProviderState.EXITED,
    "SUSPENDED": ProviderState.EXITED,
    "TERMINATED": ProviderState.EXITED,
}
ENDED = frozenset({"PENDING_STOP", "STOPPING", "DEPROVISIONING", "SUSPENDING", "SUSPENDED", "TERMINATED"})

_ENDS: Mapping[str, ProviderState] = {
    "compute.instances.preempted": ProviderState.INTERRUPTED,
    "compute.instances.terminateOnHostMaintenance": ProviderState.INTERRUPTED,
    "compute.instances.hostError": ProviderState.FAILED,
    "compute.instances.guestTerminate": ProviderState.EXITED,
}
"""Operations of Google's own by which an instance ends. They stay readable after it was deleted."""
_MESSAGE_CHARACTERS = 2_000


def instance_view(
    instance: Any, ended: "InstanceEnd | None" = None, known: Mapping[str, Any] = MappingProxyType({})
) -> InstanceView:
    """What a `compute_v1.Instance` is; `ended`, what ended it. Nothing of its metadata, where the token is.

    `known` is the data of an earlier handle of it: the ports, whose names Google does not know, stay.

    Raises:
        Ambiguous: the description lacks what every instance has.
    """
    zone = last_part(instance.zone)
    if not (instance.name and instance.status and instance.id and zone):
        raise Ambiguous(f"an unreadable instance {instance.name!r} in {zone!r}: without a name, id, zone or status")
    # An unknown state is one that bills.
    state = _STATES.get(instance.status, ProviderState.PENDING)
    message = instance.status_message if instance.status in ENDED else ""
    if ended is not None and instance.status in ENDED:
        state, message = ended
    attempt = instance.labels.get(ATTEMPT_LABEL)
    created_at, address = time_of(instance.creation_timestamp), _address(instance)
    handle = instance_handle(
        instance.name, zone, attempt, instance.id, created_at, is_reached=instance.name in instance.tags.items
    )
    ports = {"ports": known["ports"]} if "ports" in known else {}
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=handle.model_copy(update={"host": address, "data": handle.data | ports}),
        state=state,
        message=message[:_MESSAGE_CHARACTERS],
        created_at=created_at,
        endpoints=_endpoints(address, known) if state is ProviderState.RUNNING else (),
    )


def instance_handle(
    name: str,
    zone: str,
    attempt: str | None,
    number: int | None,
    created_at: datetime | None,
    *,
    operation: str = "",
    is_reached: bool = False,
) -> Handle:
    """The handle of an instance; its boot disk has its name, and so has its firewall rule where users reach it.
    `operation` is that of the create."""
    data: dict[str, Any] = {"attempt": attempt, "zone": zone, "id": str(number or ""), "disk": name}
    if is_reached:
        data["firewall"] = name
    return Handle(
        provider_id=name,
        resource_type=INSTANCE,
        region=region_of(zone),
        created_at=created_at,
        data=data | ({"operation": operation} if operation else {}),
    )


def _weight(operation: Any) -> tuple[bool, str]:
    return _ENDS[operation.operation_type] is ProviderState.INTERRUPTED, str(operation.insert_time)


def ports_data(ports: Sequence[Port]) -> dict[str, Any]:
    """What a handle keeps of the ports that its instance publishes."""
    return {"ports": [port.model_dump(mode="json") for port in ports]} if ports else {}


def absent_view(handle: Handle, ended: "InstanceEnd") -> InstanceView:
    """An instance that Google took back, and deleted with that."""
    attempt = handle.data.get("attempt")
    state, message = ended
    return InstanceView(attempt_id=AttemptId(attempt) if attempt else None, handle=handle, state=state, message=message)


def disk_view(disk: Any) -> InstanceView:
    """A disk that no instance holds: it bills until it is deleted.

    Raises:
        Ambiguous: the description lacks what every disk has.
    """
    zone = last_part(disk.zone)
    if not (disk.name and zone):
        raise Ambiguous(f"an unreadable disk {disk.name!r} in {zone!r}")
    attempt = disk.labels.get(ATTEMPT_LABEL)
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=Handle(
            provider_id=disk.name,
            resource_type=DISK,
            region=region_of(zone),
            data={"attempt": attempt, "zone": zone},
        ),
        state=ProviderState.PENDING,
        message="a disk that its instance left behind",
        created_at=time_of(disk.creation_timestamp),
    )


InstanceEnd = tuple[ProviderState, str]


def end_of(operations: Iterable[Any], name: str, number: str) -> InstanceEnd | None:
    """How Google ended the instance, by the operations on it: the newest. One that took it back counts over a shutdown
    from within, which is what a machine may do when it hears of that."""
    ours = [
        operation
        for operation in operations
        if operation.operation_type in _ENDS
        and (str(operation.target_id) == number if number else last_part(operation.target_link) == name)
    ]
    for operation in sorted(ours, key=_weight, reverse=True):
        words = operation.status_message or operation.description or operation.operation_type
        return _ENDS[operation.operation_type], str(words)[:_MESSAGE_CHARACTERS]
    return None


def label_filter(labels: Mapping[str, str]) -> str:
    """The filter that finds what carries all the labels."""
    return " AND ".join(f'(labels.{key} = "{value}")' for key, value in labels.items())


def _address(instance: Any) -> str | None:
    """Without a public address, whoever reaches the network reaches the private one."""
    for interface in instance.network_interfaces:
        public = next((access.nat_i_p for access in interface.access_configs if access.nat_i_p), None)
        if address := public or interface.network_i_p:
            return str(address)
    return None


def _endpoints(address: str | None, known: Mapping[str, Any]) -> tuple[PublishedPort, ...]:
    if address is None:
        return ()
    ports = [Port.model_validate(port) for port in known.get("ports", ())]
    numbers = machine_ports(ports)
    return tuple(PublishedPort(port.name, port.protocol, address, numbers[port.container_port]) for port in ports)


def last_part(url: str) -> str:
    """The name at the end of a resource's URL."""
    return url.rpartition("/")[2]


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def time_of(text: str) -> datetime | None:
    """RFC 3339, or None."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
