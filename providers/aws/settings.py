"""What a connection to AWS is given: credentials, and options with defaults that fit a fresh account."""

from typing import Annotated

from pydantic import Field, SecretStr

from domain.spec import Frozen

Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$")]

_SERVICES = "/aws/service"
GPU_IMAGE = f"{_SERVICES}/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
"""AWS's own image with the NVIDIA driver, docker and the container toolkit."""
CPU_IMAGE = f"{_SERVICES}/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"


class AwsCredentials(Frozen):
    """The fields of the connect form. A key of a user of its own; `docs/providers/aws.md` has its policy."""

    access_key_id: str = Field(min_length=16, max_length=128, pattern=r"^\w+$", title="Access Key ID")
    secret_access_key: SecretStr = Field(min_length=1, max_length=256, title="Secret Access Key")


class AwsOptions(Frozen):
    """The options of a `ProviderContext`; times are in seconds."""

    regions: tuple[Region, ...] = ("us-east-1", "us-east-2", "us-west-2")
    """Where machines are rented."""
    former_regions: tuple[Region, ...] = ()
    """Where none are rented any more, and what is left is still looked for."""
    cpu_families: tuple[str, ...] = ("m7i",)
    """Families of machines without a GPU that are offered; 4 GB of memory for each vCPU."""
    gpu_image: str = GPU_IMAGE
    cpu_image: str = CPU_IMAGE
    """An image id (`ami-...`, which holds in one region only) or the name of an SSM parameter that has one."""
    security_group_ids: tuple[str, ...] = ()
    """Groups of the machines, of one region; none: the default group of the VPC, which lets in its members."""
    subnet_ids: dict[str, str] = Field(default_factory=dict)
    """The subnet of each zone, where the account has no default VPC; it needs a way out to the internet."""
    workload_networks: tuple[str, ...] = ()
    """Private networks, as CIDRs, that workloads reach all the same: a file server, a mirror of packages."""
    lifetime_seconds: int = Field(default=7 * 24 * 3600, ge=600)
    """After so long a machine powers itself off, whatever else happens; a job with limits says itself how long."""
    timeout_seconds: float = Field(default=30, gt=0)
    looks: int = Field(default=3, ge=1)
    """How many reads in a row must miss an instance before it counts as absent."""
    look_pause_seconds: float = Field(default=2, ge=0)
    boot_seconds: float = Field(default=900, gt=0)
    """From the create to a running machine, at most."""
    catalog_seconds: float = Field(default=3600, ge=0)
    """How long types, zones and on-demand prices count."""
    spot_seconds: float = Field(default=10, ge=0)
    """How long spot prices count."""
    quota_seconds: float = Field(default=300, ge=0)
    """How long quotas count: whoever was granted more wants to see it."""
    page_size: int = Field(default=1000, ge=5, le=1000)
    endpoints: dict[str, str] = Field(default_factory=dict)
    """URLs in place of AWS's own, by service (`ec2`, `sts`, `ssm`, `pricing`, `service-quotas`)."""
