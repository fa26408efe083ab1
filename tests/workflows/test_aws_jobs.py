"""Jobs on EC2, through the whole control plane: boto3 itself against moto, agents that come over the network."""

import asyncio
import gzip
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from moto.ec2.models.instances import Instance

from api.agent import create_agent_app
from domain.states import JobState
from providers.aws.provider import AwsProvider
from providers.fake.agent import run_agent
from providers.fake.script import AgentScript
from tests.providers import aws_server
from tests.providers.aws_server import AwsServer, Fault, ec2_error
from tests.providers.aws_support import aws_provider
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

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
    """A control plane with EC2 as its only backend, and a URL at which agents reach it."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    waits = {"create_timeout_seconds": 20, "provisioning_timeout_seconds": 30, "launch_timeout_seconds": 20}
    async with control_plane(sqlite_url, temporal_address, public_url=url, **waits) as running:
        assert running.context is not None
        provider: AwsProvider = aws_provider(running_aws[1], running.context.owner_id)
        running.context.providers.by_connection["aws-1"] = provider
        running.cloud = machines  # type: ignore[assignment]
        config = uvicorn.Config(create_agent_app(running.services), lifespan="off", log_level="warning")
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            yield running
            await assert_invariants(running)
        finally:
            server.force_exit = True
            await server.shutdown(sockets=[listener])


async def submit(plane: ControlPlane, script: dict[str, Any], **changes: Any) -> str:
    container = {"image": "registry.example/app:1", "command": ["fake", json.dumps(script)]}
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


async def test_a_spot_machine_that_was_taken_back_is_replaced(plane: ControlPlane, aws: AwsServer) -> None:
    retry = {"on_preemption": True, "max_attempts": 2}
    job_id = await submit(plane, {"run_seconds": 600}, placement={"spot": "only"}, retry=retry)
    await plane.until_state(job_id, JobState.RUNNING)
    (first,) = await plane.attempts(job_id)
    aws.end(aws.instance(first.id), "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: taken back")

    async def replaced() -> bool:
        return len(await plane.attempts(job_id)) == 2

    await until(replaced, what="a second attempt")
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.terminate(job_id)
    await finished(plane, aws, job_id)
    assert (await plane.attempts(job_id))[0].reason_code == "preempted"


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
