"""What a RunPod connection is made of."""

from pydantic import Field, SecretStr

from domain.spec import Frozen


class RunPodCredentials(Frozen):
    """The fields of the connection form. The key needs read and write access to pods, and to the GraphQL API."""

    api_key: SecretStr = Field(min_length=1)
    include_community: bool = False
    """Also offer the Community Cloud: cheaper, on machines of third parties, less reliable."""

    min_cuda_version: str | None = Field(default=None, pattern=r"^[0-9]{1,2}\.[0-9]{1,2}$")
    """The lowest CUDA version of a host's driver, for NVIDIA GPUs: an image of a later one does not start there."""


class RunPodEndpoints(Frozen):
    """Where the API is; other than the vendor's only in tests."""

    rest: str = "https://api.runpod.io/v2"
    graphql: str = "https://api.runpod.io/graphql"
    http_proxy_domain: str = "proxy.runpod.net"
    """Port N of pod P is at `https://P-N.<domain>`."""
