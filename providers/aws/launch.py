"""The request that makes an instance: the same on every retry of an attempt, as far as the image stays the same."""

import gzip
import hashlib
from dataclasses import dataclass
from typing import Any

from domain.errors import ProviderRejected
from domain.offers import Offer
from providers.aws.settings import AwsOptions
from providers.aws.views import ATTEMPT_TAG, JOB_TAG, ORG_TAG, OWNER_TAG
from providers.base import InstanceSpec
from providers.virtual_machine import boot_script, gibibytes

USER_DATA_BYTES = 16_384
"""EC2's limit, before base64."""
TAG_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class MachineImage:
    """What a machine boots from: its root device, and the least size of that in GB."""

    id: str
    root_device: str
    size_gb: int


def client_token(spec: InstanceSpec, offer: Offer) -> str:
    """The idempotency token: of the attempt and its offer, 64 characters, which is EC2's limit."""
    return hashlib.sha256(f"{spec.owner_id}\n{spec.attempt_id}\n{offer.id}".encode()).hexdigest()


def run_arguments(spec: InstanceSpec, offer: Offer, image: MachineImage, options: AwsOptions) -> dict[str, Any]:
    """The arguments of `RunInstances`, without the security group of the attempt's own.

    Raises:
        ProviderRejected: a field breaks a limit of EC2's, or there is no URL by which to reach the control plane.
    """
    tags = tags_of(spec)
    arguments: dict[str, Any] = {
        "ClientToken": client_token(spec, offer),
        "ImageId": image.id,
        "InstanceType": offer.provider_sku,
        "MinCount": 1,
        "MaxCount": 1,
        "Placement": {"AvailabilityZone": offer.zone},
        "UserData": user_data(spec, options),
        "BlockDeviceMappings": [
            {
                "DeviceName": image.root_device,
                "Ebs": {
                    "VolumeSize": image.size_gb + gibibytes(spec.compute.ephemeral_disk_gb),
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                },
            }
        ],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        # The host powers itself off when its workload ended or its time is up, and that deletes it.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # No identity to be had, and nothing that a container could reach.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
    }
    if offer.spot:
        arguments["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    if options.security_group_ids:
        arguments["SecurityGroupIds"] = list(options.security_group_ids)
    if options.subnet_ids:
        arguments |= _in_subnet(offer, options)
    return arguments


def user_data(spec: InstanceSpec, options: AwsOptions) -> bytes:
    """The host agent, compressed, as cloud-init takes it: the agent alone is longer than EC2 allows."""
    script = boot_script(
        spec,
        "aws",
        lifetime_seconds=spec.lifetime_seconds or options.lifetime_seconds,
        workload_networks=options.workload_networks,
    )
    packed = gzip.compress(script.encode(), compresslevel=9, mtime=0)
    if len(packed) > USER_DATA_BYTES:
        raise ProviderRejected(
            f"create {spec.attempt_id}: {len(packed)} bytes of user data, at most {USER_DATA_BYTES} are taken"
        )
    return packed


def name_of(spec: InstanceSpec) -> str:
    """The name of all that is made for an attempt."""
    return f"{spec.owner_id}-{spec.attempt_id}"


def tags_of(spec: InstanceSpec) -> list[dict[str, str]]:
    """The tags of all that is made for an attempt.

    Raises:
        ProviderRejected: one is longer than EC2 allows.
    """
    values = {
        "Name": name_of(spec),
        OWNER_TAG: spec.owner_id,
        ATTEMPT_TAG: spec.attempt_id,
        JOB_TAG: spec.job_id,
        ORG_TAG: spec.org_id,
    }
    for name, value in values.items():
        if len(value) > TAG_CHARACTERS:
            raise ProviderRejected(
                f"create {spec.attempt_id}: the tag {name} has {len(value)} characters, at most {TAG_CHARACTERS} are"
                " taken"
            )
    return [{"Key": name, "Value": value} for name, value in values.items()]


def _in_subnet(offer: Offer, options: AwsOptions) -> dict[str, Any]:
    subnet = options.subnet_ids.get(offer.zone or "")
    if subnet is None:
        raise ProviderRejected(f"the connection names no subnet for the zone {offer.zone}")
    return {"SubnetId": subnet}
