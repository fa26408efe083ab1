"""What Compute Engine offers, for what price, and how much of it the quotas allow."""

from decimal import Decimal

import pytest

from domain.errors import Ambiguous
from domain.spec import Interconnect
from providers.base import OfferQuery
from providers.gcp.prices import Shape, price_of, prices_of
from providers.gcp.provider import GcpProvider
from tests.providers.gcp_fake import GcpServer, stock
from tests.providers.gcp_support import (
    MakeProvider,
    offer_for,
)


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


async def test_a_machine_is_offered_in_each_of_its_zones_on_demand_and_spot_for_the_sum_of_its_parts(
    provider: GcpProvider,
) -> None:
    offers = await provider.offers(OfferQuery("nvidia-l4-24gb", 1))
    assert {offer.zone for offer in offers} == {"us-central1-a", "us-central1-b", "us-east1-c"}
    # 4 x 0.024988 + 16 x 0.002927 + 0.56004, and 4 x 0.009995 + 16 x 0.001171 + 0.224016
    assert {(o.spot, o.price_usd_hr) for o in offers} == {(False, Decimal("0.706824")), (True, Decimal("0.282732"))}
    one = offers[0]
    assert (one.gpu_count, one.gpu_memory_gb, one.vcpus, one.memory_gb) == (1, 24, 4, 16)
    assert one.interconnect is Interconnect.PCIE
    assert (one.terms.pricing_model.unit_seconds, one.terms.minimum_seconds, one.stopped_usd_hr) == (1, 60, 0)
    assert all(offer.network_isolated for offer in offers)


async def test_local_disks_that_come_with_a_machine_are_in_its_price(provider: GcpProvider) -> None:
    offer = await offer_for(provider, "nvidia-h100-80gb", 8)
    parts = 208 * Decimal("0.029311") + 1872 * Decimal("0.002553") + 8 * Decimal("9.79655")
    assert offer.price_usd_hr == (parts + 16 * 375 * Decimal("0.08") / 730).quantize(Decimal("1e-9"))
    assert offer.interconnect is Interconnect.NVLINK


async def test_everything_that_the_catalog_knows_is_offered(provider: GcpProvider) -> None:
    offered = {offer.provider_sku: offer.accelerator for offer in await provider.offers(OfferQuery())}
    assert offered == {
        "e2-standard-2": "cpu-general",
        "e2-standard-8": "cpu-general",
        "g2-standard-4": "nvidia-l4-24gb",
        "a2-highgpu-1g": "nvidia-a100-40gb",
        "a3-highgpu-8g": "nvidia-h100-80gb",
        "n1-standard-8+1xnvidia-tesla-t4": "nvidia-t4-16gb",
        "n1-standard-16+2xnvidia-tesla-t4": "nvidia-t4-16gb",
    }


async def test_a_used_up_quota_makes_an_offer_unavailable(provider: GcpProvider, gcp: GcpServer) -> None:
    async def available(accelerator: str, count: int) -> dict[bool, bool]:
        return {o.spot: o.available for o in await provider.offers(OfferQuery(accelerator, count))}

    assert await available("nvidia-l4-24gb", 1) == {False: True, True: True}
    gcp.cloud.quotas = {"NVIDIA_L4_GPUS": (2.0, 2.0), "PREEMPTIBLE_NVIDIA_L4_GPUS": (1.0, 0.0), "CPUS": (8.0, 7.0)}
    assert await available("nvidia-l4-24gb", 1) == {False: False, True: True}
    assert await available("cpu-general", 0) == {False: False, True: False}
    # A region states none for this one.
    assert await available("nvidia-h100-80gb", 8) == {False: True, True: True}
    gcp.cloud.project_quotas = {"GPUS_ALL_REGIONS": (8.0, 1.0)}
    assert await available("nvidia-h100-80gb", 8) == {False: False, True: False}


@pytest.mark.parametrize(
    ("regional", "everywhere", "why"),
    [
        ({}, (0.0, 0.0), "the quota GPUS_ALL_REGIONS of the project is 0, and 1 are needed"),
        ({"NVIDIA_L4_GPUS": (0.0, 0.0)}, (8.0, 0.0), "the quota NVIDIA_L4_GPUS of us-central1 is 0, and 1 are needed"),
        # There will be room once another job has ended.
        ({"NVIDIA_L4_GPUS": (1.0, 1.0)}, (8.0, 8.0), None),
        ({"NVIDIA_L4_GPUS": (1.0, 0.0)}, (8.0, 0.0), None),
    ],
)
async def test_an_offer_beyond_a_quota_says_which(
    provider: GcpProvider,
    gcp: GcpServer,
    regional: dict[str, tuple[float, float]],
    everywhere: tuple[float, float],
    why: str | None,
) -> None:
    gcp.cloud.quotas, gcp.cloud.project_quotas = regional, {"GPUS_ALL_REGIONS": everywhere}
    offer = await offer_for(provider, "nvidia-l4-24gb", 1)
    assert offer.over_quota == why
    assert not (why and offer.available)


async def test_the_machine_that_gpus_are_attached_to_counts_in_a_quota_too(
    provider: GcpProvider, gcp: GcpServer
) -> None:
    gcp.cloud.quotas = {"NVIDIA_T4_GPUS": (4.0, 0.0), "CPUS": (8.0, 0.0)}
    assert (await offer_for(provider, "nvidia-t4-16gb", 1)).available
    offer = await offer_for(provider, "nvidia-t4-16gb", 2)
    assert offer.over_quota == "the quota CPUS of us-central1 is 8, and 16 are needed"


async def test_regions_that_are_not_asked_for_are_not_offered(make_gcp_provider: MakeProvider, gcp: GcpServer) -> None:
    for sku in gcp.skus:
        sku["serviceRegions"].append("europe-west4")
    some = await make_gcp_provider(regions=("us-east1",)).offers(OfferQuery())
    assert {offer.region for offer in some} == {"us-east1"}
    every = await make_gcp_provider(regions=()).offers(OfferQuery())
    assert {offer.region for offer in every} == {"us-central1", "us-east1", "europe-west4"}


async def test_a_price_is_kept_for_a_while_and_then_asked_for(make_gcp_provider: MakeProvider, gcp: GcpServer) -> None:
    keeping, asking = make_gcp_provider(), make_gcp_provider(catalog_seconds=0)
    for provider in (keeping, asking):
        await provider.offers(OfferQuery("cpu-general"))
    for sku in gcp.skus:
        if sku["description"] == "E2 Instance Core running in Americas" and sku["category"]["usageType"] == "OnDemand":
            sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = {"units": "1", "nanos": 0}
    expected = {keeping: Decimal("0.06701142"), asking: Decimal("2.02338824")}
    for provider, price in expected.items():
        assert (await offer_for(provider)).price_usd_hr == price


def test_the_dearer_of_two_prices_and_the_dearest_tier_count() -> None:
    skus = stock.skus()
    core = next(sku for sku in skus if sku["description"] == "E2 Instance Core running in Americas")
    rates = core["pricingInfo"][0]["pricingExpression"]["tieredRates"]
    rates.append({"startUsageAmount": 100, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 50_000_000}})
    shape = Shape("e2-standard-2", 2, 8192)
    assert price_of(shape, "us-east1", False, prices_of(skus)) == Decimal("0.12338824")
    assert price_of(shape, "nowhere", False, prices_of(skus)) is None


async def test_a_machine_of_which_a_part_has_no_price_is_not_offered(provider: GcpProvider, gcp: GcpServer) -> None:
    gcp.skus = [sku for sku in gcp.skus if sku["description"] != "Nvidia L4 GPU running in Americas"]
    assert {offer.spot for offer in await provider.offers(OfferQuery("nvidia-l4-24gb", 1))} == {True}


@pytest.mark.parametrize(
    "price", [{"units": "NaN"}, {"units": "-1"}, {"units": "cheap"}, {"units": "1", "currencyCode": "EUR"}]
)
async def test_a_price_that_is_none_spoils_the_list(
    provider: GcpProvider, gcp: GcpServer, price: dict[str, str]
) -> None:
    core = next(sku for sku in gcp.skus if sku["description"] == "E2 Instance Core running in Americas")
    core["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = price
    with pytest.raises(Ambiguous, match="price"):
        await provider.offers(OfferQuery())
