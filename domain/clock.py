"""Time is passed in: whoever needs "now" is given a `Clock`."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Answers the current instant, in UTC."""


def utc_now() -> datetime:
    """The machine's clock. Only the edges of a process hand it out."""
    return datetime.now(UTC)
