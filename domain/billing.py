"""How backends charge, as data: the unit, the least charge, what a stopped machine costs, whether a boot is charged.

An offer may carry terms of its own; the table holds for those that do not. The terms of an attempt are stored with the
offer that it took, so a later table changes nothing of what was rented before.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from domain.limits import MeteredInstance
from domain.money import PriceInterval, PricingModel, UsdPerHour
from domain.spec import Frozen


class Stopped(StrEnum):
    """What a machine that stopped, or was preempted, costs until it is deleted."""

    FULL = "full"
    """As if it ran. What is not known to be less is this: an unknown state is one that still bills."""
    STORAGE = "storage"
    """Its disks: the offer's `stopped_usd_hr`, or all of its price where the backend states none."""
    NOTHING = "nothing"


class BillingModel(Frozen):
    """How a backend charges an instance."""

    pricing_model: PricingModel = PricingModel.INSTANCE_MINUTES
    """The unit; an offer that states another one is charged by that."""
    minimum_seconds: int = 0
    """Whoever begins pays for so long at least, in units rounded up."""
    stopped: Stopped = Stopped.FULL
    boot_charged: bool = True
    """Whether the time from the allocation to the workload's start costs: if not, a boot that fails costs nothing."""


_SECONDS = PricingModel.INSTANCE_SECONDS

DEFAULT = BillingModel()
"""Whole minutes from the allocation to the confirmed absence, at the full price throughout."""

BY_PROVIDER: Mapping[str, BillingModel] = {
    "local": DEFAULT,
    # A host is leased until its container is confirmed gone.
    "ssh": DEFAULT,
    # Terminated instances take their volumes along; stopped ones keep paying for them.
    "aws": BillingModel(pricing_model=_SECONDS, minimum_seconds=60, stopped=Stopped.STORAGE),
    # Machines that are stopped and not deallocated are charged in full.
    "azure": BillingModel(pricing_model=_SECONDS, stopped=Stopped.FULL),
    "gcp": BillingModel(pricing_model=_SECONDS, minimum_seconds=60, stopped=Stopped.STORAGE),
    # A stopped pod's volume costs twice what it costs in a running one.
    "runpod": BillingModel(pricing_model=_SECONDS, stopped=Stopped.STORAGE),
    # A queue comes first; the container's time is what is charged.
    "modal": BillingModel(pricing_model=_SECONDS, stopped=Stopped.NOTHING, boot_charged=False),
    # A preempted machine shows as stopped, and its disk is charged.
    "nebius": BillingModel(pricing_model=_SECONDS, stopped=Stopped.STORAGE),
    # GPU shapes are charged while they are stopped.
    "oci": BillingModel(pricing_model=_SECONDS, minimum_seconds=60, stopped=Stopped.FULL),
    # Being outbid stops the instance; its storage is charged until it is destroyed.
    "vastai": BillingModel(pricing_model=_SECONDS, stopped=Stopped.STORAGE),
}


def model_of(provider: str) -> BillingModel:
    """The terms of a backend."""
    return BY_PROVIDER.get(provider, DEFAULT)


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
