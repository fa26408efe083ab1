"""A clock that stands still until it is told to move."""

from datetime import UTC, datetime, timedelta


class SettableClock:
    """A `domain.clock.Clock`. Moves by `advance`, or to an instant by `set`."""

    def __init__(self, start: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float = 0, **units: float) -> datetime:
        """Moves on (or back) by `seconds` and whatever `timedelta` knows; returns the new instant."""
        self.now += timedelta(seconds=seconds, **units)
        return self.now

    def set(self, instant: datetime) -> None:
        self.now = instant
