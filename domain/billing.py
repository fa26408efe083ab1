"""What machines cost by the terms of their backends.

Each backend declares its terms (`domain.backends`); an offer may carry terms of its own. The terms of an attempt are
stored with the offer that it took, so a later version of them changes nothing of what was rented before.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from domain.backends import catalog
from domain.limits import MeteredInstance
from domain.money import PriceInterval, PricingModel, UsdPerHour
from domain.terms import DEFAULT, BillingModel, Stopped


def model_of(provider: str) -> BillingModel:
    """The terms of a backend; the default ones for what is none, such as this machine."""
    backend = catalog().get(provider)
    return DEFAULT if backend is None else backend.billing


def stopped_price(model: BillingModel, running: Decimal, stopped_usd_hr: Decimal | None) -> UsdPerHour:
    """What a machine costs an hour once it stopped, if it cost `running` before."""
    if model.stopped is Stopped.NOTHING:
        return UsdPerHour(Decimal(0))
    if model.stopped is Stopped.STORAGE and stopped_usd_hr is not None:
        return UsdPerHour(stopped_usd_hr)
    return UsdPerHour(running)


def metered(
    offer: Mapping[str, Any],
    allocated_at: datetime,
    started_at: datetime | None,
    absent_at: datetime | None,
    prices: Sequence[PriceInterval],
    drain_seconds: float = 0,
) -> MeteredInstance:
    """The meter of an attempt. `offer` is the JSON form of the offer that it took; `drain_seconds` is added to the
    backend's expected teardown."""
    terms = offer.get("billing")
    model = BillingModel.model_validate(terms) if terms else model_of(offer.get("provider", ""))
    unit_seconds = PricingModel(offer.get("pricing_model", model.pricing_model)).unit_seconds
    begun = model.boot_charged or started_at is not None
    return MeteredInstance(
        allocated_at=allocated_at if model.boot_charged or started_at is None else max(started_at, allocated_at),
        ended_at=absent_at,
        prices=tuple(prices),
        unit_seconds=unit_seconds,
        teardown_seconds=offer.get("teardown_seconds", 0) + drain_seconds,
        minimum_seconds=model.minimum_seconds,
        begun=begun,
    )


def allocation_time(created_at: datetime | None, asked_at: datetime, now: datetime) -> datetime:
    """From when on an instance is charged whose creation is known `now`, and was asked for at `asked_at`.

    That is when its backend says that it was made, if it says so: an answer that was lost is found later. The backend's
    clock may be wrong, so between the two moments; and a month that is over stays as it is.
    """
    month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return min(now, max(created_at or now, asked_at, month))
