"""Budgets in the store: what creates may reserve, what is derived from the rows, what a review does."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from sqlmodel import col, func, select

from domain.budgets import BudgetPeriod
from domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from domain.ids import new_job_id
from domain.limits import accrued
from domain.money import usd_of
from domain.offers import Capabilities
from domain.spec import ComputeRequest, JobSpec, Limits
from domain.states import InstanceState, JobState
from store import attempts, budget_draws, budget_review, budgets, jobs, ledger, offers
from store.access import Principal, authenticate
from store.db import Database
from store.tables import (
    Budget,
    BudgetAlert,
    BudgetReservation,
    InboxRow,
    Instance,
    Job,
    JobEvent,
    Organization,
)
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

MONTHLY, TOTAL = BudgetPeriod.MONTHLY, BudgetPeriod.TOTAL


class Bench:
    """One organization with its principal, and short words for what tests do."""

    def __init__(self, database: Database, factory: Factory, clock: SettableClock, vault: Vault) -> None:
        self.database, self.factory, self.clock, self.vault = database, factory, clock, vault
        self.principal = self.member("someone")
        self.org_id = self.principal.org_id
        self._keys = iter(range(1_000_000))

    def member(self, owner: str) -> Principal:
        key = self.factory.key(owner=owner)
        found = self.database.run_read(lambda s: authenticate(s, key.token, self.clock()))
        assert found is not None
        return found

    def budget(self, usd: str, *, period: BudgetPeriod = MONTHLY, project: str | None = None, owner: str | None = None,
               alerts: tuple[int, ...] = (50, 80, 100)) -> Budget:  # fmt: skip
        return self.database.run_write(
            lambda s: budgets.create(s, self.org_id, project, owner, period, Decimal(usd), alerts, self.clock())
        )

    def create(
        self, max_cost: str | None = None, *, project: str | None = None, principal: Principal | None = None
    ) -> str:
        """The id of a new job."""
        who = principal or self.principal
        spec = JobSpec(
            image="registry.example/app:1",
            compute=ComputeRequest(accelerator="cpu-general", gpu_count=0, vcpu_count=1, ephemeral_disk_gb=1),
            limits=Limits(max_cost_usd=None if max_cost is None else Decimal(max_cost)),
        )
        new = jobs.NewJob(
            id=new_job_id(),
            project=project,
            on_behalf_of=None,
            name=None,
            kind="task",
            labels=None,
            spec=spec.model_dump(mode="json"),
            workload_sealed=b"sealed",
            registry_sealed=None,
        )
        claim = jobs.IdempotencyClaim(f"key-{next(self._keys)}", b"{}", self.vault)
        return self.database.run_write(lambda s: jobs.create(s, who, new, claim, self.clock())).job.id

    def refused(self, max_cost: str | None = None, **how: Any) -> bool:
        try:
            self.create(max_cost, **how)
        except Forbidden as error:
            if error.code != "budget_exhausted":
                raise
            return True
        return False

    def status(self, budget: Budget) -> budgets.BudgetStatus:
        return self.database.run_read(
            lambda s: budgets.statuses(s, self.org_id, [s.get_one(Budget, budget.id)], self.clock())[0]
        )

    def run(self, job_id: str, usd_per_hour: str, **offer: Any) -> Instance:
        """The job's attempt, allocated now."""
        chosen = self.factory.offer(price_usd_hr=Decimal(usd_per_hour), **offer)

        def allocate(session: Any) -> Instance:
            job = session.get_one(Job, job_id)
            job.state = JobState.ALLOCATING
            session.add(job)
            session.flush()
            instance = attempts.mint(session, job, chosen, self.clock(), slots=None, single_tenant=False)
            assert isinstance(instance, Instance)
            handle = {"provider_id": "m-1", "resource_type": "machine"}
            attempts.allocated(session, instance, handle, chosen.price_usd_hr, "test", self.clock())
            return instance

        return self.database.run_write(allocate)

    def gone(self, instance: Instance) -> None:
        self.database.run_write(lambda s: attempts.gone(s, s.get_one(Instance, instance.id), self.clock()))

    def end(self, job_id: str) -> None:
        def end(session: Any) -> None:
            job = session.get_one(Job, job_id)
            job.state, job.terminal_at = JobState.SUCCEEDED, self.clock()
            session.add(job)

        self.database.run_write(end)

    def look(self) -> budget_review.Outlook:
        return self.database.run_read(lambda s: budget_review.look(s, self.org_id, self.clock(), 0))

    def act(self) -> list[str]:
        return self.database.run_write(lambda s: budget_review.act(s, self.org_id, self.clock(), 0))

    def alerts(self) -> list[tuple[str, int]]:
        rows = self.database.run_read(lambda s: s.exec(select(BudgetAlert).order_by(col(BudgetAlert.at))).all())
        return [(row.kind, row.percent) for row in rows]

    def state(self, job_id: str) -> tuple[str, str | None]:
        return self.database.run_read(lambda s: (s.get_one(Job, job_id).state, s.get_one(Job, job_id).reason_code))


@pytest.fixture
def bench(database: Database, factory: Factory, clock: SettableClock, vault: Vault) -> Bench:
    return Bench(database, factory, clock, vault)


class TestCreates:
    def test_fifty_creates_at_once_against_a_budget_for_three_are_three(self, bench: Bench, database: Database) -> None:
        """Case 8. Twenty connections on PostgreSQL."""
        wide = Database(database.url, writers=20) if not database.sqlite else database
        bench.budget("3.00")
        crowd = Bench.__new__(Bench)
        crowd.__dict__ = {**bench.__dict__, "database": wide}
        try:
            with ThreadPoolExecutor(20) as pool:
                refusals = list(pool.map(lambda _: crowd.refused("1.00"), range(50)))
        finally:
            if wide is not database:
                wide.close()
        assert refusals.count(False) == 3
        rows = database.run_read(lambda s: s.exec(select(func.count()).select_from(Job)).one())
        assert rows == 3
        assert database.run_read(lambda s: len(s.exec(select(BudgetReservation)).all())) == 3

    def test_the_last_create_takes_what_is_left(self, bench: Bench) -> None:
        budget = bench.budget("2.50")
        assert [bench.refused("1.00") for _ in range(4)] == [False, False, False, True]
        assert bench.status(budget).remaining_usd == 0

    def test_a_job_without_a_limit_holds_all_that_is_free_until_it_is_over(self, bench: Bench) -> None:
        budget = bench.budget("5")
        job_id = bench.create()
        assert bench.status(budget).reserved_usd == 5
        assert bench.refused("0.01")
        bench.end(job_id)
        assert not bench.refused("0.01")

    def test_a_budget_of_nothing_refuses_everything(self, bench: Bench) -> None:
        bench.budget("0")
        assert bench.refused("0.01")
        assert bench.refused()

    def test_without_a_budget_nothing_is_reserved(self, bench: Bench, database: Database) -> None:
        bench.create("1.00")
        assert database.run_read(lambda s: s.exec(select(BudgetReservation)).all()) == []

    def test_all_budgets_that_apply_must_allow_it(self, bench: Bench) -> None:
        bench.factory.project(bench.factory.default_organization(), "vision")
        bench.budget("100")
        bench.budget("1", project="vision")
        bench.budget("2", owner="amy")
        amy = bench.member("amy")
        assert not bench.refused("1", project="vision")
        assert bench.refused("1", project="vision")
        assert not bench.refused("2", principal=amy)
        assert bench.refused("1", principal=amy)
        assert not bench.refused("50")

    def test_what_a_machine_costs_replaces_what_its_job_reserved(self, bench: Bench, clock: SettableClock) -> None:
        budget = bench.budget("10")
        job_id = bench.create("4")
        machine = bench.run(job_id, "6", teardown_seconds=0)
        clock.advance(minutes=30)
        status = bench.status(budget)
        assert (status.spent_usd, status.reserved_usd, status.remaining_usd) == (3, 1, 6)
        assert status.burn_usd_hr == 6
        bench.end(job_id)
        bench.gone(machine)
        clock.advance(hours=5)
        status = bench.status(budget)
        assert (status.spent_usd, status.reserved_usd, status.remaining_usd) == (3, 0, 7)

    def test_a_create_needs_the_least_that_the_dearest_offer_costs(self, bench: Bench) -> None:
        # A minute, and another one of teardown, at 6 USD an hour: 0.20 USD.
        offer = bench.factory.offer(price_usd_hr=Decimal("6"), teardown_seconds=60)
        bench.database.run_write(
            lambda s: offers.replace(s, "local", "local", Capabilities(), offers.Snapshot.of([offer]), 1, bench.clock())
        )
        budget = bench.budget("0.50")
        bench.create("0.21")
        bench.create("0.21")
        with pytest.raises(Forbidden, match=r"would need 0\.20 USD at least"):
            bench.create()
        assert bench.status(budget).remaining_usd == Decimal("0.08")

    def test_an_attempt_that_the_budget_cannot_pay_is_not_minted(self, bench: Bench, database: Database) -> None:
        bench.budget("1.00")
        job_id = bench.create("0.40")
        bench.create("0.40")

        def refusal(usd_per_hour: str) -> budgets.BudgetSpent | None:
            offer = bench.factory.offer(price_usd_hr=Decimal(usd_per_hour), teardown_seconds=0)
            return database.run_write(
                lambda s: budgets.refusal(s, s.get_one(Job, job_id), offer, bench.clock(), drain_seconds=0)
            )

        # 0.60 are left beside what the other job holds: a minute at up to 36 USD an hour.
        assert refusal("36") is None
        spent = refusal("36.01")
        assert spent is not None
        assert "costs 0.60 USD at least" in spent.message


def test_whatever_happens_at_once_no_more_is_held_than_there_is(bench: Bench, database: Database) -> None:
    """Creates, attempts, prices, ends and reviews in eight threads: none fails, none waits for another for ever."""
    budget = bench.budget("5.00")
    offer = bench.factory.offer(price_usd_hr=Decimal("6"), teardown_seconds=0, pricing_model="instance_seconds")

    def attempt(session: Any, job_id: str) -> Instance | None:
        job = session.get(Job, job_id, with_for_update=True)
        if job.state != JobState.REQUESTED or budgets.refusal(session, job, offer, bench.clock(), 0) is not None:
            return None
        job.state = JobState.ALLOCATING
        session.add(job)
        session.flush()
        made = attempts.mint(session, job, offer, bench.clock(), slots=5, single_tenant=False)
        if isinstance(made, Instance):
            handle = {"provider_id": made.id, "resource_type": "machine"}
            attempts.allocated(session, made, handle, Decimal("6"), "test", bench.clock())
            return made
        return None

    waiting = select(Job.id).where(Job.state == JobState.REQUESTED).limit(1)

    def live(seed: int) -> int:
        chance, accepted = random.Random(seed), 0
        for _ in range(6):
            if bench.refused(chance.choice(["0.40", "1.00", None])):
                bench.act()
                continue
            accepted += 1
            job_id = database.run_read(lambda s: s.exec(waiting).first())
            machine = None if job_id is None else database.run_write(partial(attempt, job_id=job_id))
            if machine is not None:
                database.run_write(
                    lambda s, m=machine: attempts.reprice(
                        s, attempts.locked(s, m.id), Decimal(9), "test", bench.clock()
                    )
                )
                bench.end(machine.job_id)
                database.run_write(lambda s, m=machine: attempts.gone(s, attempts.locked(s, m.id), bench.clock()))
            status = bench.status(budget)
            assert status.spent_usd + status.reserved_usd <= 5
        return accepted

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(live, range(8))) > 0
    status = bench.status(budget)
    assert status.spent_usd + status.reserved_usd <= 5


class TestWindows:
    def test_a_month_begins_in_the_zone_of_the_organization(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        def move(session: Any) -> None:
            session.get_one(Organization, bench.org_id).time_zone = "Asia/Tokyo"

        database.run_write(move)
        clock.set(datetime(2026, 3, 31, 14, 59, tzinfo=UTC))
        budget = bench.budget("10")
        job_id = bench.create("9")
        machine = bench.run(job_id, "60", teardown_seconds=0)
        clock.advance(minutes=2)
        bench.end(job_id)
        bench.gone(machine)
        # Midnight in Tokyo was a minute after the allocation.
        status = bench.status(budget)
        assert status.window.start == datetime(2026, 3, 31, 15, tzinfo=UTC)
        assert status.spent_usd == 1
        clock.set(datetime(2026, 3, 31, 14, 59, 30, tzinfo=UTC))
        assert bench.status(budget).spent_usd == 1

    def test_a_total_budget_counts_from_its_making(self, bench: Bench, clock: SettableClock) -> None:
        job_id = bench.create("9")
        machine = bench.run(job_id, "60", teardown_seconds=0)
        clock.advance(minutes=1)
        total, monthly = bench.budget("5", period=TOTAL), bench.budget("5")
        clock.advance(minutes=2)
        bench.end(job_id)
        bench.gone(machine)
        assert (bench.status(total).spent_usd, bench.status(monthly).spent_usd) == (2, 3)

    def test_the_settled_sum_is_what_the_meters_say(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        """Machines that ran over days and months; the ledger against `accrued`, through a window without an edge."""
        clock.set(datetime(2026, 1, 30, 22, 17, 3, tzinfo=UTC))
        total = bench.budget("100000", period=TOTAL)
        made = []
        for hours in (3, 30, 50):
            job_id = bench.create("100")
            machine = bench.run(job_id, "0.77", pricing_model="instance_seconds")
            clock.advance(hours=hours, seconds=11)
            bench.end(job_id)
            bench.gone(machine)
            made.append(job_id)
        exact = database.run_read(lambda s: sum(accrued(m, clock()) for m in attempts.metered(s, made).values()))
        assert abs(bench.status(total).spent_usd - exact) < Decimal("1e-20")

    def test_what_the_ledger_holds_and_what_still_runs_add_up_to_the_units_of_the_window(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        """Over the end of a month that is half an hour off UTC's, in two projects, by two people; some of it live."""

        def move(session: Any) -> None:
            session.get_one(Organization, bench.org_id).time_zone = "Asia/Kolkata"

        database.run_write(move)
        bench.factory.project(bench.factory.default_organization(), "vision")
        scopes = [(None, None), ("vision", None), (None, "amy"), ("vision", "amy")]
        made = [bench.budget("100000", project=project, owner=owner) for project, owner in scopes]
        people = {"someone": bench.principal, "amy": bench.member("amy")}
        clock.set(datetime(2026, 3, 30, 5, 0, 7, tzinfo=UTC))
        ran: list[tuple[str, str, str]] = []
        for number in range(8):
            project, owner = ("vision" if number % 2 else "default"), ("amy" if number % 3 else "someone")
            job_id = bench.create("100", project=project, principal=people[owner])
            machine = bench.run(
                job_id, f"0.{number + 1}1", pricing_model="instance_seconds" if number % 2 else "instance_minutes"
            )
            ran.append((job_id, project, owner))
            clock.advance(hours=7, seconds=13)
            if number < 6:
                bench.end(job_id)
                bench.gone(machine)
            live = database.run_read(lambda s: ledger.unclosed(s, clock()))
            database.run_write(partial(ledger.close_days, instance_ids=live, now=clock()))

        for budget, (project, owner) in zip(made, scopes, strict=True):
            mine = [j for j, p, o in ran if project in {None, p} and owner in {None, o}]
            status = bench.status(budget)
            meters = database.run_read(partial(attempts.metered, job_ids=mine))
            slow = sum(status.window.cost(m.runs(clock())) for of_job in meters.values() for m in of_job)
            assert status.window.start == datetime(2026, 3, 31, 18, 30, tzinfo=UTC)
            assert status.spent_usd == usd_of(slow) > 0


class TestReviews:
    def test_alerts_are_raised_once_each_in_their_time(self, bench: Bench, clock: SettableClock) -> None:
        bench.budget("10", alerts=(50, 80, 100))
        job_id = bench.create()
        # A dollar a minute.
        bench.run(job_id, "60", teardown_seconds=60)
        seen = []
        for _ in range(30):
            outlook = bench.look()
            if outlook.due:
                bench.act()
                assert bench.look().due == 0
            elif outlook.next_at is not None:
                clock.set(outlook.next_at)
            seen.append(bench.alerts())
        assert bench.alerts()[:3] == [("threshold", 50), ("threshold", 80), ("exhausted", 100)]
        assert bench.state(job_id) == ("terminating", "budget_exhausted")

    def test_the_budget_fires_when_the_balance_is_the_cost_of_the_ends(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        bench.budget("10", alerts=())
        start = clock()
        one, two = bench.create("5"), bench.create()
        bench.run(one, "60", teardown_seconds=60)
        bench.run(two, "120", teardown_seconds=60)
        # 3 USD a minute; the ends cost a minute each: the third minute is the last that both can pay.
        outlook = bench.look()
        assert (outlook.due, outlook.next_at) == (0, start + timedelta(minutes=2))
        clock.set(start + timedelta(minutes=2) - timedelta(microseconds=1))
        assert bench.act() == []
        clock.set(start + timedelta(minutes=2))
        assert bench.act() == sorted([one, two])
        assert {bench.state(one), bench.state(two)} == {("terminating", "budget_exhausted")}
        events = database.run_read(lambda s: s.exec(select(JobEvent).where(JobEvent.job_id == one)).all())
        told = next(e for e in events if e.type == "termination_requested")
        assert told.data["reason"] == "budget_exhausted"
        assert told.data["budget_id"].startswith("bud_")
        inbox = database.run_read(lambda s: s.exec(select(InboxRow).where(InboxRow.kind == "terminate")).all())
        assert {row.job_id for row in inbox} == {one, two}
        assert bench.refused("0.01")
        assert bench.look().due == 0

    def test_only_jobs_that_draw_on_the_budget_are_stopped(self, bench: Bench, clock: SettableClock) -> None:
        bench.budget("1", owner="amy", alerts=())
        hers, his = bench.create(principal=bench.member("amy")), bench.create()
        bench.run(hers, "60", teardown_seconds=0)
        bench.run(his, "60", teardown_seconds=0)
        clock.advance(minutes=2)
        assert bench.act() == [hers]
        assert bench.state(his)[0] == "provisioning"

    def test_less_money_stops_what_runs_at_once_and_more_arms_the_alerts_anew(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        budget = bench.budget("100", alerts=(50,))
        job_id = bench.create()
        bench.run(job_id, "60", teardown_seconds=0)
        clock.advance(minutes=10)
        assert bench.look().due == 0

        def change(usd: str) -> None:
            database.run_write(
                lambda s: budgets.change(s, budgets.find(s, bench.org_id, budget.id), Decimal(usd), None, clock())
            )

        change("19")
        assert bench.look().due == 1
        assert bench.act() == []
        change("9")
        assert bench.act() == [job_id]
        assert ("exhausted", 100) in bench.alerts()
        assert ("overspent", 100) in bench.alerts()
        change("20")
        bench.act()
        assert bench.alerts().count(("threshold", 50)) == 3

    def test_what_changes_the_spend_tells_the_workflow_and_nothing_else_does(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        def told() -> list[str]:
            query = select(InboxRow).where(InboxRow.kind == "budget").order_by(col(InboxRow.id))
            return [row.dedupe_key for row in database.run_read(lambda s: s.exec(query).all())]

        free = bench.run(bench.create(), "1")
        assert told() == []
        budget = bench.budget("10", alerts=())
        machine = bench.run(bench.create(), "1")
        database.run_write(
            lambda s: attempts.reprice(s, s.get_one(Instance, machine.id), Decimal(2), "test", clock.advance(1))
        )
        bench.gone(machine)
        assert told() == [
            f"{budget.id}-1",
            f"minted-{machine.id}",
            f"allocated-{machine.id}",
            f"price-{machine.id}-1",
            f"gone-{machine.id}",
        ]
        assert free.state == InstanceState.STARTING


class TestRows:
    def test_one_budget_of_a_scope_and_period(self, bench: Bench) -> None:
        bench.budget("1")
        bench.budget("1", period=TOTAL)
        bench.budget("1", owner="amy")
        with pytest.raises(Conflict) as caught:
            bench.budget("2")
        assert caught.value.code == "budget_exists"

    def test_another_organizations_budget_is_not_found(self, bench: Bench, database: Database) -> None:
        budget = bench.budget("1")
        stranger = bench.factory.organization("strangers")
        with pytest.raises(NotFound):
            database.run_read(lambda s: budgets.find(s, stranger.id, budget.id))

    def test_a_project_that_does_not_exist_is_refused(self, bench: Bench) -> None:
        with pytest.raises(InvalidRequest) as caught:
            bench.budget("1", project="nothing")
        assert caught.value.field == "project"

    def test_nothing_about_a_draw_is_counted_along(
        self, bench: Bench, database: Database, clock: SettableClock
    ) -> None:
        """The same draws, however often and wherever they are derived."""
        bench.budget("10")
        bench.run(bench.create("2"), "1")
        clock.advance(minutes=3)

        def draws(session: Any) -> list[Any]:
            found = budget_draws.accounts(session, bench.org_id, budgets.list_all(session, bench.org_id), clock())
            return [replace(account, budget=Budget(id="b")).jobs for account in found]

        assert database.run_read(draws) == database.run_read(draws)
