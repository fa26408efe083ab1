"""The ledger's rule: which billable units of an instance are to be written, and in which entries."""

from collections.abc import Iterator
from datetime import UTC, datetime

from domain.limits import MeteredInstance
from domain.money import Run


def unwritten(
    meter: MeteredInstance, now: datetime, written_through: datetime | None, until: datetime | None = None
) -> Iterator[Run]:
    """What the instance was charged for by `now` and is not written yet, in order: runs of units at one price, all of
    which begin on one UTC day.

    `written_through` is when the next unit begins that the ledger lacks (None: it has none). Only units that begin
    before `until` are taken; None takes all, those of the least charge that are still to come among them.
    """
    begin = meter.allocated_at if written_through is None else written_through
    for run in meter.runs(now):
        rest = run.within(begin, run.ends_at if until is None else until)
        if rest is not None:
            yield from rest.by_day()


def day_of(moment: datetime) -> datetime:
    """The midnight with which the moment's UTC day began."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
