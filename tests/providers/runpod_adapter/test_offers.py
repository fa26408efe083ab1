"""What RunPod offers: GPUs and CPUs by their names, on demand and spot, and how often it is asked."""

import asyncio
from decimal import Decimal

import pytest
from pydantic import SecretStr

from domain.errors import (
    Ambiguous,
)
from domain.spec import Interconnect
from providers.base import (
    OfferQuery,
    ProviderContext,
)
from providers.fake.control import CloudControl
from providers.runpod.catalog import ANYWHERE, accelerator_of
from providers.runpod.cpus import CPU_CLASS
from providers.runpod.credentials import RunPodCredentials
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import OWNER
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import RTX_4090, make_runpod
from tests.support.clock import SettableClock


class TestOffers:
    async def test_an_offer_costs_what_all_its_gpus_cost(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb"))
        prices = {(o.gpu_count, o.interconnect, o.spot): o.price_usd_hr for o in offers}
        assert prices[8, Interconnect.NVLINK, False] == Decimal("23.92")
        assert prices[8, Interconnect.NVLINK, True] == Decimal("14.00")
        assert prices[3, Interconnect.PCIE, False] == Decimal("7.17")

    async def test_no_offer_promises_what_nothing_here_can_close(self, provider: RunPodProvider) -> None:
        assert not any(offer.network_isolated for offer in await provider.offers(OfferQuery()))

    async def test_each_data_center_with_stock_is_an_offer_of_its_own(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery(RTX_4090, 1))
        assert {o.region for o in offers if not o.spot} == {"EU-RO-1", "US-KS-2"}
        assert {o.region for o in offers if o.spot} == {"EU-RO-1", "US-KS-2", ANYWHERE}

    async def test_what_is_out_of_stock_is_offered_as_unavailable(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb", 1))
        pcie = [o for o in offers if o.interconnect is Interconnect.PCIE and not o.spot]
        assert [(o.region, o.available) for o in pcie] == [(ANYWHERE, False)]

    async def test_no_offer_is_larger_than_the_largest_machine(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery("nvidia-h100-80gb"))
        assert {o.gpu_count for o in offers if o.interconnect is Interconnect.PCIE} == {1, 2, 3, 4}

    async def test_a_product_without_a_name_of_ours_is_not_offered(self, provider: RunPodProvider) -> None:
        assert not [o for o in await provider.offers(OfferQuery()) if "SUPER" in o.provider_sku]

    async def test_the_community_cloud_is_offered_only_when_it_is_asked_for(self, runpod: RunningRunPod) -> None:
        for community in (False, True):
            provider = make_runpod(runpod, community=community)
            skus = {o.provider_sku for o in await provider.offers(OfferQuery(RTX_4090, 1))}
            assert ("NVIDIA GeForce RTX 4090|COMMUNITY" in skus) is community
            await provider.close()

    async def test_a_machine_says_how_many_vcpus_come_with_it(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery(RTX_4090, 2))
        assert {(o.vcpus, o.memory_gb) for o in offers} == {(16, 120)}

    async def test_fewer_gpus_than_were_asked_about_come_with_their_share(self, provider: RunPodProvider) -> None:
        offers = await provider.offers(OfferQuery(RTX_4090))
        assert {(o.gpu_count, o.vcpus) for o in offers} == {(n, 8 * n) for n in range(1, 9)}

    async def test_a_burst_of_jobs_reads_the_catalog_once(self, runpod: RunningRunPod, control: CloudControl) -> None:
        provider = make_runpod(runpod, offers_seconds=60)
        await asyncio.gather(*(provider.offers(OfferQuery(RTX_4090, 1)) for _ in range(20)))
        assert len(await control.journal("offers")) == 2
        assert await provider.offers(OfferQuery("nvidia-h100-80gb", 1))
        assert len(await control.journal("offers")) == 2
        assert await provider.offers(OfferQuery(RTX_4090, 2))
        assert len(await control.journal("offers")) == 4
        await provider.close()

    async def test_an_old_answer_does_not_serve_again(self, runpod: RunningRunPod, control: CloudControl) -> None:
        clock = SettableClock()
        context = ProviderContext("conn-runpod", OWNER, "/nonexistent", {"offers_seconds": 10})
        credentials = RunPodCredentials(api_key=SecretStr(API_KEY))
        provider = RunPodProvider(context, credentials, runpod.endpoints, clock=clock)
        seen = [await provider.offers(OfferQuery(RTX_4090, 1))]
        clock.advance(9)
        seen.append(await provider.offers(OfferQuery(RTX_4090, 1)))
        clock.advance(1)
        seen.append(await provider.offers(OfferQuery(RTX_4090, 1)))
        assert [(offers[0].observed_at - seen[0][0].observed_at).seconds for offers in seen] == [0, 0, 10]
        await provider.close()

    @pytest.mark.parametrize("count", [9, 16])
    async def test_numbers_of_gpus_that_no_pod_has_are_not_asked_for(
        self, provider: RunPodProvider, control: CloudControl, count: int
    ) -> None:
        assert await provider.offers(OfferQuery(None, count)) == []
        assert await control.journal("offers") == []

    async def test_an_empty_catalog_is_an_error(
        self, provider: RunPodProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.providers.runpod_fake.app.GPUS", ())
        with pytest.raises(Ambiguous, match="empty"):
            await provider.offers(OfferQuery())

    @pytest.mark.parametrize(
        ("gpu_id", "memory_gb", "expected"),
        [
            ("NVIDIA H100 80GB HBM3", 80, ("nvidia-h100-80gb", "nvlink")),
            ("NVIDIA H100 PCIe", 80, ("nvidia-h100-80gb", "pcie")),
            ("NVIDIA H100 NVL", 94, ("nvidia-h100-nvl-94gb", "pcie")),
            ("NVIDIA H200", 141, ("nvidia-h200-141gb", "pcie")),
            ("NVIDIA B200", 180, ("nvidia-b200-192gb", "nvlink")),
            ("NVIDIA A100-SXM4-80GB", 80, ("nvidia-a100-80gb", "nvlink")),
            ("NVIDIA A100 80GB PCIe", 80, ("nvidia-a100-80gb", "pcie")),
            ("NVIDIA A40", 48, ("nvidia-a40-48gb", "pcie")),
            ("NVIDIA L40S", 48, ("nvidia-l40s-48gb", "pcie")),
            ("NVIDIA L4", 24, ("nvidia-l4-24gb", "pcie")),
            ("NVIDIA RTX 6000 Ada Generation", 48, ("nvidia-rtx-6000-ada-48gb", "pcie")),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, ("nvidia-rtx-pro-6000-blackwell-96gb", "pcie")),
            ("NVIDIA GeForce RTX 5090", 32, ("nvidia-rtx-5090-32gb", "pcie")),
            ("Tesla V100-SXM2-32GB", 32, ("nvidia-v100-32gb", "nvlink")),
            ("AMD Instinct MI300X OAM", 192, ("amd-mi300x-192gb", "infinity_fabric")),
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 96, None),
            ("NVIDIA GeForce RTX 3090 Ti", 24, None),
            ("NVIDIA GeForce RTX 4080 SUPER", 16, None),
            ("NVIDIA RTX A2000", 6, None),
        ],
    )
    def test_gpu_ids_have_these_names(self, gpu_id: str, memory_gb: int, expected: tuple[str, str] | None) -> None:
        found = accelerator_of(gpu_id, memory_gb)
        assert (found and (found[0].name, str(found[1]))) == expected


class TestCpuOffers:
    async def test_a_size_is_a_power_of_two_of_vcpus_in_each_data_center_with_stock(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        offers = await provider.offers(OfferQuery(CPU_CLASS, 0))
        general = {(o.vcpus, o.region): o for o in offers if o.provider_sku == "cpu3g|SECURE"}
        assert general.keys() == {(n, place) for n in (2, 4, 8, 16, 32) for place in ("EU-RO-1", "US-KS-2")}
        four = general[4, "EU-RO-1"]
        assert (four.gpu_count, four.price_usd_hr, four.memory_gb, four.ephemeral_disk_gb) == (
            0,
            Decimal("0.16"),
            16,
            40,
        )
        assert len(await control.journal("offers")) == 3

    async def test_a_flavor_with_less_memory_than_the_class_is_not_offered(self, provider: RunPodProvider) -> None:
        assert {o.provider_sku for o in await provider.offers(OfferQuery(CPU_CLASS))} == {
            "cpu3g|SECURE",
            "cpu5m|SECURE",
        }

    async def test_no_size_is_beyond_its_flavor_and_one_without_stock_is_unavailable(
        self, provider: RunPodProvider
    ) -> None:
        scarce = [o for o in await provider.offers(OfferQuery(CPU_CLASS, 0)) if o.provider_sku == "cpu5m|SECURE"]
        assert {o.vcpus for o in scarce} == {2, 4, 8}
        assert {(o.region, o.available) for o in scarce} == {(ANYWHERE, False)}

    async def test_all_offers_include_them_and_those_of_gpus_do_not(self, provider: RunPodProvider) -> None:
        assert any(o.accelerator == CPU_CLASS for o in await provider.offers(OfferQuery()))
        assert not any(o.accelerator == CPU_CLASS for o in await provider.offers(OfferQuery(gpu_count=1)))

    async def test_an_empty_catalog_is_an_error(
        self, provider: RunPodProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.providers.runpod_fake.app.CPUS", ())
        with pytest.raises(Ambiguous, match="empty"):
            await provider.offers(OfferQuery(CPU_CLASS, 0))
