"""How long a machine may live at most, whatever becomes of the control plane: its own kill timer's time.

The control plane ends jobs at their limits, to the unit. This is for when it cannot: never earlier than the limits, and
the same for every retry of an attempt, so it counts from the attempt's beginning and knows nothing of earlier ones.
"""

from decimal import ROUND_CEILING, Decimal

from domain.money import UsdPerHour
from domain.spec import Limits

GRACE_SECONDS = 1800
"""For the boot, which does not count as runtime everywhere, the last lines of the log and the deletion."""
SPOT_FALL = 4
"""A spot price may fall below that of the offer, and the money then lasts longer: as if to this part of it."""
LONGEST_SECONDS = 10 * 365 * 24 * 3600


def lifetime_seconds(limits: Limits, price_usd_hr: UsdPerHour, *, spot: bool = False) -> int | None:
    """The earlier of the time that `max_runtime_hours` and `max_cost_usd` allow, and a grace; None without a limit that
    binds: then it is the connection's to say."""
    hours: list[Decimal] = []
    if limits.max_runtime_hours is not None:
        hours.append(limits.max_runtime_hours)
    if limits.max_cost_usd is not None and price_usd_hr > 0:
        hours.append(limits.max_cost_usd / price_usd_hr * (SPOT_FALL if spot else 1))
    if not hours:
        return None
    allowed = (min(hours) * 3600).to_integral_value(rounding=ROUND_CEILING)
    return min(int(allowed) + GRACE_SECONDS, LONGEST_SECONDS)
