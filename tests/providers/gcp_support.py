"""Providers at the tests' Google, with a service account of its own key."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import SecretStr

from agent.script import agent_script
from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest
from providers.base import AgentBootstrap, InstanceSpec, OfferQuery, ProviderContext
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpCredentials
from tests.providers.conformance import OWNER, TOKEN
from tests.providers.gcp_fake import Call, GcpServer
from tests.providers.gcp_fake.server import EMAIL
from tests.providers.gcp_fake.stock import PROJECT

MakeProvider = Callable[..., GcpProvider]
URL = "https://headrace.example"
AGENT = AgentBootstrap(agent_script(), SecretStr(TOKEN), url=URL)


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


def spec_for(accelerator: str = "cpu-general", gpu_count: int = 0, **changes: Any) -> InstanceSpec:
    compute = ComputeRequest(accelerator=accelerator, gpu_count=gpu_count, ephemeral_disk_gb=100)
    spec = InstanceSpec(new_attempt_id(), OWNER, "job_1aB", "org_1aB", "registry.example/a/b:1", compute, AGENT)
    return replace(spec, **changes)


async def offer_for(
    provider: GcpProvider, accelerator: str = "cpu-general", count: int = 0, spot: bool = False
) -> Offer:
    return next(o for o in await provider.offers(OfferQuery(accelerator, count)) if o.spot is spot)


def launches(gcp: GcpServer) -> list[Call]:
    return [call for call in gcp.calls if call.operation == "create"]


def launched(gcp: GcpServer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(launches(gcp)[-1].body)
    return body


def metadata(body: dict[str, Any]) -> dict[str, str]:
    return {item["key"]: item["value"] for item in body["metadata"]["items"]}
