"""What AWS says of an instance or a volume, in the terms of the provider contract."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from domain.errors import Ambiguous
from domain.ids import AttemptId
from providers.base import Handle, InstanceView, ProviderState

INSTANCE, VOLUME = "instance", "volume"
TERMINATED = "terminated"
"""An instance that is no more and still shows, for about an hour."""

OWNER_TAG, ATTEMPT_TAG, JOB_TAG, ORG_TAG = "headrace-owner", "headrace-attempt", "headrace-job", "headrace-org"

_STATES: Mapping[str, ProviderState] = {
    "pending": ProviderState.PENDING,
    "running": ProviderState.RUNNING,
    "shutting-down": ProviderState.STOPPING,
    "stopping": ProviderState.STOPPING,
    # Its disk bills on, and nobody will start it again: it is to be deleted.
    "stopped": ProviderState.EXITED,
    TERMINATED: ProviderState.GONE,
}
_ENDED = {"shutting-down", "stopping", "stopped", TERMINATED}

# Why an instance ended, where that was not our doing. They hold on when it is terminated, so that a preemption that
# nobody watched is told from a loss.
_REASONS: Mapping[str, ProviderState] = {
    "Server.SpotInstanceTermination": ProviderState.INTERRUPTED,
    "Server.SpotInstanceShutdown": ProviderState.INTERRUPTED,
    "Server.ScheduledStop": ProviderState.INTERRUPTED,
    "Server.InsufficientInstanceCapacity": ProviderState.INTERRUPTED,
    "Server.InternalError": ProviderState.FAILED,
    "Client.InternalError": ProviderState.FAILED,
    "Client.InvalidSnapshot.NotFound": ProviderState.FAILED,
    "Client.VolumeLimitExceeded": ProviderState.FAILED,
    "Client.InstanceInitiatedShutdown": ProviderState.EXITED,
}
_MESSAGE_CHARACTERS = 2_000


def instance_view(instance: Mapping[str, Any], region: str) -> InstanceView:
    """Raises:
    Ambiguous: the description lacks what every instance has.
    """
    try:
        name = str(instance["State"]["Name"])
        provider_id, launched = str(instance["InstanceId"]), instance.get("LaunchTime")
        reason = instance.get("StateReason") or {}
        tags = _tags(instance)
        volumes = [device["Ebs"]["VolumeId"] for device in instance.get("BlockDeviceMappings", []) if "Ebs" in device]
        zone = (instance.get("Placement") or {}).get("AvailabilityZone")
    except (KeyError, TypeError, AttributeError) as error:
        raise Ambiguous(f"{region}: an unreadable instance ({type(error).__name__}: {error})") from None
    # An unknown state is one that bills.
    state = _STATES.get(name, ProviderState.PENDING)
    if name in _ENDED:
        state = _REASONS.get(reason.get("Code", ""), state)
    attempt = tags.get(ATTEMPT_TAG)
    created_at = launched if isinstance(launched, datetime) else None
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=Handle(
            provider_id=provider_id,
            resource_type=INSTANCE,
            region=region,
            created_at=created_at,
            data={"attempt": attempt, "zone": zone, "volumes": volumes},
        ),
        state=state,
        message=_message(reason) if name in _ENDED else "",
        created_at=created_at,
    )


def volume_view(volume: Mapping[str, Any], region: str) -> InstanceView:
    """A volume that no instance holds: it bills until it is deleted.

    Raises:
        Ambiguous: the description lacks what every volume has.
    """
    try:
        attempt = _tags(volume).get(ATTEMPT_TAG)
        handle = Handle(
            provider_id=str(volume["VolumeId"]), resource_type=VOLUME, region=region, data={"attempt": attempt}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Ambiguous(f"{region}: an unreadable volume ({type(error).__name__}: {error})") from None
    created = volume.get("CreateTime")
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=handle,
        state=ProviderState.PENDING,
        message="a volume that its instance left behind",
        created_at=created if isinstance(created, datetime) else None,
    )


def is_terminated(instance: Mapping[str, Any]) -> bool:
    """Whether it is no more, whatever ended it."""
    return bool(instance["State"]["Name"] == TERMINATED)


def _tags(described: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}


def _message(reason: Mapping[str, Any]) -> str:
    return str(reason.get("Message") or reason.get("Code") or "")[:_MESSAGE_CHARACTERS]
