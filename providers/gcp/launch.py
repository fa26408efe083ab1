"""The request that makes an instance: the same on every retry of an attempt, as far as the image stays the same."""

import re
import uuid
from dataclasses import dataclass
from typing import Any

from domain.errors import ProviderRejected
from domain.offers import Offer
from domain.ssh_access import with_ssh
from providers.base import InstanceSpec
from providers.gcp.offers import disk_type, split_sku
from providers.gcp.settings import LONGEST_RUN_SECONDS, GcpOptions
from providers.gcp.views import ATTEMPT_LABEL, OWNER_LABEL, region_of
from providers.virtual_machine import boot_script, gibibytes

METADATA_BYTES = 262_144
"""Compute Engine's limit of one metadata value."""
DESCRIPTION_CHARACTERS = 2_048
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[-_a-z0-9]{0,63}")
_REQUESTS = uuid.UUID("6d0f4f5e-2b0b-4c53-9f5c-4d2f0c3a8e11")


@dataclass(frozen=True, slots=True)
class MachineImage:
    """What a machine boots from, and the least size of its disk in GB."""

    link: str
    size_gb: int


def request_id(spec: InstanceSpec, offer: Offer) -> str:
    """The idempotency key: of the attempt and its offer, a UUID, as Compute Engine wants it."""
    return request_id_of(spec.owner_id, spec.attempt_id, offer.id)


def request_id_of(owner_id: str, attempt_id: str, of: str) -> str:
    """The idempotency key of a create for an attempt."""
    return str(uuid.uuid5(_REQUESTS, f"{owner_id}\n{attempt_id}\n{of}"))


def instance_name(owner_id: str, attempt_id: str) -> str:
    """The name of an attempt's instance and of its disk; it begins with a letter, as it must."""
    return f"hr-{owner_id}-{attempt_id}"


def instance_resource(spec: InstanceSpec, offer: Offer, image: MachineImage, options: GcpOptions) -> dict[str, Any]:
    """The `Instance` to insert.

    Raises:
        ProviderRejected: a field breaks a limit of Compute Engine's, or there is no URL by which to reach the control
            plane.
    """
    name, labels = instance_name(spec.owner_id, spec.attempt_id), _labels(spec)
    if not _NAME.fullmatch(name):
        raise ProviderRejected(f"create {spec.attempt_id}: {name[:80]!r} is no name of an instance (RFC 1035, 63 long)")
    machine, accelerator, count = split_sku(offer.provider_sku)
    zone = offer.zone
    if not zone:
        raise ProviderRejected(f"create {spec.attempt_id}: the offer {offer.id} names no zone")
    resource: dict[str, Any] = {
        "name": name,
        "description": _description(spec),
        "machine_type": f"zones/{zone}/machineTypes/{machine}",
        "labels": labels,
        "disks": [
            {
                "boot": True,
                "auto_delete": True,
                "initialize_params": {
                    "disk_name": name,
                    "source_image": image.link,
                    "disk_size_gb": image.size_gb + gibibytes(spec.compute.ephemeral_disk_gb),
                    "disk_type": f"zones/{zone}/diskTypes/{disk_type(machine)}",
                    "labels": labels,
                },
            }
        ],
        "network_interfaces": [_interface(zone, options)],
        "metadata": {
            "items": [
                {"key": "user-data", "value": user_data(spec, options)},
                {"key": "block-project-ssh-keys", "value": "true"},
            ]
        },
        # No service account: the machine has no identity to be had.
        "service_accounts": [],
        "scheduling": {
            "provisioning_model": "SPOT" if offer.spot else "STANDARD",
            "on_host_maintenance": "TERMINATE",
            "automatic_restart": False,
            "instance_termination_action": "DELETE",
            "max_run_duration": {"seconds": lifetime_seconds(spec, options)},
        },
    }
    # The attempt's own tag is what its firewall rule goes by.
    own = [name] if with_ssh(spec.ports, spec.ssh_public_key) else []
    if tags := [*options.network_tags, *own]:
        resource["tags"] = {"items": tags}
    if accelerator:
        resource["guest_accelerators"] = [
            {"accelerator_type": f"zones/{zone}/acceleratorTypes/{accelerator}", "accelerator_count": count}
        ]
    return resource


def user_data(spec: InstanceSpec, options: GcpOptions) -> str:
    """The host agent, as cloud-init takes it."""
    script = boot_script(
        spec,
        "gcp",
        lifetime_seconds=lifetime_seconds(spec, options),
        workload_networks=options.workload_networks,
    )
    size = len(script.encode())
    if size > METADATA_BYTES:
        raise ProviderRejected(
            f"create {spec.attempt_id}: {size} bytes of user data, at most {METADATA_BYTES} are taken"
        )
    return script


def lifetime_seconds(spec: InstanceSpec, options: GcpOptions) -> int:
    """The job's, as far as Compute Engine counts, or else the connection's."""
    return min(spec.lifetime_seconds or options.lifetime_seconds, LONGEST_RUN_SECONDS)


def _labels(spec: InstanceSpec) -> dict[str, str]:
    """Whose it is. Ids of jobs and organizations have capitals, which labels cannot: they are in the description."""
    labels = {OWNER_LABEL: spec.owner_id, ATTEMPT_LABEL: spec.attempt_id}
    for key, value in labels.items():
        if not _LABEL.fullmatch(value):
            raise ProviderRejected(
                f"create {spec.attempt_id}: the label {key} is {value[:80]!r}; lower-case letters, digits, - and _ are"
                " taken, at most 63"
            )
    return labels


def _description(spec: InstanceSpec) -> str:
    text = f"Headrace: job {spec.job_id} of {spec.org_id}"
    if len(text) > DESCRIPTION_CHARACTERS:
        raise ProviderRejected(
            f"create {spec.attempt_id}: a description of {len(text)} characters, at most {DESCRIPTION_CHARACTERS} are"
            " taken"
        )
    return text


def _interface(zone: str, options: GcpOptions) -> dict[str, Any]:
    interface: dict[str, Any] = {"network": options.network}
    if options.subnetworks:
        subnetwork = options.subnetworks.get(region_of(zone))
        if subnetwork is None:
            raise ProviderRejected(f"the connection names no subnetwork for the region {region_of(zone)}")
        interface["subnetwork"] = subnetwork
    if options.public_address:
        interface["access_configs"] = [{"type_": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return interface
