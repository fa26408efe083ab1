"""100 random jobs over AWS, Google, RunPod and a fleet at once, with a fault for every fifth and spot taken back.

AWS, Google and RunPod are the tests' own, their agents simulated; the fleet's host has a real sshd and podman. All jobs
that hold a machine are let go after ten minutes of the clock, so that a bill that lacks a machine, or has one twice, is
far from the ledger; to the last digit it is compared for one backend at a time, elsewhere.
"""

import asyncio
import contextlib
import gzip
import json
import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from moto.ec2.models.instances import Instance as Ec2Instance
from sqlmodel import select
from temporalio.client import AsyncActivityCancelledError
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from activities.reconcile import ReconcileActivities
from domain.clock import utc_now
from domain.states import TERMINAL, InstanceState, JobState
from providers.fake import faults as engine
from providers.fake.agent import run_agent
from providers.fake.script import AgentScript, ScriptRule
from providers.local.host_image import HOST_IMAGE
from store import liveness
from store.ledger import attos_of
from store.tables import Instance, Job, LedgerEntry
from tests.providers import aws_server, gcp_fake
from tests.providers.aws_server import AwsServer, ec2_error
from tests.providers.aws_support import aws_provider
from tests.providers.gcp_fake import GcpServer
from tests.providers.gcp_fake.cloud import Machine
from tests.providers.gcp_support import gcp_provider, key_pair
from tests.providers.runpod_fake.server import RunningRunPod, serve_runpod
from tests.providers.runpod_support import make_runpod
from tests.providers.ssh_fleet import RunningFleet, running_fleet
from tests.support.agent_listener import agents_served, listening
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

pytestmark = [pytest.mark.e2e, pytest.mark.containers, pytest.mark.timeout(300)]

HOUR_OF_ATTOS = 3600 * 10**18
HELD_SECONDS = 600
SLACK_SECONDS = 60
"""How far the ends of a charge may lie apart, in all: the control plane and the cloud read the time for themselves."""
CONTACT_SECONDS = 15.0
BROKEN = "the image cannot be pulled: manifest unknown"
CPU = {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1}
_FOLLOWED = select(Instance.stream_run_id, Instance.stream_activity_id, Instance.job_id, Instance.id).where(
    Instance.state == InstanceState.RUNNING
)


def gpu(name: str, count: int = 1) -> dict[str, Any]:
    return {"accelerator": name, "gpu_count": count, "ephemeral_disk_gb": 20}


MIX = (
    [("runpod", gpu("nvidia-rtx-4090-24gb"))] * 45
    + [("aws", gpu("nvidia-a10g-24gb"))] * 20
    + [("gcp", gpu("nvidia-l4-24gb"))] * 20
    + [("clouds", gpu("nvidia-h100-80gb", 8))] * 6
    + [("any", CPU)] * 6
    + [("ssh", CPU)] * 3
)


class Clock:
    """The machine's, moved on by what a test adds."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return utc_now() + self.ahead


@dataclass
class Simulated:
    """What happens inside the machines of AWS and Google: a simulated agent with what the user data say. They
    are on until they are deleted."""

    clock: Clock
    aws: AwsServer
    gcp: GcpServer
    broken: Counter[str] = field(default_factory=Counter)
    """How many of the next machines of each cloud do not boot."""
    released: dict[str, asyncio.Event] = field(default_factory=dict)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _booted: set[str] = field(default_factory=set)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.aws.booted = lambda instance, data: loop.call_soon_threadsafe(self._boot_ec2, instance, data)
        self._run(self._boot_google())

    def _run(self, life: Any) -> None:
        task = asyncio.create_task(life)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _boot_ec2(self, instance: Ec2Instance, data: bytes) -> None:
        self._run(self._live_at_ec2(instance, gzip.decompress(data).decode()))

    async def _live_at_ec2(self, instance: Ec2Instance, script: str) -> None:
        attempt = self.aws.tags(instance)["headrace-attempt"]
        await self._live("aws", attempt, script, lambda: instance.state != "terminated")

    async def _boot_google(self) -> None:
        while True:
            for machine in list(self.gcp.cloud.machines.values()):
                if machine.resource["status"] == "RUNNING" and machine.resource["id"] not in self._booted:
                    self._booted.add(machine.resource["id"])
                    self._run(self._live_at_google(machine))
            await asyncio.sleep(0.05)

    async def _live_at_google(self, machine: Machine) -> None:
        script = next(i["value"] for i in machine.resource["metadata"]["items"] if i["key"] == "user-data")
        await self._live(
            "gcp",
            machine.attempt,
            script,
            lambda: machine in self.gcp.cloud.machines.values() and machine.resource["status"] == "RUNNING",
        )

    async def _live(self, cloud: str, attempt: str, script: str, alive: Callable[[], bool]) -> None:
        said = dict(re.findall(r"^(hh_url|hh_token)='(.*)'$", script, re.MULTILINE))
        fault = BROKEN if self.broken[cloud] else None
        self.broken[cloud] -= fault is not None
        machine = SimpleNamespace(
            id=attempt,
            script=AgentScript(fault=fault),
            bootstrap={"url": said["hh_url"], "token": said["hh_token"]},
            released=self.released.setdefault(attempt, asyncio.Event()),
        )
        agent = asyncio.create_task(run_agent(machine, lambda what: None))  # type: ignore[arg-type]

        async def alive_no_more() -> bool:
            await asyncio.sleep(0.1)
            return not alive()

        try:
            await until(alive_no_more, seconds=1e9)
        finally:
            agent.cancel()

    async def close(self) -> None:
        self.aws.booted = lambda instance, data: None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass
class World:
    plane: ControlPlane
    clock: Clock
    aws: AwsServer
    gcp: GcpServer
    runpod: RunningRunPod
    fleet: RunningFleet
    inside: Simulated
    listed: Counter[str] = field(default_factory=Counter)
    """How often each connection was asked for all that it has."""
    spoiled: Counter[str] = field(default_factory=Counter)

    def spoil(self, rng: random.Random) -> None:
        """Something goes wrong at one of the clouds, the next time that it is asked."""
        reset, lost = rng.choice(["reset", "cut"]), rng.choice(["internal", "html_502", "truncated"])
        full = ec2_error(500, "InsufficientInstanceCapacity", "none left")
        slow = ec2_error(503, "RequestLimitExceeded", "slow down")
        answers = engine.Answer

        def aws(operation: str, **how: Any) -> Callable[[], None]:
            return lambda: self.aws.faults.append(aws_server.Fault(operation, **how))

        def gcp(operation: str, **how: Any) -> Callable[[], None]:
            return lambda: self.gcp.faults.append(gcp_fake.Fault(operation, **how))

        def runpod(operation: engine.Operation, **how: Any) -> Callable[[], None]:
            schedule = self.runpod.account.cloud.schedule
            return lambda: schedule.faults.append(engine.Fault(operation=operation, **how))

        def google_is_full() -> None:
            self.gcp.cloud.next_failure = ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "none left")

        def pod_is_broken() -> None:
            rule = ScriptRule(script=AgentScript(fault=BROKEN), times=1)
            self.runpod.account.cloud.rules.append(rule)

        create, delete = engine.Operation.CREATE, engine.Operation.DELETE
        choices: list[tuple[str, Callable[[], None]]] = [
            ("capacity", aws("create", before=lambda call: full)),
            ("capacity", google_is_full),
            ("capacity", runpod(create, answer=answers.NO_CAPACITY)),
            ("rate limit", aws("create", before=lambda call: slow)),
            ("rate limit", runpod(create, answer=answers.RATE_LIMIT, retry_after_seconds=0.1)),
            ("lost create", aws("create", loss=reset)),
            ("lost create", gcp("create", loss=reset)),
            ("lost create", runpod(create, stage="after", answer=answers.RESET, hide_calls=1)),
            ("5xx", aws("delete", loss=lost)),
            ("5xx", gcp("delete", loss=lost)),
            ("5xx", gcp("get", loss=lost)),
            ("5xx", runpod(delete, stage="after", answer=answers.INTERNAL)),
            ("boot", lambda: self.inside.broken.update(["aws"])),
            ("boot", lambda: self.inside.broken.update(["gcp"])),
            ("boot", pod_is_broken),
        ]
        kind, strike = rng.choice(choices)
        self.spoiled[kind] += 1
        strike()

    def take_back(self, attempt: Instance) -> None:
        """The spot machine of the attempt."""
        match attempt.offer["provider"]:
            case "aws":
                words = "Server.SpotInstanceTermination"
                self.aws.end(self.aws.instance(attempt.id), words, f"{words}: taken back")
            case "gcp":
                [machine] = self.gcp.cloud.of(attempt.id)
                self.gcp.cloud.end(machine, "compute.instances.preempted", "Instance was preempted.", delete=True)
            case _:
                self.runpod.account.cloud.interrupt(self._pod(attempt.id))

    def release(self, attempt: Instance) -> None:
        """The workload of the attempt ends by itself."""
        if attempt.offer["provider"] == "runpod":
            self.runpod.account.cloud.release(self._pod(attempt.id))
        else:
            self.inside.released[attempt.id].set()

    def _pod(self, attempt_id: str) -> Any:
        pods = self.runpod.account.cloud.instances()
        return next(p for p in pods if p.labels["attempt"] == attempt_id and not p.gone)

    async def pulse(self) -> None:
        """Heartbeats for the agents that run: the API's are as rare as its clock says, and that makes leaps."""
        while True:
            lost = {p.labels["attempt"] for p in self.runpod.account.cloud.instances() if p.status != "running"}
            for run_id, activity_id, job_id, attempt in await self.plane.services.db.read(
                lambda s: list(s.execute(_FOLLOWED).all())
            ):
                if activity_id is None or attempt in lost:
                    continue
                handle = self.plane.temporal.get_async_activity_handle(
                    workflow_id=job_id, run_id=run_id, activity_id=activity_id
                )
                with contextlib.suppress(RPCError, AsyncActivityCancelledError):
                    await handle.heartbeat()
            await asyncio.sleep(CONTACT_SECONDS / 5)

    async def leap(self, seconds: int) -> None:
        """Moves time on, with an API that was there all the while."""
        pulse = asyncio.create_task(self.pulse())
        for _ in range(seconds // 10):
            self.clock.ahead += timedelta(seconds=10)
            beat = partial(liveness.beat, lease_id="test", kind=liveness.API, now=self.clock())
            await self.plane.services.db.write(beat)
        pulse.cancel()
        await asyncio.gather(pulse, return_exceptions=True)

    async def newest(self) -> dict[str, tuple[JobState, Instance | None]]:
        """State and last attempt of each job."""
        jobs, attempts = await self.plane.services.db.read(
            lambda s: (s.exec(select(Job)).all(), s.exec(select(Instance).order_by(Instance.number)).all())
        )
        last = {attempt.job_id: attempt for attempt in attempts}
        return {job.id: (JobState(job.state), last.get(job.id)) for job in jobs}

    async def settle(self, numbers: dict[str, int], seconds: float = 120) -> None:
        """Until every job runs, on its attempt of that number at least, or is over."""
        restless: list[str] = []

        async def settled() -> bool:
            restless[:] = [
                f"{job_id} is {state}"
                for job_id, (state, attempt) in (await self.newest()).items()
                if state not in TERMINAL
                and not (state is JobState.RUNNING and attempt is not None and attempt.number >= numbers.get(job_id, 1))
            ]
            await asyncio.sleep(0.3)
            return not restless

        await until(settled, seconds=seconds, what=lambda: f"{restless}")


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "four") as running:
        yield running


@pytest.fixture
async def world(sqlite_url: str, temporal_address: str, fleet: RunningFleet) -> AsyncIterator[World]:
    clock = Clock()
    listener, url = listening(backlog=256)
    waits: dict[str, Any] = {
        "contact_timeout_seconds": CONTACT_SECONDS,
        "provisioning_timeout_seconds": 900,
        "launch_timeout_seconds": 900,
        "create_timeout_seconds": 60,
        "delete_accept_seconds": 15,
        "capacity_wait_seconds": 120,
        # Sweeps are the test's own.
        "reconcile_interval_seconds": 86_400,
    }
    async with contextlib.AsyncExitStack() as stack:
        aws, aws_url = stack.enter_context(aws_server.serve())
        aws.clear()
        aws.page_size = "100"
        gcp, gcp_url = stack.enter_context(gcp_fake.serve(key_pair()[1]))
        aws.clock, gcp.cloud.clock = clock, lambda: clock().timestamp()
        runpod = await stack.enter_async_context(serve_runpod(clock))
        inside = Simulated(clock, aws, gcp)
        plane = await stack.enter_async_context(
            control_plane(sqlite_url, temporal_address, clock=clock, public_url=url, **waits)
        )
        assert plane.context is not None
        owner, connections = plane.context.owner_id, plane.context.providers.by_connection
        one = World(plane, clock, aws, gcp, runpod, fleet, inside)
        hosts = fleet.fleet("four", price_usd_hr="0.05", cpu_slots=8)
        connections |= {
            "aws-1": aws_provider(aws_url, owner, spot_seconds=60),
            "gcp-1": gcp_provider(gcp_url, owner),
            "conn-runpod": make_runpod(runpod, owner, offers_seconds=60),
            "ssh-1": fleet.provider(hosts, plane.settings.data_dir, owner, connection="ssh-1"),
        }
        for connection_id in ("aws-1", "gcp-1", "conn-runpod", "ssh-1"):
            _count_lists(one, connection_id, connections[connection_id])
        await stack.enter_async_context(agents_served(plane, listener))
        stack.push_async_callback(inside.close)
        inside.start()
        yield one
        await assert_invariants(plane)


def _count_lists(world: World, connection_id: str, provider: Any) -> None:
    listing = provider.list_owned

    async def counted() -> Any:
        world.listed[connection_id] += 1
        return await listing()

    provider.list_owned = counted


def _body(rng: random.Random, number: int, where: str, compute: dict[str, Any]) -> dict[str, Any]:
    """A job of the mix, with a placement that its backend can serve."""
    placement: dict[str, Any] = {"strategy": rng.choice(["capacity_optimized", "lowest_cost"])}
    command = ["fake", json.dumps({"stdout": f"{number}\n", "hold_run": True, "status": number % 2})]
    match where:
        case "any":
            command = ["true"]
        case "ssh":
            command = ["sleep", "900"]
            placement["providers"] = ["ssh"]
        case "clouds":
            placement["providers"] = rng.choice([["aws", "gcp"], ["gcp", "runpod"], ["aws", "gcp", "runpod"]])
        case _:
            placement["spot"] = rng.choice(["never", "allow", "only"])
            if rng.random() < 0.5:
                placement["providers"] = [where]
            if rng.random() < 0.3:
                placement["max_price_usd_hr"] = 90
            if where == "gcp" and rng.random() < 0.4:
                placement["regions"] = [rng.choice(["us-central1", "us-east1"])]
    return {
        "compute": compute,
        "container": {"image": HOST_IMAGE, "command": command},
        "placement": placement,
        "retry": {"on_preemption": True, "max_attempts": 3},
    }


async def _sweep(world: World) -> dict[str, str]:
    """One look at each connection, as the schedules have it."""
    assert world.plane.context is not None
    reconcile = ReconcileActivities(world.plane.context).reconcile_connection
    connections = ("aws-1", "gcp-1", "conn-runpod", "ssh-1")
    return {name: await ActivityEnvironment().run(reconcile, name) for name in connections}


async def test_100_jobs_over_four_backends_end_leave_nothing_and_cost_what_was_billed(world: World) -> None:
    rng, plane = random.Random(20_261_130), world.plane
    mix = list(MIX)
    rng.shuffle(mix)
    jobs: dict[str, tuple[int, str]] = {}
    for number, (where, compute) in enumerate(mix):
        if number % 5 == 0:
            world.spoil(rng)
        jobs[await plane.create(_body(rng, number, where, compute))] = (number, where)
    await world.settle({})

    spot = [
        attempt
        for state, attempt in (await world.newest()).values()
        if state is JobState.RUNNING and attempt is not None and attempt.offer["spot"]
    ]
    taken = rng.sample(spot, len(spot) // 4)
    for attempt in taken:
        world.take_back(attempt)
    await world.settle({attempt.job_id: attempt.number + 1 for attempt in taken})

    world.listed.clear()
    await _sweep(world)
    await _sweep(world)
    assert set(world.listed.values()) == {2}
    assert len(world.listed) == 4

    await world.leap(HELD_SECONDS)
    terminated = set()
    for job_id, (state, last) in (await world.newest()).items():
        if state in TERMINAL:
            continue
        assert last is not None
        if jobs[job_id][1] == "ssh" or rng.random() < 0.2:
            terminated.add(job_id)
            await plane.terminate(job_id)
        else:
            world.release(last)
    broken = 0
    for job_id, (number, where) in jobs.items():
        job = await plane.until_terminal(job_id, seconds=120)
        await plane.until_gone(job_id, seconds=120)
        if job["state"] == "failed" and job["reason"]["message"] == BROKEN:
            broken += 1
        elif job_id in terminated:
            assert job["state"] == "terminated", job
        else:
            status = number % 2 if where != "any" else 0
            assert (job["state"], job.get("exit_code")) == ("failed" if status else "succeeded", status), (where, job)
    assert broken == world.spoiled["boot"]
    assert len(taken) > 5
    assert all(world.spoiled[kind] for kind in ("capacity", "rate limit", "lost create", "5xx", "boot"))
    await _assert_nothing_left(world)
    await _assert_billed(world)


async def _assert_nothing_left(world: World) -> None:
    assert world.aws.instances() == []
    assert not [v for v in world.aws.backend("us-east-1").volumes.values() if v.get_tags()]
    assert (world.gcp.cloud.machines, world.gcp.cloud.disks) == ({}, {})
    assert [r for r in world.runpod.account.cloud.resources.values() if not r.gone] == []
    assert world.fleet.hosts["four"].podman("ps", "--all", "--quiet") == ""
    for connection_id, found in (await _sweep(world)).items():
        assert found.startswith(f"{connection_id}: 0 instances, 0 orphans deleted"), found


async def _assert_billed(world: World) -> None:
    """Each job's ledger is what the clouds billed for its attempts."""
    attempts, entries = await world.plane.services.db.read(
        lambda s: (s.exec(select(Instance)).all(), s.exec(select(LedgerEntry)).all())
    )
    of = {attempt.id: attempt for attempt in attempts}
    billed: dict[str, Fraction] = {}
    machines: Counter[str] = Counter()

    def bill(attempt_id: str, usd: Fraction) -> None:
        billed[of[attempt_id].job_id] = billed.get(of[attempt_id].job_id, Fraction(0)) + usd
        machines[of[attempt_id].offer["provider"]] += 1

    def seconds_of(attempt_id: str, seconds: float) -> Fraction:
        return Fraction(of[attempt_id].offer["price_usd_hr"]) * math.ceil(seconds) / 3600

    for pod in world.runpod.account.cloud.instances():
        bill(str(pod.labels["attempt"]), world.runpod.account.cloud.bill(pod))
    for machine in world.aws.bill:
        bill(machine.attempt, machine.usd)
    for charge in world.gcp.cloud.bill:
        attempt_id = next(id_ for id_ in of if id_ in charge.name)
        assert charge.ended_at is not None
        bill(attempt_id, seconds_of(attempt_id, charge.ended_at - charge.started_at))
    assert all(machines[provider] > 10 for provider in ("aws", "gcp", "runpod")), machines

    ledger: dict[str, Fraction] = {}
    for entry in entries:
        attos = attos_of(entry.whole, entry.nano, entry.atto)
        ledger[entry.resource_id] = ledger.get(entry.resource_id, Fraction(0)) + Fraction(attos, HOUR_OF_ATTOS)
    for job_id in {attempt.job_id for attempt in attempts if attempt.offer["provider"] != "ssh"}:
        own = [attempt for attempt in attempts if attempt.job_id == job_id]
        if any(attempt.offer["provider"] == "ssh" and attempt.allocated_at for attempt in own):
            continue
        slack = sum(Fraction(attempt.offer["price_usd_hr"]) for attempt in own) * SLACK_SECONDS / 3600
        charged, wanted = ledger.get(job_id, Fraction(0)), billed.get(job_id, Fraction(0))
        assert abs(charged - wanted) <= slack, (job_id, float(charged), float(wanted), own)
