"""What only the database knows, as metrics: read when they are collected, at most every few seconds, in the thread that
collects. Several API replicas show the same values: take the maximum over them, not the sum.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col, func, select
from structlog import get_logger

from domain.clock import Clock
from domain.limits import accrued
from domain.notices import DeliveryState
from domain.states import JobState
from observability.event_tail import EventTail
from store.attempts import meters_of
from store.db import Database
from store.tables import ConnectionSweep, InboxRow, Instance, Job, OrphanSighting, WebhookDelivery

CACHE_SECONDS = 5.0
_GIVEN_UP_WITHIN = timedelta(hours=1)
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the database."""

    jobs: dict[str, int] = field(default_factory=dict)
    inbox_rows: int = 0
    inbox_age_seconds: float = 0.0
    unconfirmed_deletions: int = 0
    oldest_deletion_seconds: float = 0.0
    live_instances: dict[str, int] = field(default_factory=dict)
    accrued_usd: dict[str, Decimal] = field(default_factory=dict)
    """Of the instances that may still be billed, by provider."""
    usd_per_hour: dict[str, Decimal] = field(default_factory=dict)
    undelivered: int = 0
    """Notices that a webhook's receiver has not yet taken, and since when the oldest of them waits."""
    undelivered_seconds: float = 0.0
    given_up: int = 0
    """Notices that were given up within the last hour."""
    orphans: dict[str, int] = field(default_factory=dict)
    """Machines that no row explains, by provider; so are the next three."""
    orphan_deletions: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    unread_seconds: dict[str, float] = field(default_factory=dict)
    """Since the list of machines was last read, of the connection for which that is longest."""


def take_sample(session: Session, now: datetime) -> Sample:
    """Few queries, each over an index or over open rows only."""
    jobs = dict.fromkeys((state.value for state in JobState), 0)
    jobs |= dict(session.exec(select(Job.state, func.count()).group_by(Job.state)).all())
    undelivered = select(func.count(), func.min(InboxRow.created_at)).where(col(InboxRow.delivered_at).is_(None))
    inbox_rows, oldest_input = session.exec(undelivered).one()
    # Naming the connections lets the index over (connection, absence) find the few open rows among the many.
    connections = select(Instance.connection_id).distinct()
    is_open = (col(Instance.connection_id).in_(connections), col(Instance.confirmed_absent_at).is_(None))
    open_instances = session.exec(select(Instance).where(*is_open)).all()
    deletions = [i.delete_requested_at for i in open_instances if i.delete_requested_at is not None]
    live, spent, rates = _spend(session, [i for i in open_instances if i.allocated_at is not None], now)
    undelivered_notices, notice_seconds, given_up = _webhooks(session, now)
    sample = Sample(
        jobs=jobs,
        inbox_rows=inbox_rows,
        inbox_age_seconds=_age(oldest_input, now),
        unconfirmed_deletions=len(deletions),
        oldest_deletion_seconds=_age(min(deletions, default=None), now),
        live_instances=live,
        accrued_usd=spent,
        usd_per_hour=rates,
        undelivered=undelivered_notices,
        undelivered_seconds=notice_seconds,
        given_up=given_up,
    )
    _add_sweeps(session, sample, now)
    return sample


class DatabaseMetrics:
    """Registers the instruments on a meter provider; holds the last sample."""

    def __init__(
        self, db: Database, clock: Clock, meters: MeterProvider, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._db, self._clock, self._monotonic = db, clock, monotonic
        self._lock = threading.Lock()
        self._sample, self._sampled_at = Sample(), float("-inf")
        self._tail = EventTail(self, since=clock())
        meter = meters.get_meter("headrace")
        self._attempts = meter.create_counter(
            "headrace.allocation.attempts", description="Answers of backends to a create, by result."
        )
        self._phases = meter.create_histogram(
            "headrace.job.phase.duration", unit="s", description="How long jobs were in a state, once they left it."
        )
        self._settled = meter.create_counter(
            "headrace.spend.settled", unit="{USD}", description="USD of instances that are confirmed absent."
        )
        for name, unit, description, observe in self._gauges():
            meter.create_observable_gauge(name, [self._callback(observe)], unit, description)

    # What the event tail finds ------------------------------------------------------------------------------------

    def attempt(self, result: str) -> None:
        self._attempts.add(1, {"result": result})

    def phase(self, state: str, seconds: float) -> None:
        self._phases.record(seconds, {"state": state})

    def gone(self, session: Session, instance_id: str) -> None:
        instance = session.get(Instance, instance_id)
        if instance is not None and instance.allocated_at is not None:
            meter = meters_of(session, [instance])[instance.id]
            self._settled.add(float(accrued([meter], self._clock())), {"provider": instance.provider})

    # What is read -------------------------------------------------------------------------------------------------

    def refresh(self) -> Sample:
        """The last sample, or a new one when it is older than `CACHE_SECONDS`. A database that does not answer leaves
        the old one."""
        with self._lock:
            if self._monotonic() - self._sampled_at >= CACHE_SECONDS:
                self._sampled_at = self._monotonic()
                try:
                    self._sample = self._db.run_read(self._look)
                except SQLAlchemyError as error:
                    logger.warning("metrics_not_sampled", error=str(error)[:200])
            return self._sample

    def _look(self, session: Session) -> Sample:
        self._tail.read(session)
        return take_sample(session, self._clock())

    def _callback(
        self, observe: Callable[[Sample], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: observe(self.refresh())

    def _gauges(self) -> list[tuple[str, str, str, Callable[[Sample], Iterable[Observation]]]]:
        return [
            ("headrace.jobs", "", "Jobs by state.", lambda s: _labelled("state", s.jobs)),
            ("headrace.inbox.rows", "", "Workflow inputs not yet delivered.", lambda s: [Observation(s.inbox_rows)]),
            (
                "headrace.inbox.age",
                "s",
                "Age of the oldest workflow input not yet delivered.",
                lambda s: [Observation(s.inbox_age_seconds)],
            ),
            (
                "headrace.deletions.unconfirmed",
                "",
                "Instances whose deletion was asked for and is not confirmed.",
                lambda s: [Observation(s.unconfirmed_deletions)],
            ),
            (
                "headrace.deletions.age",
                "s",
                "Age of the oldest unconfirmed deletion.",
                lambda s: [Observation(s.oldest_deletion_seconds)],
            ),
            (
                "headrace.webhooks.undelivered",
                "",
                "Notices that webhooks' receivers have not yet taken.",
                lambda s: [Observation(s.undelivered)],
            ),
            (
                "headrace.webhooks.age",
                "s",
                "Age of the oldest notice that its receiver has not yet taken.",
                lambda s: [Observation(s.undelivered_seconds)],
            ),
            (
                "headrace.webhooks.dead",
                "",
                "Notices that were given up within the last hour.",
                lambda s: [Observation(s.given_up)],
            ),
            (
                "headrace.instances.live",
                "",
                "Allocated instances that are not confirmed absent.",
                lambda s: _labelled("provider", s.live_instances),
            ),
            (
                "headrace.spend.accrued",
                "{USD}",
                "USD that live instances have cost by now.",
                lambda s: _labelled("provider", s.accrued_usd),
            ),
            (
                "headrace.spend.rate",
                "{USD per hour}",
                "USD an hour that live instances cost.",
                lambda s: _labelled("provider", s.usd_per_hour),
            ),
            (
                "headrace.orphans",
                "",
                "Machines with our owner id that no row explains.",
                lambda s: _labelled("provider", s.orphans),
            ),
            (
                "headrace.orphans.deletions",
                "",
                "Deletions of orphans that were asked for, since the connection was made.",
                lambda s: _labelled("provider", s.orphan_deletions),
            ),
            (
                "headrace.instances.missing",
                "",
                "Instances that should be in the last list of their provider and are not.",
                lambda s: _labelled("provider", s.missing),
            ),
            (
                "headrace.reconcile.age",
                "s",
                "Since a provider's list of machines was last read, of its connection for which that is longest.",
                lambda s: _labelled("provider", s.unread_seconds),
            ),
        ]


def _spend(
    session: Session, instances: Sequence[Instance], now: datetime
) -> tuple[dict[str, int], dict[str, Decimal], dict[str, Decimal]]:
    """By provider: how many, what they have cost, what they cost an hour."""
    count: dict[str, int] = {}
    spent: dict[str, Decimal] = {}
    rates: dict[str, Decimal] = {}
    meters = meters_of(session, instances)
    for instance in instances:
        provider, meter = instance.provider, meters[instance.id]
        count[provider] = count.get(provider, 0) + 1
        spent[provider] = spent.get(provider, Decimal(0)) + accrued([meter], now)
        rate = meter.prices[-1].usd_per_hour if meter.prices else Decimal(0)
        rates[provider] = rates.get(provider, Decimal(0)) + rate
    return count, spent, rates


def _webhooks(session: Session, now: datetime) -> tuple[int, float, int]:
    """How many notices wait, for how many seconds the oldest, and how many were given up. What is settled is found by
    when it was: the many that were delivered long ago are not looked at."""
    outbox = select(func.count(), func.min(WebhookDelivery.created_at))
    count, oldest = session.exec(outbox.where(col(WebhookDelivery.settled_at).is_(None))).one()
    lately = col(WebhookDelivery.settled_at) > now - _GIVEN_UP_WITHIN
    dead = select(func.count()).where(lately, WebhookDelivery.state == DeliveryState.DEAD)
    return count, _age(oldest, now), session.exec(dead).one()


def _add_sweeps(session: Session, sample: Sample, now: datetime) -> None:
    """One row for each connection, and one for each orphan."""
    seen = select(OrphanSighting.connection_id, func.count()).group_by(OrphanSighting.connection_id)
    orphans = dict(session.exec(seen).all())
    for sweep in session.exec(select(ConnectionSweep)).all():
        name, unread = sweep.provider, _age(sweep.read_at or sweep.began_at, now)
        sample.orphans[name] = sample.orphans.get(name, 0) + orphans.get(sweep.connection_id, 0)
        sample.orphan_deletions[name] = sample.orphan_deletions.get(name, 0) + sweep.orphans_deleted
        sample.missing[name] = sample.missing.get(name, 0) + sweep.missing
        sample.unread_seconds[name] = max(sample.unread_seconds.get(name, 0.0), unread)


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def _labelled(label: str, values: Mapping[str, int | float | Decimal]) -> list[Observation]:
    return [Observation(float(value), {label: key}) for key, value in values.items()]
