"""200 random jobs against a cloud that keeps its own bill: the ledger equals it, to the last digit.

Failovers, failed boots, price changes, preemptions, lost answers and deletions that are refused, on the dev server.
Time is injected and stands still while anything that ends a charge is under way; it goes on while machines are made.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlmodel import select
from temporalio.client import AsyncActivityCancelledError
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from activities.reconcile import ReconcileActivities
from domain.money import cents_of
from domain.states import TERMINAL, InstanceState, JobState
from providers.fake.cloud import Cloud, CloudOffer, Instance
from providers.fake.faults import Answer, Fault, Operation
from providers.fake.script import AgentScript, ScriptRule
from providers.fake.server import RunningCloud, serve
from store import liveness
from store.ledger import attos_of
from store.tables import Instance as Attempt
from store.tables import Job, LedgerEntry
from tests.support.clock import SettableClock
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.invariants import assert_invariants

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

JOBS = 200
LIVE = 100
CONTACT_SECONDS = 4.0
HOUR_OF_ATTOS = 3600 * 10**18
RATES = ("0.36", "0.4", "1.23456789", "0.720000000000000001")


def _offer(offer_id: str, price: str, **terms: Any) -> CloudOffer:
    hardware = {"accelerator": "cpu-general", "gpu_count": 0}
    return CloudOffer(id=offer_id, price_usd_hr=Decimal(price), **hardware, **terms)


OFFERS = (
    _offer("minutes", "0.36", unit_seconds=60, capacity=12),
    _offer("minimum", "0.5", minimum_seconds=60, capacity=15),
    _offer("storage", "0.61", stopped_usd_hr=Decimal("0.07"), capacity=20),
    _offer("from-start", "0.7", boot_charged=False, capacity=15),
    _offer("disks", "0.8", unit_seconds=60, sub_resources=("disk", "nic")),
)


_JOBS = select(Job.id, Job.state)
_ATTEMPTS = select(
    Attempt.id, Attempt.job_id, Attempt.number, Attempt.allocated_at, Attempt.started_at, Attempt.terminal_at,
    Attempt.confirmed_absent_at,
).order_by(Attempt.number)  # fmt: skip
_FOLLOWED = select(Attempt.id, Attempt.job_id, Attempt.stream_run_id, Attempt.stream_activity_id).where(
    Attempt.state == InstanceState.RUNNING
)


class Clock(SettableClock):
    """Stands still, unless the test moves it; near the machine's time, by which Temporal goes."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cloud(clock: Clock) -> AsyncIterator[RunningCloud]:
    async with serve(clock=clock) as running:
        yield running


@pytest.fixture
async def plane(
    sqlite_url: str, temporal_address: str, cloud: RunningCloud, clock: Clock
) -> AsyncIterator[ControlPlane]:
    """With short waits where a loss is noticed, and long ones where a machine is held on purpose. Lists of machines are
    read by the test alone: one that is older than a price would take it back."""
    waits = {
        "contact_timeout_seconds": CONTACT_SECONDS,
        "provisioning_timeout_seconds": 900,
        "launch_timeout_seconds": 900,
        "reconcile_interval_seconds": 86_400,
    }
    async with control_plane(sqlite_url, temporal_address, cloud_url=cloud.url, clock=clock, **waits) as running:
        yield running
        await assert_invariants(running)


@dataclass
class World:
    plane: ControlPlane
    cloud: Cloud
    clock: Clock
    rng: random.Random
    jobs: list[str] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    expected: dict[str, str] = field(default_factory=dict)
    """What a job has to have become before it is at rest again: `running`, on its `next` attempt, `over`; or `lost`,
    which is `next` once somebody has noticed."""
    attempts: dict[str, int] = field(default_factory=dict)
    """How many attempts each job had when all were last at rest."""
    counts: Counter[str] = field(default_factory=Counter)

    def machines(self) -> dict[str, Instance]:
        """The newest machine of each job that is not gone."""
        return {i.labels["job"]: i for i in self.cloud.instances() if not i.gone}

    async def tick(self, seconds: float) -> None:
        """Moves time on, with an API that was there all the while: silence counts."""
        target = self.clock() + timedelta(seconds=seconds)
        while self.clock() < target:
            now = min(target, self.clock() + timedelta(seconds=10))
            self.clock.set(now)
            await self.plane.services.db.write(partial(liveness.beat, lease_id="test", kind=liveness.API, now=now))

    async def pulse(self) -> None:
        """Heartbeats for the agents that run. The API's are as rare as its clock says, and that stands still."""
        while True:
            running = {i.labels["attempt"] for i in self.cloud.instances() if i.status == "running"}
            for attempt in await self.plane.services.db.read(lambda s: list(s.execute(_FOLLOWED).all())):
                if attempt.stream_activity_id is None or attempt.id not in running:
                    continue
                handle = self.plane.temporal.get_async_activity_handle(
                    workflow_id=attempt.job_id, run_id=attempt.stream_run_id, activity_id=attempt.stream_activity_id
                )
                with contextlib.suppress(RPCError, AsyncActivityCancelledError):
                    await handle.heartbeat()
            await asyncio.sleep(CONTACT_SECONDS / 4)

    async def settle(self, *, losses: bool = True) -> None:
        """Until every live job rests: over and its hardware gone, or held in one boot or one run, with what its last
        change leads to behind it. Without `losses`, machines that were taken back need not have been missed yet."""
        deadline = asyncio.get_running_loop().time() + 90
        while restless := await self._restless(losses):
            assert asyncio.get_running_loop().time() < deadline, f"not at rest: {restless}"
            await asyncio.sleep(0.25)

    async def _restless(self, losses: bool) -> list[str]:
        jobs, attempts = await self.plane.services.db.read(
            lambda s: (list(s.execute(_JOBS).all()), list(s.execute(_ATTEMPTS).all()))
        )
        by_job: dict[str, list[Any]] = {job.id: [] for job in jobs}
        for attempt in attempts:
            by_job[attempt.job_id].append(attempt)
        machines = self.machines()
        restless = [
            f"{job.id} is {job.state}, wanted {self.expected.get(job.id)}"
            for job in jobs
            if job.id in self.live
            and (losses or self.expected.get(job.id) != "lost")
            and not self._rests(job, by_job[job.id], machines.get(job.id))
        ]
        if not restless and losses:
            self.live -= {job.id for job in jobs if JobState(job.state) in TERMINAL}
            self.attempts = {job_id: len(of) for job_id, of in by_job.items()}
            self.expected.clear()
        return restless

    def _rests(self, job: Any, attempts: list[Any], machine: Instance | None) -> bool:
        still_open = [a for a in attempts if a.confirmed_absent_at is None]
        wanted = self.expected.get(job.id)
        if JobState(job.state) in TERMINAL:
            return not still_open
        if len(still_open) != 1 or machine is None or wanted == "over":
            return False
        [attempt] = still_open
        if machine.labels["attempt"] != attempt.id or attempt.allocated_at is None or attempt.terminal_at is not None:
            return False
        if wanted in {"next", "lost"} and attempt.number <= self.attempts[job.id]:
            return False
        if job.state == JobState.RUNNING:
            return attempt.started_at is not None
        return job.state == JobState.PROVISIONING and machine.status == "starting" and wanted != "running"


async def _create_some(world: World) -> None:
    """New jobs; time goes on while their machines are made, their answers lost, found and asked for again."""
    wanted = min(JOBS - len(world.jobs), LIVE - len(world.live))
    for _ in range(wanted):
        script = {"hold_run": True, "status": world.rng.choice([0, 0, 0, 3]), "stdout": "x\n"}
        job_id = await world.plane.fake(**script, retry={"on_preemption": True, "max_attempts": 3})
        world.jobs.append(job_id)
        world.live.add(job_id)
    for _ in range(8 if wanted else 0):
        await world.tick(world.rng.uniform(0.1, 9))
        await asyncio.sleep(0.15)


async def _act(world: World, job_id: str) -> None:
    """Something happens to the job, or nothing does."""
    machine, rng = world.machines()[job_id], world.rng
    if machine.status == "starting":
        action = rng.choices(["release", "fail", "terminate", "price", "wait"], [65, 15, 6, 8, 6])[0]
    else:
        action = rng.choices(["release", "interrupt", "terminate", "price", "wait"], [40, 22, 8, 24, 6])[0]
    if len(world.jobs) == JOBS and action in {"wait", "price"} and rng.random() < 0.8:
        action = "release"
    world.counts[action] += 1
    match action:
        case "release":
            world.expected[job_id] = "running" if machine.status == "starting" else "over"
            world.cloud.release(machine)
        case "fail":
            world.expected[job_id] = "next"
            world.cloud.fail(machine, "boot_failed", "no image")
        case "interrupt":
            world.expected[job_id] = "lost"
            world.cloud.interrupt(machine)
        case "terminate":
            world.expected[job_id] = "over"
            await world.plane.terminate(job_id)
        case "price":
            world.cloud.set_price(machine, Decimal(rng.choice(RATES)))


def _faults(rng: random.Random) -> list[Fault]:
    """Creates that succeed and say otherwise, creates that fail, deletions that do not work at once."""
    faults: list[Fault] = []
    lost = [Answer.INTERNAL, Answer.RESET, Answer.CUT, Answer.TRUNCATED, Answer.HTML_502]
    for skip in rng.sample(range(2 * JOBS), 50):
        faults.append(Fault(operation=Operation.CREATE, skip=skip, stage="after", answer=rng.choice(lost),
                            hide_calls=rng.choice([0, 1, 2])))  # fmt: skip
    # Where nothing was made, an attempt is looked for twelve seconds long.
    refusals = [Answer.NO_CAPACITY, Answer.QUOTA, Answer.RATE_LIMIT] * 13 + [Answer.INTERNAL]
    for skip, answer in zip(rng.sample(range(2 * JOBS), len(refusals)), refusals, strict=True):
        faults.append(Fault(operation=Operation.CREATE, skip=skip, answer=answer, retry_after_seconds=0.1))
    for skip in rng.sample(range(3 * JOBS), 40):
        stage = rng.choice(["before", "after"])
        faults.append(Fault(operation=Operation.DELETE, skip=skip, stage=stage, answer=Answer.INTERNAL))
    for skip in rng.sample(range(2 * JOBS), 20):
        faults.append(Fault(operation=Operation.CREATE, skip=skip, price_usd_hr=Decimal("0.9123")))
    rng.shuffle(faults)
    return faults


async def test_the_ledger_of_200_random_jobs_is_what_the_cloud_charged(
    plane: ControlPlane, cloud: RunningCloud, clock: Clock
) -> None:
    assert plane.context is not None
    assert plane.cloud is not None
    begin = clock().replace(second=0, microsecond=0)
    world = World(plane, cloud.cloud, clock, random.Random(20_261_130))
    world.cloud.offers = {offer.id: offer for offer in OFFERS}
    world.cloud.rules.append(ScriptRule(script=AgentScript(hold_boot=True)))
    world.cloud.schedule.faults = _faults(world.rng)
    reconcile = ReconcileActivities(plane.context).reconcile_connection
    pulse = asyncio.create_task(world.pulse())
    while world.live or len(world.jobs) < JOBS:
        await _create_some(world)
        await world.settle()
        await world.tick(world.rng.uniform(30, 700))
        for job_id in sorted(world.live):
            await _act(world, job_id)
        # The lists are read before time goes on: what a machine costs from now on is known from now on.
        await ActivityEnvironment().run(reconcile, "fake")
        # Without this silence nobody would ask after the machines that were taken back.
        await world.settle(losses=False)
        await world.tick(20)
        await world.settle()

    pulse.cancel()
    await _compare(world, begin)


async def _compare(world: World, begin: datetime) -> None:
    plane = world.plane
    entries = await plane.services.db.read(lambda s: list(s.exec(select(LedgerEntry)).all()))
    ledger: dict[str, int] = {}
    for entry in entries:
        ledger[entry.resource_id] = ledger.get(entry.resource_id, 0) + attos_of(entry.whole, entry.nano, entry.atto)
    billed: dict[str, Fraction] = {}
    for machine in world.cloud.instances():
        job_id = machine.labels["job"]
        billed[job_id] = billed.get(job_id, Fraction(0)) + world.cloud.bill(machine)
    for job_id in world.jobs:
        charged = Fraction(ledger.get(job_id, 0), HOUR_OF_ATTOS)
        assert charged == billed.get(job_id, 0), (job_id, float(charged), float(billed.get(job_id, 0)))
        assert Decimal(str((await plane.job(job_id))["accrued_usd"])) == cents_of(ledger.get(job_id, 0))
    # What happened was what was meant to happen.
    assert all(world.counts[action] > 5 for action in ("release", "fail", "interrupt", "terminate", "price"))
    attempts = await plane.services.db.read(lambda s: list(s.exec(select(Attempt)).all()))
    assert len(attempts) > 1.2 * JOBS
    adopted = [a for a in attempts if a.allocated_at is not None and a.create_settled_at != a.allocated_at]
    assert len(adopted) > 5, "no answer was lost while time went on"

    await world.tick(120)
    end = world.clock().replace(second=0, microsecond=0)
    minutes = (end - begin) // timedelta(minutes=1)
    edges = sorted({begin, end, *(begin + timedelta(minutes=world.rng.randrange(minutes)) for _ in range(5))})
    totals = []
    for since, to in [(begin, end), *pairwise(edges)]:
        parameters = {"from": since.isoformat(), "to": to.isoformat(), "limit": 1}
        answer = await plane.client.get("/api/v1/compute/usage", params=parameters)
        totals.append(Decimal(str(answer.json()["summary"]["total_usd"])))
    assert totals[0] == cents_of(sum(ledger.values()))
    assert abs(sum(totals[1:]) - totals[0]) <= Decimal("0.005") * len(totals)
