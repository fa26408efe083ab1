"""The lists of offers and of providers' health: what they show, to whom, and page by page."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from domain.roles import Role
from domain.spec import Interconnect
from store.tables import Organization
from tests.api.conftest import Api
from tests.api.market import Market
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def market(api: Api) -> Market:
    return Market(api)


@pytest.fixture
def admin(api: Api, factory: Factory) -> Iterator[httpx.Client]:
    """Of the cluster."""
    with api.with_token(factory.key(role=Role.CLUSTER_ADMIN).token) as client:
        yield client


def skus(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [offer["provider_sku"] for offer in answer.json()["data"]]


def hide_providers(api: Api, organization: Organization) -> None:
    def hide(session: Any) -> None:
        session.get_one(Organization, organization.id).provider_anonymity = True

    api.write(hide)


class TestOffers:
    def test_an_offer_shows_what_it_is_and_what_its_backend_can_do(self, admin: httpx.Client, market: Market) -> None:
        market.polled("runpod", market.offer("runpod", "a", interconnect=Interconnect.PCIE, country="RO", spot=True))
        [shown] = admin.get("/catalog/offers").json()["data"]
        assert shown == {
            "provider": "runpod",
            "provider_sku": "sku-a",
            "available": True,
            "price_usd_hr": 0.72,
            "observed_at": shown["observed_at"],
            "expires_at": None,
            "region": {"name": "eu-1", "country": "RO"},
            "compute": {
                "accelerator": "nvidia-l4-24gb", "gpu_count": 1, "gpu_memory_gb": 24, "instance_count": 1,
                "memory_gb": 31, "vcpus": 8, "ephemeral_disk_gb": 200, "interconnect": "pcie",
            },
            "capabilities": {
                "custom_image": True, "http_ports": True, "tcp_ports": True, "ssh": True, "private_image": True,
                "multi_node": False, "managed_service": False, "scale_to_zero": False, "persistent_volume": False,
                "shared_volume": False, "standalone_volume": False,
            },
            "spot": True,
        }  # fmt: skip

    def test_an_offer_that_no_quota_allows_says_so(self, admin: httpx.Client, market: Market) -> None:
        why = "the quota L-417A185B allows 0 vCPUs in us-east-1, it needs 192"
        market.polled("aws", market.offer("aws", "a", available=False, over_quota=why))
        [shown] = admin.get("/catalog/offers").json()["data"]
        assert (shown["available"], shown["unavailable_reason"]) == (False, why)

    def test_what_a_backend_does_not_enforce_is_said(self, admin: httpx.Client, market: Market) -> None:
        market.polled("ssh", market.offer("ssh", "h", disk_enforced=False, network_isolated=False))
        [shown] = admin.get("/catalog/offers").json()["data"]
        assert (shown["disk_enforced"], shown["network_isolated"]) == (False, False)

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ({}, ["sku-a", "sku-b", "sku-c", "sku-d"]),
            ({"accelerator": "nvidia-l4-24gb"}, ["sku-a", "sku-b", "sku-d"]),
            ({"gpu_count": 2}, ["sku-b"]),
            ({"interconnect": "nvlink"}, ["sku-c"]),
            ({"provider": "gcp"}, ["sku-d"]),
            ({"region": "us-1"}, ["sku-b"]),
            ({"available": "false"}, ["sku-c"]),
            ({"available": "true", "provider": "aws", "gpu_count": 1}, ["sku-a"]),
            ({"provider": "nobody"}, []),
        ],
    )
    def test_each_filter_narrows_the_list_and_its_total(
        self, admin: httpx.Client, market: Market, filters: dict[str, Any], found: list[str]
    ) -> None:
        market.polled(
            "aws",
            market.offer("aws", "a"),
            market.offer("aws", "b", gpu_count=2, region="us-1"),
            market.offer("aws", "c", accelerator="nvidia-h100-80gb", interconnect="nvlink", available=False),
        )
        market.polled("gcp", market.offer("gcp", "d"))
        answer = admin.get("/catalog/offers", params=filters)
        assert skus(answer) == found
        assert answer.json()["total"] == len(found)

    def test_pages_hold_every_offer_once_although_polls_go_on(self, admin: httpx.Client, market: Market) -> None:
        for provider in ("aws", "gcp"):
            market.polled(provider, *(market.offer(provider, f"{provider}-{n}") for n in range(5)))
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {"limit": 3, **({"cursor": cursor} if cursor else {})}
            answer = admin.get("/catalog/offers", params=params)
            seen += skus(answer)
            market.polled("aws", *(market.offer("aws", f"aws-{n}", price_usd_hr=Decimal(9)) for n in range(5)))
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                break
        assert seen == [f"sku-{provider}-{n}" for provider in ("aws", "gcp") for n in range(5)]

    def test_a_cursor_is_of_its_filters(self, admin: httpx.Client, market: Market) -> None:
        market.polled("aws", market.offer("aws", "a"), market.offer("aws", "b"))
        cursor = admin.get("/catalog/offers", params={"limit": 1}).json()["next_cursor"]
        answer = admin.get("/catalog/offers", params={"limit": 1, "cursor": cursor, "gpu_count": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_cursor")

    def test_a_new_snapshot_takes_the_place_of_the_older_one(self, admin: httpx.Client, market: Market) -> None:
        market.polled("aws", market.offer("aws", "a"), market.offer("aws", "b"))
        market.polled("aws", market.offer("aws", "b", provider_sku="changed"), market.offer("aws", "c"))
        assert skus(admin.get("/catalog/offers")) == ["changed", "sku-c"]

    @pytest.mark.parametrize(
        "parameters", [{"limit": 201}, {"gpu_count": "x"}, {"accelerator": "a\0b"}, {"region": "x" * 129}]
    )
    def test_a_parameter_out_of_its_bounds_is_refused(self, admin: httpx.Client, parameters: dict[str, Any]) -> None:
        assert admin.get("/catalog/offers", params=parameters).status_code == 422


class TestStaleness:
    def test_offers_outlive_failed_polls_for_a_bounded_time(
        self, admin: httpx.Client, market: Market, clock: SettableClock, api: Api
    ) -> None:
        valid = api.services.settings.offers_valid_seconds
        market.polled("aws", market.offer("aws", "a"))
        clock.advance(valid)
        market.failed("aws", "no answer")
        assert skus(admin.get("/catalog/offers")) == ["sku-a"]
        [health] = admin.get("/catalog/providers").json()["data"]
        assert (health["healthy"], health["degraded"], health["error"]) == (False, True, "no answer")
        assert (health["offer_count"], health["latency_ms"]) == (1, 7)

        clock.advance(1)
        assert skus(admin.get("/catalog/offers")) == []
        [health] = admin.get("/catalog/providers").json()["data"]
        assert (health["healthy"], health["degraded"], health["offer_count"]) == (False, False, 0)

        market.polled("aws", market.offer("aws", "a"))
        [health] = admin.get("/catalog/providers").json()["data"]
        assert health == {
            "provider": "aws", "healthy": True, "degraded": False, "error": None,
            "last_poll_at": health["last_poll_at"], "latency_ms": 42, "offer_count": 1,
        }  # fmt: skip

    def test_a_connection_that_no_worker_polls_any_more_says_so(
        self, admin: httpx.Client, market: Market, clock: SettableClock
    ) -> None:
        market.polled("aws", market.offer("aws", "a"))
        clock.advance(86_400)
        [health] = admin.get("/catalog/providers").json()["data"]
        assert not health["healthy"]
        assert "is a worker running?" in health["error"]

    def test_a_refused_account_hides_its_offers_until_a_poll_succeeds(
        self, admin: httpx.Client, market: Market
    ) -> None:
        market.polled("aws", market.offer("aws", "a"))
        market.blocked("aws")
        [health] = admin.get("/catalog/providers").json()["data"]
        assert (health["healthy"], health["degraded"], health["error"]) == (False, False, "the key is wrong")
        assert skus(admin.get("/catalog/offers")) == []
        market.polled("aws", market.offer("aws", "a"))
        assert skus(admin.get("/catalog/offers")) == ["sku-a"]

    def test_an_unpolled_connection_is_not_in_the_health_list(self, admin: httpx.Client, market: Market) -> None:
        market.blocked("aws")
        market.polled("gcp")
        answer = admin.get("/catalog/providers").json()
        assert ([entry["provider"] for entry in answer["data"]], answer["total"]) == (["gcp"], 1)

    def test_health_is_paged(self, admin: httpx.Client, market: Market) -> None:
        for provider in ("aws", "gcp", "oci"):
            market.polled(provider)
        first = admin.get("/catalog/providers", params={"limit": 2}).json()
        second = admin.get("/catalog/providers", params={"limit": 2, "cursor": first["next_cursor"]}).json()
        assert [entry["provider"] for entry in first["data"] + second["data"]] == ["aws", "gcp", "oci"]
        assert (first["total"], second["next_cursor"]) == (3, None)


class TestAccess:
    @pytest.mark.parametrize("path", ["/catalog/offers", "/catalog/providers"])
    @pytest.mark.parametrize(
        ("role", "anonymous", "status"),
        [
            (Role.VIEWER, False, 403),
            (Role.MEMBER, False, 403),
            (Role.ORG_ADMIN, False, 200),
            (Role.ORG_ADMIN, True, 403),
            (Role.CLUSTER_ADMIN, False, 200),
            (Role.CLUSTER_ADMIN, True, 200),
        ],
    )
    def test_providers_are_shown_to_administrators_unless_their_organization_is_not_told(
        self, api: Api, factory: Factory, path: str, role: Role, anonymous: bool, status: int
    ) -> None:
        if anonymous:
            hide_providers(api, factory.default_organization())
        with api.with_token(factory.key(role=role).token) as client:
            assert client.get(path).status_code == status
