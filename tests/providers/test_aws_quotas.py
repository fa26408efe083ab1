"""Quotas at EC2, read before anything is asked for. boto3 itself, against a stub of Service Quotas."""

from typing import Any

import pytest

from providers.aws.provider import AwsProvider
from providers.aws.quotas import quota_code
from providers.base import OfferQuery
from tests.providers.aws_server import AwsServer, Fault, json_error
from tests.providers.aws_support import MakeProvider

H100 = OfferQuery("nvidia-h100-80gb", 8)
REFUSAL = "the quota L-417A185B allows 96 vCPUs in us-east-1, p5.48xlarge needs 192"


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


async def refusals(provider: AwsProvider, query: OfferQuery = H100) -> dict[bool, set[str | None]]:
    """What the offers say of quotas, on demand (False) and spot (True)."""
    said: dict[bool, set[str | None]] = {}
    for offer in await provider.offers(query):
        assert offer.available is (offer.over_quota is None)
        said.setdefault(offer.spot, set()).add(offer.over_quota)
    return said


@pytest.mark.parametrize(
    ("machine_type", "on_demand", "spot"),
    [
        ("p5.48xlarge", "L-417A185B", "L-C4BD4855"),
        ("p5en.48xlarge", "L-417A185B", "L-C4BD4855"),
        ("p4d.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p3dn.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p6-b200.48xlarge", "L-417A185B", None),
        ("g6e.xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("m7i-flex.large", "L-1216C47A", "L-34B43A08"),
        ("trn1.2xlarge", None, None),
        ("u-6tb1.metal", None, None),
    ],
)
def test_each_family_has_its_quota(machine_type: str, on_demand: str | None, spot: str | None) -> None:
    assert (quota_code(machine_type, False), quota_code(machine_type, True)) == (on_demand, spot)


async def test_an_offer_that_does_not_fit_its_quota_is_not_available_and_says_why(
    provider: AwsProvider, aws: AwsServer
) -> None:
    aws.quotas = {"L-417A185B": 96.0, "L-DB2E81BA": 0.0, "L-C4BD4855": 192.0}
    assert await refusals(provider) == {False: {REFUSAL}, True: {None}}
    # What has no value is not known.
    assert await refusals(provider, OfferQuery("cpu-general")) == {False: {None}, True: {None}}


@pytest.mark.parametrize(
    "answer",
    [
        json_error(400, "AccessDeniedException", "not authorized to perform: servicequotas:ListServiceQuotas"),
        json_error(400, "TooManyRequestsException", "slow down"),
        json_error(500, "ServiceException", "no"),
    ],
)
async def test_quotas_that_cannot_be_read_are_unknown_and_spoil_no_offer(
    provider: AwsProvider, aws: AwsServer, answer: Any
) -> None:
    aws.faults.append(Fault("ListServiceQuotas", before=lambda call: answer))
    assert await refusals(provider) == {False: {None}, True: {None}}


async def test_a_quota_without_a_value_makes_all_of_them_unknown(provider: AwsProvider, aws: AwsServer) -> None:
    aws.quotas = {"L-417A185B": "many"}  # type: ignore[dict-item]
    assert await refusals(provider) == {False: {None}, True: {None}}


async def test_what_was_known_counts_while_they_cannot_be_read(provider: AwsProvider, aws: AwsServer) -> None:
    aws.quotas = {"L-417A185B": 96.0}
    assert (await refusals(provider))[False] == {REFUSAL}
    aws.faults.append(Fault("ListServiceQuotas", loss="internal"))
    assert (await refusals(provider))[False] == {REFUSAL}
    aws.quotas = {"L-417A185B": 192.0}
    assert (await refusals(provider))[False] == {None}


async def test_quotas_are_kept_for_a_while(make_aws_provider: MakeProvider, aws: AwsServer) -> None:
    aws.quotas = {"L-417A185B": 96.0}
    provider = make_aws_provider(quota_seconds=300)
    for _ in range(2):
        await provider.offers(H100)
    assert len([call for call in aws.calls if call.action == "ListServiceQuotas"]) == 1
