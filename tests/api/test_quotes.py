"""Quotes: what a create would get, and why the others would not serve."""

from decimal import Decimal
from typing import Any

import pytest

from domain.offers import Capabilities
from domain.roles import Role
from store.tables import Organization
from tests.api.conftest import JOB, Api
from tests.api.market import ABLE, GPU, Market
from tests.support.factory import Factory

QUOTE: dict[str, Any] = {
    "resource_type": "job",
    "compute": {"accelerator": GPU, "gpu_count": 1, "ephemeral_disk_gb": 50},
    "container": {"image": "registry.example/app:1"},
}


def with_port(protocol: str) -> dict[str, Any]:
    return {**QUOTE["container"], "ports": [{"name": "w", "container_port": 80, "protocol": protocol}]}


@pytest.fixture
def market(api: Api) -> Market:
    return Market(api)


def quote(api: Api, **changes: Any) -> Any:
    answer = api.client.post("/catalog/quotes", json={**QUOTE, **changes})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(api: Api, **changes: Any) -> tuple[int, str, str | None]:
    answer = api.client.post("/catalog/quotes", json={**QUOTE, **changes})
    error = answer.json()["error"]
    return answer.status_code, error["code"], (error.get("details") or {}).get("field")


class TestAnswer:
    def test_prices_span_the_eligible_offers_and_each_provider_has_its_own(self, api: Api, market: Market) -> None:
        market.polled(
            "aws",
            market.offer("aws", "a", price_usd_hr=Decimal("0.69")),
            market.offer("aws", "b", price_usd_hr=Decimal("0.50")),
            market.offer("aws", "spot", price_usd_hr=Decimal("0.1"), spot=True),
        )
        market.polled("runpod", market.offer("runpod", "c", price_usd_hr=Decimal("0.38")))
        market.polled("gcp", market.offer("gcp", "d", ephemeral_disk_gb=10))
        answer = quote(api)
        assert answer == {
            "available": True,
            "price_usd_hr": {"min": 0.38, "max": 0.69},
            "observed_at": answer["observed_at"],
            "expires_at": None,
            "providers": [
                {"provider": "aws", "available": True, "price_usd_hr": {"min": 0.5, "max": 0.69}},
                {"provider": "gcp", "available": False, "price_usd_hr": None, "reason": "has 10 GB of disk, 50 wanted"},
                {"provider": "runpod", "available": True, "price_usd_hr": {"min": 0.38, "max": 0.38}},
            ],
        }

    def test_what_cannot_be_had_is_an_answer_with_null_prices_and_reasons(self, api: Api, market: Market) -> None:
        market.polled("aws", market.offer("aws", "a", available=False))
        market.polled("gcp")
        market.polled("oci", market.offer("oci", "x"))
        market.blocked("oci")
        answer = quote(api)
        assert (answer["available"], answer["price_usd_hr"], answer["expires_at"]) == (False, None, None)
        assert {entry["provider"]: entry["reason"] for entry in answer["providers"]} == {
            "aws": "has none free now",
            "gcp": f"has no offers of 1 x {GPU}",
            "oci": "refuses its account at the moment (auth)",
        }

    def test_before_any_poll_nothing_is_available(self, api: Api) -> None:
        answer = quote(api)
        assert (answer["available"], answer["providers"]) == (False, [])

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"access": {"ssh": True}}, "offers no SSH access"),
            ({"container": {**QUOTE["container"], "image_pull_secret": "any"}}, "pulls no private images"),
            ({"container": with_port("http")}, "publishes no http ports"),
            ({"container": with_port("tcp")}, "publishes no tcp ports"),
            ({"compute": {**QUOTE["compute"], "instance_count": 2}}, "runs single-instance jobs only"),
        ],
    )  # fmt: skip
    def test_capabilities_decide_and_the_reason_says_so(
        self, api: Api, market: Market, changes: dict[str, Any], reason: str
    ) -> None:
        market.polled("poor", market.offer("poor", "a"), capabilities=Capabilities())
        market.polled("rich", market.offer("rich", "b"), capabilities=ABLE.model_copy(update={"multi_node": True}))
        poor, rich = quote(api, **changes)["providers"]
        assert (poor["available"], poor["reason"]) == (False, reason)
        assert rich["available"]

    def test_the_price_is_of_all_instances(self, api: Api, market: Market) -> None:
        market.polled("aws", market.offer("aws", "a"), capabilities=Capabilities(multi_node=True))
        answer = quote(api, compute={**QUOTE["compute"], "instance_count": 3})
        assert answer["price_usd_hr"] == {"min": 2.16, "max": 2.16}

    def test_a_requested_provider_that_is_not_connected_is_named(self, api: Api, market: Market) -> None:
        market.polled("aws", market.offer("aws", "a"))
        entries = quote(api, placement={"providers": ["gcp"]})["providers"]
        assert {entry["provider"]: entry["reason"] for entry in entries} == {
            "aws": "is not among the requested providers (gcp)",
            "gcp": "is not connected",
        }

    def test_an_exclusive_offer_that_a_job_has_is_not_quoted(self, api: Api, market: Market, factory: Factory) -> None:
        machine = market.offer("vastai", "m-1", exclusive=True)
        market.polled("vastai", machine)
        assert quote(api)["available"]
        factory.instance(factory.job(), exclusive_ref=machine.ref)
        assert quote(api)["providers"][0]["reason"] == "has none free now"


class TestAccess:
    def test_a_reader_may_not_and_an_organization_must_be_enabled(self, api: Api, factory: Factory) -> None:
        with api.with_token(factory.key(role=Role.VIEWER).token) as viewer:
            assert viewer.post("/catalog/quotes", json=QUOTE).status_code == 403
        closed = factory.organization(enabled=False)
        with api.with_token(factory.key(closed).token) as client:
            answer = client.post("/catalog/quotes", json=QUOTE)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_disabled")

    @pytest.mark.parametrize("role", [Role.MEMBER, Role.ORG_ADMIN, Role.CLUSTER_ADMIN])
    def test_providers_are_not_named_where_they_are_anonymous(
        self, api: Api, market: Market, factory: Factory, role: Role
    ) -> None:
        market.polled("aws", market.offer("aws", "a"))
        organization = factory.default_organization()

        def hide(session: Any) -> None:
            session.get_one(Organization, organization.id).provider_anonymity = True

        api.write(hide)
        with api.with_token(factory.key(role=role).token) as client:
            answer = client.post("/catalog/quotes", json=QUOTE).json()
        assert answer["available"]
        assert ("providers" in answer) == (role is Role.CLUSTER_ADMIN)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"container": {"image": "a.b/c", "registry_credential": {"username": "u", "password": "p"}}},
             "container.registry_credential"),
            ({"container": {"image": "a.b/c", "image_pull_secret": " "}}, "container.image_pull_secret"),
            ({"container": {"image": "c", "image_pull_secret": "s"}}, "container.image"),
            ({"container": {"image": "a b"}}, "container.image"),
            ({"volumes": [{"volume_id": "v", "mount_path": "/m"}]}, "volumes"),
            ({"service": {"scaling": {}}}, "service"),
            ({"resource_type": "volume"}, "resource_type"),
            ({"compute": {**QUOTE["compute"], "gpu_count": 9}}, "compute.gpu_count"),
            ({"compute": {**QUOTE["compute"], "accelerator": "abacus"}}, "compute.accelerator"),
            ({"limits": {}}, "limits"),
        ],
    )  # fmt: skip
    def test_what_a_create_would_refuse_is_refused(self, api: Api, changes: dict[str, Any], field: str) -> None:
        status, code, named = refused(api, **changes)
        assert (status, code, named) == (422, "invalid_request", field)

    def test_a_service_is_not_quoted_yet(self, api: Api) -> None:
        wanted = refused(api, resource_type="service", service={"scaling": {}})
        assert wanted == (422, "invalid_request", "resource_type")

    def test_a_quote_takes_the_compute_and_placement_of_a_create(self, api: Api) -> None:
        placement = {
            "providers": ["fake"], "strategy": "lowest_cost", "spot": "allow", "max_price_usd_hr": 2.5,
            "regions": ["eu-1"], "zones": ["eu-1a"], "capacity_wait_seconds": 0,
        }  # fmt: skip
        quote(api, compute=JOB["compute"], placement=placement)
        assert api.create({**JOB, "placement": placement}).status_code == 201
