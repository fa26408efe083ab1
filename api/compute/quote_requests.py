"""What a quote may ask: what a create would, as far as it decides where that may run."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from api.compute.requests import (
    ComputeRequest,
    PlacementRequest,
    PortRequest,
    Request,
    VolumeMount,
    at_most,
)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


class QuoteContainer(Request):
    """Inline credentials are for creates only."""

    image: str = Field(max_length=1024, description="An OCI image reference.")
    image_pull_secret: Annotated[str, StringConstraints(max_length=64), AfterValidator(_not_blank)] | None = Field(
        default=None, description="Any non-blank text: it is not looked up."
    )
    ports: list[PortRequest] = Field(default_factory=list, max_length=16)


class QuoteAccess(Request):
    ssh: bool = False


class QuoteRequest(Request):
    """The configuration whose price and availability are asked for."""

    resource_type: Literal["job", "service"]
    compute: ComputeRequest
    container: QuoteContainer
    access: QuoteAccess | None = None
    placement: PlacementRequest | None = None
    service: Annotated[dict[str, Any], at_most(16)] | None = Field(
        default=None, description="Goes with the resource type `service`, which is not supported yet."
    )
    volumes: list[VolumeMount] | None = Field(default=None, max_length=16, description="Not supported yet: refused.")


EXAMPLE_QUOTE = {
    "resource_type": "job",
    "compute": {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 100},
    "container": {"image": "registry.example/team/trainer:1.4"},
    "access": {"ssh": True},
}
