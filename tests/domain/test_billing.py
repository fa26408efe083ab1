"""Billing models: what the table says, and what an attempt keeps of it."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from domain.backends import catalog
from domain.billing import (
    allocation_time,
    metered,
    model_of,
    stopped_price,
)
from domain.money import PriceInterval, PricingModel, UsdPerHour, recorded
from domain.offers import Offer
from domain.terms import DEFAULT, BillingModel, Stopped

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
OFFER = {
    "id": "o", "provider": "gcp", "connection_id": "c", "provider_sku": "s", "accelerator": "cpu-general",
    "gpu_count": 0, "vcpus": 1, "memory_gb": 1, "ephemeral_disk_gb": 1, "price_usd_hr": Decimal(1), "observed_at": NOW,
}  # fmt: skip


def test_a_backend_that_is_not_known_has_the_default_terms() -> None:
    assert model_of("aws") == catalog()["aws"].billing != DEFAULT
    assert model_of("local") == model_of("a-new-one") == DEFAULT


def test_an_attempt_keeps_the_terms_that_its_offer_had() -> None:
    offer = Offer(**OFFER)
    assert offer.terms == catalog()["gcp"].billing
    own = BillingModel(minimum_seconds=300)
    stored = Offer(**OFFER, billing=own, pricing_model=PricingModel.INSTANCE_SECONDS).model_dump(mode="json")
    meter = metered(stored, NOW, None, None, ())
    assert (meter.minimum_seconds, meter.unit_seconds, meter.begun) == (300, 1, True)
    assert Offer.model_validate(stored).terms == own


def test_an_offer_without_terms_has_those_of_its_backend() -> None:
    stored = Offer(**OFFER).model_dump(mode="json")
    assert metered(stored, NOW, None, None, ()).minimum_seconds == 60
    stored["provider"] = "modal"
    assert not metered(stored, NOW, None, None, ()).begun
    begun = metered(stored, NOW, NOW + timedelta(seconds=90), None, ())
    assert (begun.begun, begun.allocated_at) == (True, NOW + timedelta(seconds=90))


@pytest.mark.parametrize(
    ("stopped", "stated", "price"),
    [(Stopped.FULL, "1", "5"), (Stopped.STORAGE, "1", "1"), (Stopped.STORAGE, None, "5"), (Stopped.NOTHING, "1", "0")],
)
def test_what_a_stopped_machine_costs(stopped: Stopped, stated: str | None, price: str) -> None:
    """What is not known to be less is all."""
    model = BillingModel(stopped=stopped)
    assert stopped_price(model, Decimal(5), None if stated is None else Decimal(stated)) == Decimal(price)


@pytest.mark.parametrize(
    ("created", "expected"),
    [(None, 0), (-30, -30), (-90, -60), (30, 0), (-(10**9), -60)],
)
def test_the_allocation_lies_between_the_request_and_now(created: int | None, expected: int) -> None:
    """Seconds from now; it was asked for a minute ago."""
    moment = None if created is None else NOW + timedelta(seconds=created)
    assert allocation_time(moment, NOW - timedelta(seconds=60), NOW) == NOW + timedelta(seconds=expected)


def test_an_allocation_is_not_put_into_a_month_that_is_over() -> None:
    month = datetime(2026, 3, 1, tzinfo=UTC)
    now = month + timedelta(seconds=20)
    assert allocation_time(now - timedelta(seconds=50), now - timedelta(seconds=60), now) == month


@pytest.mark.parametrize(
    ("rate", "kept"),
    [
        ("0.1", "0.1"),
        ("1e3", "1000"),
        ("0.1234567890123456785", "0.123456789012345679"),
        ("1e-19", "0"),
        ("5e-19", "1e-18"),
    ],
)
def test_a_rate_is_recorded_with_18_places(rate: str, kept: str) -> None:
    assert recorded(Decimal(rate)) == Decimal(kept)


def test_prices_reach_the_meter_in_order() -> None:
    prices = [PriceInterval(NOW, UsdPerHour(Decimal(1))), PriceInterval(NOW, UsdPerHour(Decimal(2)))]
    assert metered(Offer(**OFFER).model_dump(mode="json"), NOW, None, None, prices).prices == tuple(prices)
