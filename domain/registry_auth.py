"""The configuration by which container engines log in to a registry."""

import base64
import json

from domain import images
from domain.spec import RegistryCredential

DEFAULT_REGISTRY = "docker.io"
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"


def engine_config(reference: images.ImageReference, credential: RegistryCredential | None, *, docker: bool) -> str:
    """The JSON that docker (`config.json`) and podman (`auth.json`) read credentials from: for the image's own registry
    and no other host, or for none at all. Docker knows its default registry by a name of its own."""
    if credential is None:
        return json.dumps({"auths": {}})
    host = reference.registry or DEFAULT_REGISTRY
    key = _DOCKER_HUB_KEY if docker and host == DEFAULT_REGISTRY else host
    pair = f"{credential.username}:{credential.password.get_secret_value()}"
    return json.dumps({"auths": {key: {"auth": base64.b64encode(pair.encode()).decode()}}})
