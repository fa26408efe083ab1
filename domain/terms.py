"""The terms by which a backend charges: the unit, the least charge, what a stopped machine costs, whether a boot is
charged."""

from enum import StrEnum

from domain.money import PricingModel
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


DEFAULT = BillingModel()
"""Whole minutes from the allocation to the confirmed absence, at the full price throughout."""
