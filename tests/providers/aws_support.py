"""Providers at the tests' AWS."""

from typing import Any

from pydantic import SecretStr

from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsCredentials
from providers.base import ProviderContext
from tests.providers.conformance import OWNER

SECRET_KEY = "canary/secret+key/41fe"
CREDENTIALS = AwsCredentials(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key=SecretStr(SECRET_KEY))
SERVICES = ("ec2", "sts", "ssm", "pricing")


def aws_provider(url: str, owner_id: str = OWNER, **options: Any) -> AwsProvider:
    """A provider in two regions, patient with a busy machine, which looks again after 10 ms."""
    options = {
        "regions": ("us-east-1",),
        "former_regions": ("eu-west-1",),
        "timeout_seconds": 60,
        "look_pause_seconds": 0.01,
        "spot_seconds": 0,
        "endpoints": dict.fromkeys(SERVICES, url),
        **options,
    }
    return AwsProvider(ProviderContext("aws-1", owner_id, "/nonexistent", options), CREDENTIALS)
