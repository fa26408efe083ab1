"""Providers at the tests' AWS, and what they are asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from agent.script import agent_script
from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsCredentials
from providers.base import AgentBootstrap, InstanceSpec, OfferQuery, ProviderContext
from tests.providers.aws_server import AwsServer, Call
from tests.providers.conformance import OWNER, TOKEN

MakeProvider = Callable[..., AwsProvider]
SECRET_KEY = "canary/secret+key/41fe"
CREDENTIALS = AwsCredentials(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key=SecretStr(SECRET_KEY))
URL = "https://headrace.example"
AGENT = AgentBootstrap(agent_script(), SecretStr(TOKEN), url=URL)
SERVICES = ("ec2", "sts", "ssm", "pricing", "service-quotas")


def aws_provider(url: str, owner_id: str = OWNER, **options: Any) -> AwsProvider:
    """A provider in two regions, patient with a busy machine, which looks again after 10 ms."""
    options = {
        "regions": ("us-east-1",),
        "former_regions": ("eu-west-1",),
        "timeout_seconds": 60,
        "look_pause_seconds": 0.01,
        "spot_seconds": 0,
        "quota_seconds": 0,
        "endpoints": dict.fromkeys(SERVICES, url),
        **options,
    }
    return AwsProvider(ProviderContext("aws-1", owner_id, "/nonexistent", options), CREDENTIALS)


def spec_for(accelerator: str = "cpu-general", gpu_count: int = 0, **changes: Any) -> InstanceSpec:
    """An attempt of a job that publishes nothing, unless `changes` say so."""
    compute = ComputeRequest(accelerator=accelerator, gpu_count=gpu_count, ephemeral_disk_gb=100)
    spec = InstanceSpec(new_attempt_id(), OWNER, "job_1", "org_1", "registry.example/a/b:1", compute, AGENT)
    return replace(spec, **changes)


async def offer_for(
    provider: AwsProvider, accelerator: str = "cpu-general", count: int = 0, spot: bool = False
) -> Offer:
    """The first offer of the hardware."""
    return next(o for o in await provider.offers(OfferQuery(accelerator, count)) if o.spot is spot)


def launch(aws: AwsServer) -> Call:
    """The first request that made a machine, or tried to."""
    return next(call for call in aws.calls if call.operation == "create")
