"""What Google says of an instance, a disk or an operation, in the terms of the provider contract."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from domain.errors import Ambiguous
from domain.ids import AttemptId
from providers.base import Handle, InstanceView, ProviderState

INSTANCE, DISK = "instance", "disk"
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


def instance_view(instance: Any, ended: "InstanceEnd | None" = None) -> InstanceView:
    """What a `compute_v1.Instance` is; `ended`, what ended it. Nothing of its metadata, where the token is.

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
    created_at = time_of(instance.creation_timestamp)
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=instance_handle(instance.name, zone, attempt, instance.id, created_at),
        state=state,
        message=message[:_MESSAGE_CHARACTERS],
        created_at=created_at,
    )


def instance_handle(
    name: str, zone: str, attempt: str | None, number: int | None, created_at: datetime | None, operation: str = ""
) -> Handle:
    """The handle of an instance; its boot disk has its name. `operation` is that of the create."""
    data: dict[str, Any] = {"attempt": attempt, "zone": zone, "id": str(number or ""), "disk": name}
    return Handle(
        provider_id=name,
        resource_type=INSTANCE,
        region=region_of(zone),
        created_at=created_at,
        data=data | ({"operation": operation} if operation else {}),
    )


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
    """How Google ended the instance, by the operations on it, the newest first."""
    ours = [
        operation
        for operation in operations
        if operation.operation_type in _ENDS
        and (str(operation.target_id) == number if number else last_part(operation.target_link) == name)
    ]
    for operation in sorted(ours, key=lambda operation: str(operation.insert_time), reverse=True):
        words = operation.status_message or operation.description or operation.operation_type
        return _ENDS[operation.operation_type], str(words)[:_MESSAGE_CHARACTERS]
    return None


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
