"""What a connection to GCP is given: credentials, and options with defaults that fit a fresh project."""

import json
import re
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, SecretStr, model_validator

from domain.spec import Frozen

Region = Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)+[0-9]+$")]
Family = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
ImageName = Annotated[str, Field(pattern=r"^projects/[a-z0-9:.-]+/global/images/(family/)?[a-z0-9-]+$")]

GPU_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
"""Google's own image with the NVIDIA driver, docker and the container toolkit."""
CPU_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
COMPUTE, BILLING = "https://compute.googleapis.com", "https://cloudbilling.googleapis.com"
LONGEST_RUN_SECONDS = 120 * 24 * 3600
_PROJECT = r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$"
_KEY_CHARACTERS = 16_384


class GcpCredentials(Frozen):
    """The fields of the connect form. A key of a service account of its own; `docs/providers/gcp.md` has its role."""

    # A key that does not pass is not repeated.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    project_id: str = Field(default="", max_length=100, title="GCP Project ID")
    """That of the key, where it is empty."""
    service_account_key: SecretStr = Field(min_length=1, max_length=_KEY_CHARACTERS, title="Service Account Key (JSON)")

    @model_validator(mode="before")
    @classmethod
    def _fill_project(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("project_id"):
            return values
        key = values.get("service_account_key")
        text = key.get_secret_value() if isinstance(key, SecretStr) else key
        return {**values, "project_id": _read(text).get("project_id", "") if isinstance(text, str) else ""}

    @model_validator(mode="after")
    def _check(self) -> Self:
        key = _read(self.service_account_key.get_secret_value())
        if key.get("type") != "service_account":
            raise ValueError("the key is not the JSON file of a service account (its type is not service_account)")
        for name in ("client_email", "private_key", "private_key_id"):
            if not isinstance(key.get(name), str) or not key[name]:
                raise ValueError(f"the key lacks its {name}")
        if key.get("universe_domain", "googleapis.com") != "googleapis.com":
            raise ValueError("the key is of another cloud than googleapis.com")
        if not re.match(_PROJECT, self.project_id):
            raise ValueError("the project id is none: 6 to 30 lower-case letters, digits and hyphens")
        return self

    def key(self) -> dict[str, str]:
        """What the SDK wants of the key. Where tokens come from is Google's word, not that of whoever gave the key."""
        read = _read(self.service_account_key.get_secret_value())
        wanted = ("type", "project_id", "private_key_id", "private_key", "client_email", "client_id")
        return {
            **{name: str(read[name]) for name in wanted if name in read},
            "token_uri": "https://oauth2.googleapis.com/token",
        }


def _read(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


class GcpOptions(Frozen):
    """The options of a `ProviderContext`; times are in seconds."""

    regions: tuple[Region, ...] = ("us-central1", "us-east1", "us-east4", "us-west1")
    """Where machines are rented; none: everywhere. Sweeps look everywhere in any case."""
    cpu_families: tuple[Family, ...] = ("e2-standard",)
    """Families of machines without a GPU that are offered; 4 GB of memory for each vCPU."""
    gpu_image: ImageName = GPU_IMAGE
    cpu_image: ImageName = CPU_IMAGE
    """The name of an image, or of a family: then its newest."""
    network: str = "global/networks/default"
    subnetworks: dict[Region, str] = Field(default_factory=dict)
    """The subnetwork of each region (`regions/R/subnetworks/N`), for a network that does not make its own."""
    network_tags: tuple[str, ...] = ()
    public_address: bool = True
    """Whether machines get an address of their own, their way out to the internet; without one it is a Cloud NAT."""
    workload_networks: tuple[str, ...] = ()
    """Private networks, as CIDRs, that workloads reach all the same: a file server, a mirror of packages."""
    lifetime_seconds: int = Field(default=7 * 24 * 3600, ge=600, le=LONGEST_RUN_SECONDS)
    """After so long Google deletes a machine, whatever else happens."""
    timeout_seconds: float = Field(default=30, gt=0)
    capacity_seconds: float = Field(default=15, ge=0)
    """How long a create waits for its operation, which is what tells that there is no capacity."""
    looks: int = Field(default=3, ge=1)
    """How many reads in a row must miss an instance before it counts as absent."""
    look_pause_seconds: float = Field(default=2, ge=0)
    boot_seconds: float = Field(default=900, gt=0)
    """From the create to a running machine, at most."""
    catalog_seconds: float = Field(default=3600, ge=0)
    """How long types, zones and prices count; quotas are asked for each time."""
    page_size: int = Field(default=500, ge=1, le=500)
    endpoints: dict[str, str] = Field(default_factory=dict)
    """URLs in place of Google's own, by service (`compute`, `billing`)."""
