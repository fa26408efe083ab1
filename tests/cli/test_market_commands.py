"""`headrace offers` and `headrace quote` against a real API server."""

import json
from decimal import Decimal

import pytest

from domain.clock import utc_now
from domain.offers import Capabilities, Offer
from domain.roles import Role
from store import offers
from tests.cli.conftest import Headrace, Server
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def market(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two offers of one provider, another that cannot be read, and a cluster admin's key."""
    factory = Factory(server.services.db, SettableClock(utc_now()), server.services.vault)
    monkeypatch.setenv(
        "HEADRACE_API_KEY", factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN).token
    )

    def offer(offer_id: str, price: str, **fields: object) -> Offer:
        return factory.offer(
            id=offer_id, provider="aws", connection_id="aws", provider_sku=f"sku-{offer_id}", region="eu-1",
            price_usd_hr=Decimal(price), network_isolated=True, **fields,
        )  # fmt: skip

    found = [offer("a", "0.36"), offer("b", "0.5", spot=True), offer("c", "0.72", available=False)]
    snapshot = offers.Snapshot.of(found)
    server.write(lambda s: offers.replace(s, "aws", "aws", Capabilities(ssh=True), snapshot, 42, utc_now()))
    server.write(lambda s: offers.poll_failed(s, "gcp", "gcp", "auth", "the key is wrong", 7, utc_now()))


@pytest.mark.usefixtures("market")
class TestOffers:
    def test_a_table_for_people(self, headrace: Headrace) -> None:
        result = headrace("offers")
        assert result.code == 0, result.err
        header, *rows = (line.split() for line in result.out.splitlines())
        assert header[:3] == ["PROVIDER", "SKU", "HARDWARE"]
        assert [row[1] for row in rows] == ["sku-a", "sku-b", "sku-c"]
        assert (rows[0][-3:], rows[1][-1], rows[2][-1]) == (["eu-1", "0.36", "USD"], "spot", "taken")

    def test_filters_and_json_for_machines(self, headrace: Headrace) -> None:
        found = json.loads(headrace("offers", "--available", "--accelerator", "cpu-general", "--json").out)
        assert [offer["provider_sku"] for offer in found] == ["sku-a", "sku-b"]
        assert json.loads(headrace("offers", "--provider", "gcp", "--json").out) == []
        assert len(json.loads(headrace("offers", "--limit", "1", "--json").out)) == 1

    def test_health(self, headrace: Headrace) -> None:
        _, aws, gcp = headrace("offers", "--health").out.splitlines()
        assert aws.split()[:4] == ["aws", "healthy", "3", "42"]
        assert gcp.split()[:2] == ["gcp", "down"]
        assert gcp.endswith("the key is wrong")


def test_offers_are_for_administrators(headrace: Headrace, server: Server) -> None:
    assert headrace("offers").code == 4


@pytest.mark.usefixtures("market")
class TestQuote:
    def test_what_can_be_had_is_said_with_its_price(self, headrace: Headrace) -> None:
        result = headrace("quote", "--vcpus", "1", "--disk", "5", "--ssh")
        assert result.code == 0, result.err
        first, _, aws, gcp = result.out.splitlines()
        assert first == "available, 0.36 USD per hour"
        assert aws.split() == ["aws", "yes", "0.36", "USD"]
        assert gcp.split()[:2] == ["gcp", "no"]

    def test_what_cannot_is_said_with_the_reasons_and_an_exit_code(self, headrace: Headrace) -> None:
        result = headrace("quote", "--region", "us-1")
        assert result.code == 9
        assert result.out.splitlines()[0] == "not available"
        assert "is not in the regions us-1" in result.out

    def test_a_job_file_is_quoted_as_it_would_be_run(self, headrace: Headrace, tmp_path) -> None:
        file = tmp_path / "job.yaml"
        file.write_text(
            "name: x\n"
            "labels: {a: b}\n"
            "limits: {max_cost_usd: 5}\n"
            "compute: {accelerator: cpu-general, gpu_count: 0, vcpu_count: 1, ephemeral_disk_gb: 1}\n"
            "container: {image: 'registry.example/app:1', script: 'echo hi', env: {A: b}}\n"
            "placement: {spot: only}\n"
        )
        answer = json.loads(headrace("quote", file, "--json").out)
        assert answer["price_usd_hr"] == {"min": 0.5, "max": 0.5}
        answer = json.loads(headrace("quote", file, "--spot", "allow", "--json").out)
        assert answer["price_usd_hr"] == {"min": 0.36, "max": 0.5}

    def test_a_wrong_name_is_a_usage_error_with_a_hint(self, headrace: Headrace) -> None:
        result = headrace("quote", "--accelerator", "abacus", "--gpus", "1")
        assert result.code == 2
        assert "headrace accelerators" in result.err
