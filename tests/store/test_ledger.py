"""What the ledger holds, and what reports of usage say, against an oracle that counts unit by unit."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, select

from domain.ledger import day_of
from domain.limits import accrued
from domain.money import PricingModel, cents, cents_of
from domain.states import InstanceState, JobState, Reason
from domain.terms import BillingModel, Stopped
from store import attempts, ledger, usage
from store.db import Database
from store.tables import BilledDay, Instance, Job, LedgerEntry, PriceRecord
from store.usage import Scope, Window
from tests.support.clock import SettableClock
from tests.support.factory import Factory

HANDLE = {"provider_id": "p-1", "resource_type": "machine"}
ATTOS = 10**18


class Site:
    """Attempts through the store's own functions, with a clock."""

    def __init__(self, database: Database, factory: Factory, clock: SettableClock) -> None:
        self.database, self.factory, self.clock = database, factory, clock

    def rent(self, price: str, *, created_at: datetime | None = None, job: Job | None = None, **offer: Any) -> Instance:
        """An allocated attempt of a job that is being allocated."""
        job = job or self.factory.job(JobState.ALLOCATING)
        taken = self.factory.offer(price_usd_hr=Decimal(price), **offer)

        def change(session: Session) -> Instance:
            row = session.get_one(Job, job.id)
            minted = attempts.mint(session, row, taken, self.clock(), slots=None, single_tenant=False)
            assert isinstance(minted, Instance)
            return minted

        instance = self.database.run_write(change)
        return self.answered(instance, price, created_at)

    def answered(self, instance: Instance, price: str, created_at: datetime | None = None) -> Instance:
        return self._do(
            instance,
            lambda s, i: attempts.allocated(s, i, HANDLE, Decimal(price), "offer", self.clock(), created_at),
        )

    def reprice(self, instance: Instance, price: str) -> Instance:
        return self._do(instance, lambda s, i: attempts.reprice(s, i, Decimal(price), "list", self.clock()))

    def preempted(self, instance: Instance) -> Instance:
        return self._do(
            instance, lambda s, i: attempts.give_up(s, i, Reason.PREEMPTED, "taken back", self.clock(), retry=True)
        )

    def gone(self, instance: Instance) -> Instance:
        return self._do(instance, lambda s, i: attempts.gone(s, i, self.clock()))

    def close_days(self) -> int:
        ids = self.database.run_read(lambda s: ledger.unclosed(s, self.clock()))
        return self.database.run_write(lambda s: ledger.close_days(s, ids, self.clock()))

    def entries(self) -> list[LedgerEntry]:
        query = select(LedgerEntry).order_by(LedgerEntry.begins_at)  # type: ignore[arg-type]
        return self.database.run_read(lambda s: list(s.exec(query).all()))

    def accrued(self, job_id: str) -> Decimal:
        meters = self.database.run_read(lambda s: attempts.metered(s, [job_id])[job_id])
        return cents(accrued(meters, self.clock()))

    def report(self, begin: datetime, end: datetime, limit: int = 100, **scope: Any) -> usage.Report:
        org_id = self.factory.default_project().org_id
        return self.database.run_read(
            lambda s: usage.report(s, Scope(org_id, **scope), Window(begin, end), self.clock(), limit=limit)
        )

    def total(self, begin: datetime, end: datetime) -> int:
        return sum(self.report(begin, end).attos.values())

    def _do(self, instance: Instance, change: Any) -> Instance:
        def write(session: Session) -> Instance:
            row = attempts.locked(session, instance.id)
            change(session, row)
            return row

        return self.database.run_write(write)


@pytest.fixture
def site(database: Database, factory: Factory, clock: SettableClock) -> Site:
    return Site(database, factory, clock)


def minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def test_an_attempt_that_is_gone_is_in_the_ledger_by_price_and_by_day(site: Site) -> None:
    site.clock.set(datetime(2026, 3, 31, 23, 0, 30, tzinfo=UTC))
    instance = site.rent("0.60")
    site.clock.advance(minutes=30)
    site.reprice(instance, "1.20")
    site.clock.advance(minutes=90, seconds=1)
    site.gone(instance)

    shown = [(e.begins_at, e.units, e.usd_per_hour) for e in site.entries()]
    begin = datetime(2026, 3, 31, 23, 0, 30, tzinfo=UTC)
    assert shown == [
        (begin, 30, Decimal("0.6")),
        (begin + timedelta(minutes=30), 30, Decimal("1.2")),
        # The unit that begins at 23:59:30 belongs to March as a whole.
        (begin + timedelta(minutes=60), 61, Decimal("1.2")),
    ]
    april = datetime(2026, 4, 1, tzinfo=UTC)
    march_total = site.total(datetime(2026, 3, 1, tzinfo=UTC), april)
    assert cents_of(march_total) == Decimal("0.90")
    assert cents_of(site.total(april, minute(site.clock()))) == Decimal("1.20")
    assert site.accrued(instance.job_id) == Decimal("2.12")


def test_entries_and_prices_cannot_be_changed_or_deleted(site: Site) -> None:
    instance = site.rent("1")
    site.clock.advance(60)
    site.gone(instance)
    for statement in (
        "UPDATE ledger_entry SET units = 0",
        "DELETE FROM ledger_entry",
        "UPDATE pricerecord SET usd_per_hour = '0'",
        "DELETE FROM pricerecord",
    ):
        with pytest.raises(DBAPIError, match="append-only"):
            site.database.run_write(lambda s, statement=statement: s.connection().execute(text(statement)))


def test_days_of_a_running_instance_are_closed_once(site: Site) -> None:
    site.rent("1")
    site.clock.advance(days=3)
    assert site.close_days() == 3
    assert site.close_days() == 0
    assert [e.units for e in site.entries()] == [12 * 60, 24 * 60, 24 * 60]
    site.clock.advance(hours=12)
    assert site.close_days() == 1


def test_a_report_of_a_month_that_is_over_never_changes(site: Site) -> None:
    """Closed or not yet, and whatever comes later: prices, the end, other attempts of the same job."""
    begin, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
    instance = site.rent("0.37")
    site.clock.set(datetime(2026, 3, 20, 7, 7, 7, 7, tzinfo=UTC))
    site.reprice(instance, "0.41")
    site.clock.set(datetime(2026, 4, 1, 0, 0, 20, tzinfo=UTC))
    before = site.report(begin, end)
    assert before.attos["job"] > 0
    seen = [before]
    site.reprice(instance, "9.99")
    seen.append(site.report(begin, end))
    site.clock.advance(days=2)
    site.close_days()
    seen.append(site.report(begin, end))
    site.preempted(instance)
    site.clock.advance(90)
    site.gone(instance)
    seen.append(site.report(begin, end))
    # An answer that was lost in March and is found in April charges April.
    late = site.rent("5", created_at=datetime(2026, 3, 31, 23, 50, tzinfo=UTC))
    seen.append(site.report(begin, end))
    assert all(report == before for report in seen)
    assert late.allocated_at == site.clock()


def test_an_instance_is_charged_from_when_its_provider_made_it(site: Site) -> None:
    """A lost answer is found later, and the machine has run since; a provider's clock is believed within reason."""
    job = site.factory.job(JobState.ALLOCATING)
    asked = site.clock()
    offer = site.factory.offer(price_usd_hr=Decimal(6))
    minted = site.database.run_write(
        lambda s: attempts.mint(s, s.get_one(Job, job.id), offer, asked, slots=None, single_tenant=False)
    )
    assert isinstance(minted, Instance)
    site.clock.advance(100)
    assert site.answered(minted, "6", asked + timedelta(seconds=5)).allocated_at == asked + timedelta(seconds=5)
    assert site.rent("6", created_at=site.clock() - timedelta(hours=5)).allocated_at == site.clock()
    assert site.rent("6", created_at=site.clock() + timedelta(hours=5)).allocated_at == site.clock()


@pytest.mark.parametrize(
    ("stopped", "stated", "price"),
    [
        (Stopped.NOTHING, None, "0"),
        (Stopped.STORAGE, "0.6", "0.6"),
        (Stopped.STORAGE, None, "6"),
        (Stopped.FULL, "1", "6"),
    ],
)
def test_a_preempted_machine_costs_what_its_terms_say_until_it_is_gone(
    site: Site, stopped: Stopped, stated: str | None, price: str
) -> None:
    terms = BillingModel(stopped=stopped)
    instance = site.rent("6", billing=terms, stopped_usd_hr=None if stated is None else Decimal(stated))
    site.clock.advance(600)
    site.preempted(instance)
    site.clock.advance(600)
    site.gone(instance)
    assert site.accrued(instance.job_id) == Decimal(1) + cents(Decimal(price) / 6)
    assert cents_of(sum(ledger.attos_of(e.whole, e.nano, e.atto) for e in site.entries())) == site.accrued(
        instance.job_id
    )


def test_a_boot_that_fails_costs_nothing_where_boots_are_not_charged(site: Site) -> None:
    free = BillingModel(pricing_model=PricingModel.INSTANCE_SECONDS, boot_charged=False)
    failed = site.rent("36", billing=free, pricing_model=PricingModel.INSTANCE_SECONDS)
    site.clock.advance(300)
    assert site.accrued(failed.job_id) == 0
    site.gone(failed)
    assert site.entries() == []
    charged = site.rent("36")
    site.clock.advance(60)
    site.gone(charged)
    assert site.accrued(charged.job_id) == Decimal("0.60")


def test_a_boot_that_is_not_charged_ends_with_the_start(site: Site) -> None:
    free = BillingModel(pricing_model=PricingModel.INSTANCE_SECONDS, boot_charged=False)
    instance = site.rent("36", billing=free, pricing_model=PricingModel.INSTANCE_SECONDS)
    site.clock.advance(300)
    site._do(instance, lambda s, i: setattr(i, "started_at", site.clock()))
    site.clock.advance(10)
    assert site.accrued(instance.job_id) == Decimal("0.10")
    site.gone(instance)
    assert [(e.begins_at, e.units) for e in site.entries()] == [(site.clock() - timedelta(seconds=10), 10)]


def test_a_rate_with_noise_behind_its_18th_place_is_recorded_without(site: Site) -> None:
    instance = site.rent("0.1000000000000000000000000001")
    site.clock.advance(3600)
    site.gone(instance)
    assert site.accrued(instance.job_id) == Decimal("0.10")
    assert [(e.whole, e.nano, e.atto) for e in site.entries()] == [(360, 0, 0)]


def _oracle(site: Site, begin: datetime, end: datetime) -> dict[str, tuple[int, int]]:
    """Seconds and attos of each job, from the rows of instances and prices, unit by unit."""

    def read(session: Session) -> list[tuple[Instance, list[PriceRecord]]]:
        found = session.exec(select(Instance)).all()
        return [(i, sorted(session.exec(select(PriceRecord).where(PriceRecord.instance_id == i.id)).all(),
                           key=lambda p: p.id or 0)) for i in found]  # fmt: skip

    result: dict[str, tuple[int, int]] = {}
    for instance, prices in site.database.run_read(read):
        assert instance.allocated_at is not None
        unit = 60 if instance.offer["pricing_model"] == "instance_minutes" else 1
        moment, stop = instance.allocated_at, instance.confirmed_absent_at or site.clock()
        while moment < stop:
            if begin <= moment < end:
                rate = prices[0].usd_per_hour
                for price in prices:
                    rate = price.usd_per_hour if price.since <= moment else rate
                seconds, total = result.get(instance.job_id, (0, 0))
                result[instance.job_id] = (seconds + unit, total + int(rate * ATTOS) * unit)
            moment += timedelta(seconds=unit)
    return result


def test_reports_of_random_histories_are_what_the_oracle_counts(site: Site) -> None:
    """Instances begin, change price, are preempted, end, in several jobs, over days; windows of all kinds, pages of all
    sizes; the ledger is closed now and then, and none of it shows."""
    rng = random.Random(4)
    site.clock.set(datetime(2026, 2, 27, 20, 0, 3, 1, tzinfo=UTC))
    start = site.clock()
    live: list[Instance] = []
    jobs: list[Job] = []
    for _ in range(90):
        action = rng.randrange(8)
        if action < 3 or not live:
            old = [j for j in jobs if all(i.job_id != j.id for i in live)]
            job = rng.choice(old) if old and rng.random() < 0.3 else site.factory.job(JobState.ALLOCATING)
            jobs.append(job)
            model = rng.choice(
                [PricingModel.INSTANCE_MINUTES, PricingModel.INSTANCE_MINUTES, PricingModel.INSTANCE_SECONDS]
            )
            live.append(site.rent(str(rng.randrange(1, 10**6)) + "e-5", job=job, pricing_model=model))
        elif action < 5:
            site.reprice(rng.choice(live), str(rng.randrange(1, 10**9)) + "e-8")
        elif action < 7:
            site.gone(live.pop(rng.randrange(len(live))))
        else:
            site.close_days()
        site.clock.advance(seconds=rng.choice([1, 59.5, 600, 3600, 9000]), microseconds=rng.randrange(10**6))
    kept, given = _derived(site)
    assert kept == given
    now = minute(site.clock())
    whole = minute(start) + timedelta(minutes=1)
    moments = [whole + rng.random() * (now - whole) for _ in range(12)]
    windows = [(minute(start), now), (now - timedelta(minutes=1), now)]
    windows += [tuple(sorted((minute(a), minute(b) + timedelta(minutes=1)))) for a, b in pairwise(moments)]
    for begin, end in windows:
        expected = _oracle(site, begin, end)
        found = site.report(begin, end, limit=200)
        assert {u.resource_id: (u.seconds, u.attos) for u in found.page} == expected
        assert found.attos["job"] == sum(total for _, total in expected.values())
        assert found.total == len(expected)
        order = [(u.resource_at, u.resource_id) for u in found.page]
        assert order == sorted(order, reverse=True)


def test_pages_hold_each_resource_once_the_newest_first(site: Site) -> None:
    rented = []
    for number in range(7):
        rented.append(site.rent("1"))
        # Some are created at the same moment.
        site.clock.advance(30 * (number % 2))
    site.clock.advance(300)
    for instance in rented[::2]:
        site.gone(instance)
    begin, end = minute(rented[0].created_at), minute(site.clock())
    org_id, seen, after = rented[0].org_id, [], None
    while True:
        page = site.database.run_read(
            lambda s, after=after: usage.report(
                s, Scope(org_id), Window(begin, end), site.clock(), after=after, limit=2
            )
        )
        assert page.total == 7
        seen += [(u.resource_at, u.resource_id) for u in page.page]
        if not page.more:
            break
        after = seen[-1]
    assert seen == sorted(seen, reverse=True)
    assert {resource_id for _, resource_id in seen} == {i.job_id for i in rented}


def test_a_window_in_a_jobs_pause_holds_none_of_it(site: Site) -> None:
    first = site.rent("1")
    job = site.database.run_read(lambda s: s.get_one(Job, first.job_id))
    site.clock.advance(600)
    site.gone(first)
    pause = minute(site.clock()) + timedelta(minutes=10)
    site.clock.advance(hours=2)
    second = site.rent("1", job=job)
    site.clock.advance(600)
    assert site.report(pause, pause + timedelta(hours=1)) == usage.Report(
        (), False, 0, dict.fromkeys(ledger.RESOURCE_TYPES, 0)
    )
    site.gone(second)
    assert site.report(pause, pause + timedelta(hours=1)) == usage.Report(
        (), False, 0, dict.fromkeys(ledger.RESOURCE_TYPES, 0)
    )
    assert site.report(pause, minute(site.clock())).total == 1


def test_a_scope_narrows_to_a_project_and_a_type(site: Site) -> None:
    mine = site.factory.project(site.factory.default_organization())
    instance = site.rent("1", job=site.factory.job(JobState.ALLOCATING, project=mine))
    other = site.rent("1")
    site.clock.advance(600)
    begin, end = minute(instance.created_at), minute(site.clock())
    for _ in range(2):
        assert [u.resource_id for u in site.report(begin, end, project_id=mine.id).page] == [instance.job_id]
        assert site.report(begin, end, resource_type="volume").total == 0
        assert site.report(begin, end, resource_type="job").total == 2
        site.gone(instance)
        site.gone(other)


def test_the_state_of_an_instance_is_no_matter_of_the_ledger(site: Site) -> None:
    """What was never allocated is in no report."""
    site.factory.instance(site.factory.job(JobState.ALLOCATING), InstanceState.REQUESTED)
    site.clock.advance(600)
    assert site.report(minute(site.clock()) - timedelta(hours=1), minute(site.clock())).total == 0


def _derived(site: Site) -> tuple[dict[Any, int], dict[Any, int]]:
    """The days' sums as they are kept, and as the entries give them."""

    def read(session: Session) -> tuple[list[BilledDay], list[LedgerEntry]]:
        return list(session.exec(select(BilledDay)).all()), list(session.exec(select(LedgerEntry)).all())

    days, entries = site.database.run_read(read)
    kept = {(d.project_id, d.day): ledger.attos_of(d.whole, d.nano, d.atto) for d in days}
    given: dict[Any, int] = {}
    for e in entries:
        key = (e.project_id, day_of(e.begins_at))
        given[key] = given.get(key, 0) + ledger.attos_of(e.whole, e.nano, e.atto)
    return kept, given


def test_many_that_end_at_once_are_each_added_to_the_days_once(site: Site) -> None:
    """Attempts of one project over three days, while housekeeping closes those days."""
    site.clock.set(datetime(2026, 3, 30, 20, tzinfo=UTC))
    rented = [site.rent(f"{number + 1}.123456789012345678") for number in range(12)]
    site.clock.advance(days=2)
    with ThreadPoolExecutor(8) as pool:
        closing = [pool.submit(site.close_days) for _ in range(2)]
        for done in [*pool.map(site.gone, rented), *(future.result() for future in closing)]:
            assert done is not None
    kept, given = _derived(site)
    assert kept == given
    assert len(given) == 3
    assert sum(e.units for e in site.entries()) == 12 * 2 * 1440
