"""Providers at the tests' Google, with a service account of its own key."""

import json
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import SecretStr

from providers.base import ProviderContext
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpCredentials
from tests.providers.conformance import OWNER
from tests.providers.gcp_fake.server import EMAIL
from tests.providers.gcp_fake.stock import PROJECT


@cache
def key_pair() -> tuple[str, str]:
    """A private and a public key, as PEM."""
    private = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    return (
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    )


def service_account_key(**changes: Any) -> str:
    """The JSON file that Google gives out."""
    key = {
        "type": "service_account", "project_id": PROJECT, "private_key_id": "4f1c", "private_key": key_pair()[0],
        "client_email": EMAIL, "client_id": "1", "token_uri": "http://127.0.0.1:9/token",
        "universe_domain": "googleapis.com", **changes,
    }  # fmt: skip
    return json.dumps(key)


def gcp_provider(url: str, owner_id: str = OWNER, **options: Any) -> GcpProvider:
    """A provider that is patient with a busy machine, and looks again after 10 ms."""
    options = {
        "timeout_seconds": 60,
        "look_pause_seconds": 0.01,
        "endpoints": {"compute": url, "billing": url},
        **options,
    }
    credentials = GcpCredentials(service_account_key=SecretStr(service_account_key()))
    return GcpProvider(ProviderContext("gcp-1", owner_id, "/nonexistent", options), credentials)
