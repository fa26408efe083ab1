"""Jobs on EC2, through the whole control plane: boto3 itself against moto, agents that come over the network."""

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from moto.ec2.models.instances import Instance
from sqlmodel import select
from temporalio.testing import ActivityEnvironment

from activities.reconcile import ReconcileActivities
from domain.clock import Clock, utc_now
from domain.ids import AttemptId
from domain.states import JobState
from providers.aws.provider import AwsProvider
from providers.fake.agent import run_agent
from providers.fake.script import AgentScript
from store.ledger import attos_of
from store.tables import Instance as Attempt
from store.tables import LedgerEntry
from tests.providers import aws_server
from tests.providers.aws_server import Answer, AwsServer, Call, Fault, ec2_error
from tests.providers.aws_support import aws_provider
from tests.support.agent_listener import agents_served, listening
from tests.support.clock import SettableClock
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

HOUR_OF_ATTOS = 3600 * 10**18
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPXjAT7RzM2DvV7JhV8CmgGFVR4mdxpKk6h2pCuVtuSF"
H100 = {"accelerator": "nvidia-h100-80gb", "gpu_count": 8, "ephemeral_disk_gb": 100}


class Machines:
    """What happens on the instances: a simulated agent with what the user data say, then the power goes off. Also what
    the invariants ask of a cloud."""

    def __init__(self, aws: AwsServer) -> None:
        self._aws = aws
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.fault: str | None = None
        aws.booted = self._boot

    def _boot(self, instance: Instance, user_data: bytes) -> None:
        self._loop.call_soon_threadsafe(self._start, instance, gzip.decompress(user_data).decode())

    def _start(self, instance: Instance, script: str) -> None:
        task = asyncio.create_task(self._live(instance, script))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self, instance: Instance, script: str) -> None:
        said = dict(re.findall(r"^(hh_url|hh_token)='(.*)'$", script, re.MULTILINE))
        bootstrap = {"url": said["hh_url"], "token": said["hh_token"]}
        named = SimpleNamespace(id=instance.id, script=AgentScript(fault=self.fault), bootstrap=bootstrap)
        agent = asyncio.create_task(run_agent(named, lambda what: None))  # type: ignore[arg-type]
        while not agent.done() and instance.state != "terminated":
            await asyncio.wait([agent], timeout=0.05)
        agent.cancel()
        if self.fault is not None:
            self._aws.consoles[instance.id] = f"[  OK  ] booted\r\nheadrace-agent: fault: {self.fault}\r\n"
        if instance.state != "terminated":
            self._aws.end(instance, "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: shut down")

    async def instances(self) -> list[dict[str, Any]]:
        return [{"attempt": self._aws.tags(i)["headrace-attempt"], "gone": False} for i in self._aws.instances()]

    async def close(self) -> None:
        self._aws.booted = lambda instance, user_data: None
        for task in self._tasks:
            task.cancel()


@pytest.fixture(scope="module")
def running_aws() -> Iterator[tuple[AwsServer, str]]:
    with aws_server.serve() as running:
        yield running


@pytest.fixture
def aws(running_aws: tuple[AwsServer, str]) -> AwsServer:
    running_aws[0].clear()
    return running_aws[0]


@pytest.fixture
async def machines(aws: AwsServer) -> AsyncIterator[Machines]:
    machines = Machines(aws)
    yield machines
    await machines.close()


@pytest.fixture
async def plane(
    sqlite_url: str, temporal_address: str, running_aws: tuple[AwsServer, str], machines: Machines
) -> AsyncIterator[ControlPlane]:
    async with plane_on(running_aws[1], machines, sqlite_url, temporal_address) as running:
        yield running


@contextlib.asynccontextmanager
async def plane_on(
    aws_url: str, machines: Machines, database_url: str, temporal_address: str, clock: Clock = utc_now, **waits: Any
) -> AsyncIterator[ControlPlane]:
    """A control plane with EC2 as its only backend, and a URL at which agents reach it."""
    listener, url = listening()
    waits = {"create_timeout_seconds": 20, "provisioning_timeout_seconds": 30, "launch_timeout_seconds": 20, **waits}
    async with control_plane(database_url, temporal_address, clock=clock, public_url=url, **waits) as running:
        assert running.context is not None
        provider: AwsProvider = aws_provider(aws_url, running.context.owner_id)
        running.context.providers.by_connection["aws-1"] = provider
        running.cloud = machines  # type: ignore[assignment]
        async with agents_served(running, listener):
            yield running
            await assert_invariants(running)


async def submit(plane: ControlPlane, script: dict[str, Any], **changes: Any) -> str:
    container = {"image": "registry.example/app:1", "command": ["fake", json.dumps(script)], **changes.pop("more", {})}
    return await plane.create(**{"compute": H100, "container": container, **changes})


async def finished(plane: ControlPlane, aws: AwsServer, job_id: str) -> dict[str, Any]:
    """The job's record, once nothing of it is left."""
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)
    assert not [i for a in await plane.attempts(job_id) for i in aws.instances(a.id)]
    return job


async def test_a_job_runs_on_a_machine_and_gives_it_back(plane: ControlPlane, aws: AwsServer) -> None:
    job_id = await submit(plane, {"stdout": "loss 0.5\n", "repeat": 3, "status": 3})
    job = await finished(plane, aws, job_id)
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert await plane.log_text(job_id) == "loss 0.5\n" * 3
    (attempt,) = await plane.attempts(job_id)
    assert attempt.offer["provider_sku"] == "p5.48xlarge"
    assert not [v for v in aws.backend("us-east-1").volumes.values() if v.get_tags()]


async def test_a_spot_machine_that_is_taken_back_is_replaced_with_notice_and_without(
    plane: ControlPlane, aws: AwsServer
) -> None:
    retry = {"on_preemption": True, "max_attempts": 3}
    job_id = await submit(plane, {"run_seconds": 600}, placement={"spot": "only"}, retry=retry)
    for number, told in ((1, False), (2, True)):
        attempt = await running(plane, job_id, number)
        instance = aws.instance(attempt.id)
        if told:
            said = dict(re.findall(r"^(hh_url|hh_token)='(.*)'$", aws.script(instance), re.MULTILINE))
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {said['hh_token']}"}) as host:
                assert (await host.post(f"{said['hh_url']}/agent/v1/notice")).status_code == 200
        aws.end(instance, "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: taken back")
    await running(plane, job_id, 3)
    await plane.terminate(job_id)
    await finished(plane, aws, job_id)
    first, second, _ = await plane.attempts(job_id)
    assert (first.reason_code, second.reason_code) == ("preempted", "preempted")
    (noticed,) = await plane.events(job_id, "interruption_noticed")
    assert noticed.data["instance_id"] == second.id


async def running(plane: ControlPlane, job_id: str, number: int) -> Attempt:
    """The job's attempt of that number, once its workload runs."""
    found: list[Attempt] = []

    async def runs() -> bool:
        found[:] = [a for a in await plane.attempts(job_id) if a.number == number and a.started_at is not None]
        return bool(found)

    await until(runs, what=f"attempt {number}")
    return found[0]


async def test_a_boot_that_fails_gives_the_reason_of_the_host_agent(
    plane: ControlPlane, aws: AwsServer, machines: Machines
) -> None:
    machines.fault = "the image registry.example/app:1 cannot be pulled: manifest unknown"
    job_id = await submit(plane, {})
    job = await finished(plane, aws, job_id)
    assert job["state"] == "failed"
    assert job["reason"]["message"] == machines.fault
    assert f"agent fault: {machines.fault}\n" in await plane.log_text(job_id, "system")


async def test_a_crowd_over_faulty_calls_ends_and_leaves_nothing(plane: ControlPlane, aws: AwsServer) -> None:
    capacity = ec2_error(500, "InsufficientInstanceCapacity", "none left")
    throttle = ec2_error(503, "RequestLimitExceeded", "slow down")
    aws.faults += [
        Fault("create", loss="reset"),
        Fault("create", loss="internal"),
        Fault("create", before=lambda call: capacity),
        Fault("create", before=lambda call: throttle),
        Fault("delete", loss="truncated"),
        Fault("delete", before=lambda call: ec2_error(400, "InvalidInstanceID.NotFound", "no such instance")),
        Fault("get", loss="cut"),
    ]
    jobs = [await submit(plane, {"status": number % 2}) for number in range(8)]
    ended = [await finished(plane, aws, job_id) for job_id in jobs]
    assert [job["exit_code"] for job in ended] == [number % 2 for number in range(8)]
    assert aws.instances() == []
    assert not aws.faults


async def test_a_jobs_ports_and_its_ssh_are_reached_at_the_machine(plane: ControlPlane, aws: AwsServer) -> None:
    ports = [{"name": "web", "container_port": 8000, "protocol": "http"}]
    access = {"ssh_public_key": f"{KEY} me"}
    job_id = await submit(plane, {"run_seconds": 600}, more={"ports": ports}, access=access)
    await plane.until_state(job_id, JobState.RUNNING)

    async def known() -> bool:
        return bool((await plane.attempts(job_id))[0].endpoints)

    await until(known, what="the endpoints")
    (attempt,) = await plane.attempts(job_id)
    address = aws.instance(attempt.id).public_ip
    (web,) = (await plane.job(job_id))["endpoints"]
    assert (web["name"], web["url"]) == ("web", f"http://{address}:8000")
    assert attempt.nonce is not None
    token = plane.services.vault.session_token(AttemptId(attempt.id), attempt.nonce)
    async with httpx.AsyncClient(base_url=str(plane.settings.public_url)) as agent:
        told = await agent.post("/agent/v1/ssh", content=KEY, headers={"Authorization": f"Bearer {token}"})
    assert told.status_code == 200
    ssh = (await plane.job(job_id))["ssh"]
    assert (ssh["host"], ssh["port"], ssh["user"], ssh["host_key"]) == (address, 2222, "root", KEY)
    assert ssh["command"] == f"ssh -p 2222 root@{address}"
    assert len(aws.groups()) == 1
    await plane.terminate(job_id)
    await finished(plane, aws, job_id)
    assert aws.groups() == []


async def test_the_ledger_is_what_ec2_charged(
    sqlite_url: str, temporal_address: str, running_aws: tuple[AwsServer, str], aws: AwsServer, machines: Machines
) -> None:
    """Time stands still, except while the machines run: one on demand, one on spot at a price that moves, one that is
    gone before its first minute is over, and one whose create was answered by an error seconds after it was made."""
    clock = SettableClock(datetime.now(UTC))
    aws.clock = clock
    waits = {"contact_timeout_seconds": 9_000, "provisioning_timeout_seconds": 9_000, "launch_timeout_seconds": 9_000}
    aws.spot_prices["p5.48xlarge"] = "21.123457"

    async def end(job_id: str) -> None:
        await plane.terminate(job_id)
        await finished(plane, aws, job_id)

    def late(call: Call, answer: Answer) -> Answer:
        clock.advance(7.7)
        return answer

    async with plane_on(running_aws[1], machines, sqlite_url, temporal_address, clock, **waits) as plane:
        assert plane.context is not None
        aws.faults.append(Fault("create", spoil=late, loss="internal"))
        jobs: list[str] = []
        for spot in ("never", "never", "only", "only"):
            jobs.append(await submit(plane, {"run_seconds": 600}, placement={"spot": spot}))
            await plane.until_state(jobs[-1], JobState.RUNNING)
        clock.advance(12.3)
        await end(jobs[3])
        clock.advance(125.1)
        aws.price_spot("p5.48xlarge", "19.5")
        await ActivityEnvironment().run(ReconcileActivities(plane.context).reconcile_connection, "aws-1")
        await end(jobs[0])
        await end(jobs[1])
        clock.advance(1_800)
        await end(jobs[2])
        charges = {charge.attempt: charge for charge in aws.bill}
        for job_id, usd in zip(jobs, EXPECTED_USD, strict=True):
            (attempt,) = await plane.attempts(job_id)
            query = select(LedgerEntry).where(LedgerEntry.resource_id == job_id)
            entries = await plane.services.db.read(lambda s, query=query: list(s.exec(query).all()))  # type: ignore[misc]
            attos = sum(attos_of(entry.whole, entry.nano, entry.atto) for entry in entries)
            assert Fraction(attos, HOUR_OF_ATTOS) == charges[attempt.id].usd == usd


EXPECTED_USD = (
    Fraction("55.04") * 146 / 3600,
    Fraction("55.04") * 138 / 3600,
    (Fraction("21.123457") * 138 + Fraction("19.5") * 1_800) / 3600,
    Fraction("21.123457") * 60 / 3600,
)
"""Begun seconds at the price of their beginning, 60 of them at least."""
