"""What EC2 offers, at which price. boto3 itself, against moto."""

import asyncio
from decimal import Decimal

import pytest

from domain.errors import Ambiguous
from domain.spec import Interconnect
from providers.aws.market import batches
from providers.aws.provider import AwsProvider
from providers.base import OfferQuery
from tests.providers.aws_server import AwsServer, Fault, ec2_error
from tests.providers.aws_support import MakeProvider


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


async def test_a_machine_is_offered_in_each_of_its_zones_on_demand_and_spot(
    provider: AwsProvider, aws: AwsServer
) -> None:
    aws.spot_prices["p5.48xlarge"] = "21.123400"
    offers = await provider.offers(OfferQuery("nvidia-h100-80gb", 8))
    assert {offer.provider_sku for offer in offers} == {"p5.48xlarge"}
    zones = {offer.zone for offer in offers}
    assert len(offers) == 2 * len(zones) > 2
    assert {(o.spot, o.price_usd_hr) for o in offers} == {(False, Decimal("55.04")), (True, Decimal("21.1234"))}
    one = offers[0]
    assert (one.gpu_count, one.gpu_memory_gb, one.vcpus, one.memory_gb) == (8, 80, 192, 2048)
    assert one.interconnect is Interconnect.NVLINK
    assert one.region == "us-east-1"
    assert one.pricing_model.unit_seconds == 1
    assert all(offer.network_isolated for offer in offers)


async def test_everything_that_the_catalog_knows_is_offered_and_parts_of_gpus_are_not(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    aws.stock = (
        "g4dn.xlarge", "g5.xlarge", "g5g.xlarge", "g6.xlarge", "g6e.xlarge", "g6f.large", "g7e.2xlarge", "m7i.large",
        "m7i.metal-24xl", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge",
        "p6-b200.48xlarge", "p6-b300.48xlarge",
    )  # fmt: skip
    aws.prices = dict.fromkeys(aws.stock, "1.5")
    offered = {offer.provider_sku: offer.accelerator for offer in await make_aws_provider().offers(OfferQuery())}
    assert offered == {
        "g4dn.xlarge": "nvidia-t4-16gb",
        "g5.xlarge": "nvidia-a10g-24gb",
        "g6.xlarge": "nvidia-l4-24gb",
        "g6e.xlarge": "nvidia-l40s-48gb",
        "g7e.2xlarge": "nvidia-rtx-pro-6000-blackwell-96gb",
        "m7i.large": "cpu-general",
        "p3dn.24xlarge": "nvidia-v100-32gb",
        "p4d.24xlarge": "nvidia-a100-40gb",
        "p4de.24xlarge": "nvidia-a100-80gb",
        "p5.48xlarge": "nvidia-h100-80gb",
        "p5en.48xlarge": "nvidia-h200-141gb",
        "p6-b200.48xlarge": "nvidia-b200-192gb",
        "p6-b300.48xlarge": "nvidia-b300-288gb",
    }


async def test_more_types_than_one_request_takes_have_their_prices_from_several(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    families = ("g4dn", "g5", "g6", "g6e", "g7e", "m5", "m6i", "m7i")
    sizes = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
    aws.stock = tuple(f"{family}.{size}" for family in families for size in sizes)
    aws.stock += tuple(f"m6id.{size}" for size in sizes) + tuple(f"m6idn.{size}" for size in sizes)
    aws.stock += tuple(f"m7i-flex.{size}" for size in sizes)
    aws.prices = dict.fromkeys(aws.stock, "1.5")
    provider = make_aws_provider(cpu_families=("m5", "m6i", "m6id", "m6idn", "m7i", "m7i-flex"))
    offers = await provider.offers(OfferQuery())
    priced = {offer.provider_sku for offer in offers if not offer.spot}
    assert len(",".join(priced)) > 900
    assert priced == {offer.provider_sku for offer in offers}
    assert len([call for call in aws.calls if call.action == "GetProducts"]) > 1


def test_names_are_divided_by_the_length_of_their_list() -> None:
    assert batches(["aa", "bb", "c", "dddddd"], 5) == [["aa", "bb"], ["c"], ["dddddd"]]
    assert batches([], 5) == []


async def test_a_machine_without_a_price_is_not_offered(provider: AwsProvider, aws: AwsServer) -> None:
    del aws.prices["g5.xlarge"]
    offers = await provider.offers(OfferQuery("nvidia-a10g-24gb", 1))
    assert {offer.spot for offer in offers} == {True}


async def test_a_spot_price_is_asked_for_each_time_and_the_list_price_kept_for_a_while(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    keeping, asking = make_aws_provider(), make_aws_provider(catalog_seconds=0)
    for provider in (keeping, asking):
        await provider.offers(OfferQuery("cpu-general"))
    aws.prices["m7i.large"], aws.spot_prices["m7i.large"] = "0.2", "0.07"
    expected = {keeping: Decimal("0.1008"), asking: Decimal("0.2")}
    for provider, price in expected.items():
        offers = [o for o in await provider.offers(OfferQuery("cpu-general")) if o.provider_sku == "m7i.large"]
        assert {(o.spot, o.price_usd_hr) for o in offers} == {(False, price), (True, Decimal("0.07"))}


@pytest.mark.parametrize("price", ["NaN", "-1", "cheap"])
async def test_a_price_that_is_none_spoils_the_list(provider: AwsProvider, aws: AwsServer, price: str) -> None:
    aws.prices["m7i.large"] = price
    aws.spot_prices["m7i.large"] = "0.01"
    with pytest.raises(Ambiguous):
        await provider.offers(OfferQuery())


async def test_a_region_that_does_not_answer_is_an_error_of_the_whole_list(
    make_aws_provider: MakeProvider, aws: AwsServer
) -> None:
    provider = make_aws_provider(regions=("us-east-1", "eu-west-1"))
    assert {offer.region for offer in await provider.offers(OfferQuery())} == {"us-east-1", "eu-west-1"}
    aws.faults.append(Fault("offers", before=lambda call: ec2_error(500, "InternalError", "no")))
    with pytest.raises(Ambiguous):
        await provider.offers(OfferQuery())


async def test_a_crowd_asks_for_spot_prices_once(make_aws_provider: MakeProvider, aws: AwsServer) -> None:
    provider = make_aws_provider(spot_seconds=60)
    lists = await asyncio.gather(*(provider.offers(OfferQuery("cpu-general")) for _ in range(5)))
    assert all(offers and len(offers) == len(lists[0]) for offers in lists)
    assert len([call for call in aws.calls if call.action == "DescribeSpotPriceHistory"]) == 1
    await provider.offers(OfferQuery("nvidia-h100-80gb"))
    assert len([call for call in aws.calls if call.action == "DescribeSpotPriceHistory"]) == 2
