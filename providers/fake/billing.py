"""What the cloud charges for an instance: its own arithmetic, on purpose a different one from `domain.money`.

It walks the billable interval unit by unit and adds up exact fractions: slow, and obviously right.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction

Price = tuple[datetime, Fraction]
"""From this instant on, USD per hour."""


def charge(
    start: datetime, end: datetime, prices: Sequence[Price], unit_seconds: int, minimum_seconds: int = 0
) -> Fraction:
    """USD for [start, end): every begun unit is charged whole, at the price that held when it began; what lasted at all
    is charged as if it had lasted for the minimum."""
    total = Fraction(0)
    unit = timedelta(seconds=unit_seconds)
    moment = start
    if end > start:
        end = max(end, start + timedelta(seconds=minimum_seconds))
    while moment < end:
        rate = next((rate for since, rate in reversed(prices) if since <= moment), prices[0][1])
        total += rate * unit_seconds / 3600
        moment += unit
    return total
