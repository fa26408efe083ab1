"""What AWS says of an instance, or of what one left behind, in the terms of the provider contract."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from agent.host import machine_ports
from domain.errors import Ambiguous
from domain.ids import AttemptId
from domain.spec import Port
from providers.base import Handle, InstanceView, ProviderState, PublishedPort

INSTANCE, VOLUME, GROUP = "instance", "volume", "security group"
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


def instance_view(
    instance: Mapping[str, Any], region: str, known: Mapping[str, Any] = MappingProxyType({})
) -> InstanceView:
    """`known` is the data of an earlier handle of the instance: what it holds stays, such as the ports.

    Raises:
        Ambiguous: the description lacks what every instance has.
    """
    try:
        name = str(instance["State"]["Name"])
        provider_id, launched = str(instance["InstanceId"]), instance.get("LaunchTime")
        reason = instance.get("StateReason") or {}
        tags = _tags(instance)
        volumes = [device["Ebs"]["VolumeId"] for device in instance.get("BlockDeviceMappings", []) if "Ebs" in device]
        zone = (instance.get("Placement") or {}).get("AvailabilityZone")
        # Without a public address, whoever can reach the subnet reaches the private one.
        address = instance.get("PublicIpAddress") or instance.get("PrivateIpAddress")
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
            host=address,
            created_at=created_at,
            data={**known, "attempt": attempt, "zone": zone, "volumes": volumes},
        ),
        state=state,
        message=_message(reason) if name in _ENDED else "",
        created_at=created_at,
        endpoints=_endpoints(address, known) if state is ProviderState.RUNNING else (),
    )


def ports_data(ports: Sequence[Port]) -> dict[str, Any]:
    """What a handle keeps of the ports that its instance publishes, which AWS does not know by name."""
    at = machine_ports(ports)
    return {"ports": [{"name": p.name, "protocol": p.protocol, "port": at[p.container_port]} for p in ports]}


def leftover_view(item: Mapping[str, Any], resource_type: str, id_key: str, region: str) -> InstanceView:
    """A volume or a security group that no instance holds: it is there until it is deleted, and a volume bills.

    Raises:
        Ambiguous: the description lacks what each of them has.
    """
    try:
        attempt = _tags(item).get(ATTEMPT_TAG)
        handle = Handle(
            provider_id=str(item[id_key]), resource_type=resource_type, region=region, data={"attempt": attempt}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Ambiguous(f"{region}: an unreadable {resource_type} ({type(error).__name__}: {error})") from None
    created = item.get("CreateTime")
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=handle,
        state=ProviderState.PENDING,
        message=f"a {resource_type} that its instance left behind",
        created_at=created if isinstance(created, datetime) else None,
    )


def is_terminated(instance: Mapping[str, Any]) -> bool:
    """Whether it is no more, whatever ended it."""
    return bool(instance["State"]["Name"] == TERMINATED)


def _endpoints(address: str | None, known: Mapping[str, Any]) -> tuple[PublishedPort, ...]:
    if address is None:
        return ()
    return tuple(PublishedPort(p["name"], p["protocol"], address, p["port"]) for p in known.get("ports", ()))


def _tags(described: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}


def _message(reason: Mapping[str, Any]) -> str:
    return str(reason.get("Message") or reason.get("Code") or "")[:_MESSAGE_CHARACTERS]
