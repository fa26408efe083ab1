"""An account at AWS is connected, used, edited and given up, through the API: boto3 itself against moto, and machines
that run the real host agent and the real agent."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from moto.ec2.models.instances import Instance

from activities import connections
from domain.states import JobState
from providers.base import ProviderContext
from tests.providers import aws_server, host_box
from tests.providers.aws_server import AwsServer, Fault, error_for
from tests.providers.aws_support import CREDENTIALS, SECRET_KEY, SERVICES
from tests.support.agent_listener import agents_served, listening
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

BACKENDS = "/api/compute/cloud/backends"
CPU = {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 2, "ephemeral_disk_gb": 20}
NEW_SECRET_KEY = "canary/new+secret/9be2"


class Boxes:
    """What happens on the instances: they execute their user data, and power themselves off at its end."""

    def __init__(self, aws: AwsServer) -> None:
        self._aws = aws
        self._directory = Path(tempfile.mkdtemp(prefix="aws-"))
        self._loop = asyncio.get_running_loop()
        self._lives: list[asyncio.Future[None]] = []
        aws.booted = lambda instance, data: self._loop.call_soon_threadsafe(self._start, instance)

    def _start(self, instance: Instance) -> None:
        self._lives.append(asyncio.ensure_future(self._live(instance)))

    async def _live(self, instance: Instance) -> None:
        box = self._directory / str(instance.id)
        process = await host_box.boot(box, self._aws.script(instance))
        ending = asyncio.ensure_future(process.wait())
        try:
            while not ending.done() and instance.state != "terminated":
                await asyncio.wait([ending], timeout=0.05)
        finally:
            host_box.cut_power(box)
            await ending
        if instance.state != "terminated":
            self._aws.end(instance, "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: shut down")

    async def close(self) -> None:
        self._aws.booted = lambda instance, data: None
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)


@pytest.fixture
async def plane_and_aws(
    sqlite_url: str, temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ControlPlane, AwsServer]]:
    """A control plane without a backend, which finds AWS here. In the end AWS has nothing, and charges for nothing."""
    listener, url = listening()
    async with contextlib.AsyncExitStack() as stack:
        aws, aws_url = stack.enter_context(aws_server.serve())
        aws.clear()
        boxes = Boxes(aws)
        stack.push_async_callback(boxes.close)
        options = {"look_pause_seconds": 0.01, "endpoints": dict.fromkeys(SERVICES, aws_url)}
        monkeypatch.setattr(connections, "ProviderContext", partial(ProviderContext, options=options))
        plane = await stack.enter_async_context(control_plane(sqlite_url, temporal_address, public_url=url))
        await stack.enter_async_context(agents_served(plane, listener))
        yield plane, aws
        await assert_invariants(plane)
        assert (aws.instances(), aws.groups()) == ([], [])
        assert not [v for v in aws.backend("us-east-1").volumes.values() if v.get_tags()]
        assert [charge for charge in aws.bill if charge.ended_at is None] == []


async def submit(plane: ControlPlane, command: str) -> str:
    container = {"image": "registry.example/app:1", "command": ["bash", "-c", command]}
    return await plane.create(compute=CPU, container=container)


async def test_an_account_is_connected_used_edited_and_given_up_with_what_runs_in_it(
    plane_and_aws: tuple[ControlPlane, AwsServer],
) -> None:
    plane, aws = plane_and_aws
    fields = {
        "access_key_id": CREDENTIALS.access_key_id, "secret_access_key": SECRET_KEY, "regions": ["us-east-1"],
    }  # fmt: skip
    answer = await plane.client.post(BACKENDS, json={"provider": "aws", "fields": fields})
    assert (answer.status_code, answer.json()["state"]) == (201, "connected"), answer.text
    assert "canary" not in answer.text
    path = f"{BACKENDS}/{answer.json()['id']}"

    async def polled() -> bool:
        health = (await plane.client.get(path)).json()["health"]
        return bool(health["status"] == "healthy" and health["offer_count"] > 0)

    await until(polled, what="a poll")
    job_id = await submit(plane, "for n in {1..200}; do echo loss $n; done; exit 3")
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id, seconds=60)
    assert (job["state"], job["exit_code"], job["provider"]) == ("failed", 3, "aws"), job
    assert await plane.log_text(job_id) == "".join(f"loss {number}\n" for number in range(1, 201))

    held = await submit(plane, "sleep 600")
    await plane.until_state(held, JobState.RUNNING, seconds=60)
    refusal = "AWS was not able to validate the provided access credentials"
    aws.faults.append(Fault("verify", before=lambda call: error_for(call, 403, "InvalidClientTokenId", refusal)))
    edit = {"fields": {"secret_access_key": NEW_SECRET_KEY}}
    refused = await plane.client.put(path, json=edit)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "verification_failed")
    assert refusal in refused.text
    edited = await plane.client.put(path, json=edit)
    assert (edited.status_code, edited.json()["state"]) == (200, "connected")
    assert "canary" not in refused.text + edited.text
    assert await plane.state(held) is JobState.RUNNING

    denied = await plane.client.delete(path)
    assert (denied.status_code, denied.json()["error"]["details"]["jobs"][0]["id"]) == (409, held)
    assert (await plane.client.delete(path, params={"force": "terminate"})).status_code == 202
    assert (await plane.until_terminal(held, seconds=60))["state"] == "terminated"
    await plane.until_gone(held, seconds=60)

    async def removed() -> bool:
        return (await plane.client.get(path)).status_code == 404

    await until(removed, what="the removal")
