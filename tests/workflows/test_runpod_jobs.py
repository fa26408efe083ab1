"""Jobs on RunPod pods, through the whole control plane: real calls of both APIs, agents that come over the network."""

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx
import pytest
from sqlmodel import select

from domain.clock import Clock, utc_now
from domain.ids import AttemptId
from domain.states import JobState
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from store.ledger import attos_of
from store.tables import LedgerEntry
from tests.providers.runpod_fake.server import RunningRunPod, serve_runpod
from tests.providers.runpod_support import make_runpod
from tests.support.agent_listener import agents_served, listening
from tests.support.clock import SettableClock
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

HOUR_OF_ATTOS = 3600 * 10**18
RTX_4090 = {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 20}


@pytest.fixture
async def runpod() -> AsyncIterator[RunningRunPod]:
    async with serve_runpod() as running:
        yield running


@pytest.fixture
async def plane(sqlite_url: str, temporal_address: str, runpod: RunningRunPod) -> AsyncIterator[ControlPlane]:
    async with plane_on(runpod, sqlite_url, temporal_address) as running:
        yield running


@contextlib.asynccontextmanager
async def plane_on(
    runpod: RunningRunPod, database_url: str, temporal_address: str, clock: Clock = utc_now, **settings: Any
) -> AsyncIterator[ControlPlane]:
    """A control plane with RunPod as its only backend, and a URL at which agents reach it."""
    listener, url = listening()
    async with control_plane(database_url, temporal_address, clock=clock, public_url=url, **settings) as running:
        assert running.context is not None
        provider = make_runpod(runpod, running.context.owner_id)
        running.context.providers.by_connection["conn-runpod"] = provider
        running.cloud = CloudControl(runpod.url)
        async with agents_served(running, listener):
            yield running
            await assert_invariants(running)


async def submit(plane: ControlPlane, script: dict[str, Any], **changes: Any) -> str:
    container = {"image": "registry.example/app:1", "command": ["fake", json.dumps(script)]}
    return await plane.create(compute=RTX_4090, container=container, **changes)


async def test_a_job_runs_on_a_pod_and_gives_it_back(plane: ControlPlane, runpod: RunningRunPod) -> None:
    job_id = await submit(plane, {"stdout": "loss 0.5\n", "repeat": 3, "status": 3})
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert await plane.log_text(job_id) == "loss 0.5\n" * 3
    assert plane.cloud is not None
    assert await plane.cloud.alive() == []


async def test_a_cpu_pod_that_turns_out_too_dear_is_given_back_and_the_next_offer_taken(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.fault("create", price_usd_hr="5", times=1)
    job_id = await plane.create(
        compute={"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 3, "ephemeral_disk_gb": 40},
        container={"image": "registry.example/app:1", "command": ["fake", json.dumps({"status": 0})]},
        placement={"max_price_usd_hr": 1},
    )
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert job["state"] == "succeeded"
    offers = [attempt.offer for attempt in await plane.attempts(job_id)]
    assert [(offer["provider_sku"], offer["vcpus"]) for offer in offers] == [("cpu3g|SECURE", 4)] * 2
    assert offers[0]["id"] != offers[1]["id"]
    assert await plane.cloud.alive() == []


async def test_a_private_image_leaves_no_credential(plane: ControlPlane) -> None:
    container = {
        "image": "registry.example/app:1",
        "command": ["fake", json.dumps({"status": 0})],
        "registry_credential": {"username": "robot", "password": "canary-registry-password"},
    }
    job_id = await plane.create(compute=RTX_4090, container=container)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert job["state"] == "succeeded"
    assert plane.cloud is not None
    assert [r["type"] for r in await plane.cloud.resources()] == ["registry", "instance"]
    assert await plane.cloud.alive() == []


async def test_the_direct_port_of_a_pod_is_the_jobs_ssh_once_its_sshd_serves(plane: ControlPlane) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPXjAT7RzM2DvV7JhV8CmgGFVR4mdxpKk6h2pCuVtuSF"
    ports = [{"name": "web", "container_port": 8000, "protocol": "http"}]
    container = {"image": "registry.example/app:1", "command": ["fake", json.dumps({"run_seconds": 600})]}
    job_id = await plane.create(
        compute=RTX_4090, container={**container, "ports": ports}, access={"ssh_public_key": f"{key} me"}
    )
    await plane.until_state(job_id, JobState.RUNNING)
    await until(lambda: _endpoints(plane, job_id), what="the endpoints are known")
    shown = await plane.job(job_id)
    assert [endpoint["name"] for endpoint in shown["endpoints"]] == ["web"]
    assert "ssh" not in shown
    (attempt,) = await plane.attempts(job_id)
    assert attempt.nonce is not None
    token = plane.services.vault.session_token(AttemptId(attempt.id), attempt.nonce)
    async with httpx.AsyncClient(base_url=str(plane.settings.public_url)) as agent:
        told = await agent.post("/agent/v1/ssh", content=key, headers={"Authorization": f"Bearer {token}"})
    assert told.status_code == 200
    access = (await plane.job(job_id))["ssh"]
    assert (access["host"], access["user"], access["host_key"]) == ("198.51.100.7", "root", key)
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def _endpoints(plane: ControlPlane, job_id: str) -> bool:
    (attempt,) = await plane.attempts(job_id)
    return bool(attempt.endpoints)


async def test_an_outbid_spot_pod_is_replaced(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    job_id = await submit(
        plane, {"run_seconds": 600}, placement={"spot": "only"}, retry={"on_preemption": True, "max_attempts": 2}
    )
    await plane.until_state(job_id, JobState.RUNNING)
    (first,) = await plane.attempts(job_id)
    await plane.cloud.interrupt(first.id)
    await _until_attempts(plane, job_id, 2)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert await plane.cloud.alive() == []


async def test_twenty_jobs_over_a_faulty_api_end_and_leave_nothing(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    spoiled = (
        ("create", Answer.INTERNAL, "after", {"hide_calls": 2}),
        ("create", Answer.RESET, "after", {}),
        ("create", Answer.NO_CAPACITY, "before", {}),
        ("create", Answer.RATE_LIMIT, "before", {}),
        ("delete", Answer.INTERNAL, "after", {}),
        ("delete", Answer.NOT_FOUND, "before", {}),
        ("list", Answer.HTML_502, "before", {}),
        ("get", Answer.UNAVAILABLE, "before", {}),
    )
    for operation, answer, stage, fields in spoiled:
        await plane.cloud.fault(operation, answer, stage=stage, skip=2, times=2, **fields)
    job_ids = [
        await submit(plane, {"stdout": f"{n}\n", "status": n % 2}, placement={"spot": "only" if n % 3 else "never"})
        for n in range(20)
    ]
    for number, job_id in enumerate(job_ids):
        job = await plane.until_terminal(job_id, seconds=90)
        await plane.until_gone(job_id, seconds=90)
        assert (job["state"], job["exit_code"]) == (("failed", 1) if number % 2 else ("succeeded", 0)), job
        assert await plane.log_text(job_id) == f"{number}\n"
    assert await plane.cloud.alive() == []
    struck = {(call["operation"], call["fault"]) for call in await plane.cloud.journal() if call["fault"]}
    assert len(struck) == len(spoiled)


async def test_the_ledger_is_what_runpod_charged(sqlite_url: str, temporal_address: str) -> None:
    """Time stands still, except while the pods run."""
    clock = SettableClock(datetime.now(UTC))
    waits = {"contact_timeout_seconds": 900, "provisioning_timeout_seconds": 900, "launch_timeout_seconds": 900}
    async with serve_runpod(clock) as runpod, plane_on(runpod, sqlite_url, temporal_address, clock, **waits) as plane:
        assert plane.cloud is not None
        await plane.cloud.fault("create", price_usd_hr="0.123456789", skip=1)
        job_ids = []
        for spot in ("never", "never", "only"):
            job_id = await submit(plane, {"run_seconds": 600}, placement={"spot": spot})
            await plane.until_state(job_id, JobState.RUNNING)
            job_ids.append(job_id)
        clock.advance(137.4)
        for job_id in job_ids:
            await plane.terminate(job_id)
            await plane.until_terminal(job_id)
            await plane.until_gone(job_id)
        prices = []
        for job_id in job_ids:
            [attempt] = await plane.attempts(job_id)
            [pod] = await plane.cloud.instances(attempt.id)
            entries = await plane.services.db.read(
                lambda s, job_id=job_id: list(  # type: ignore[misc]
                    s.exec(select(LedgerEntry).where(LedgerEntry.resource_id == job_id)).all()
                )
            )
            attos = sum(attos_of(entry.whole, entry.nano, entry.atto) for entry in entries)
            assert Fraction(attos, HOUR_OF_ATTOS) == Fraction(pod["charged_fraction"])
            prices.append(pod["prices"][0][1])
        assert [Decimal(price) for price in prices] == [Decimal("0.69"), Decimal("0.123456789"), Decimal("0.2")]


async def _until_attempts(plane: ControlPlane, job_id: str, count: int) -> None:
    async def there() -> bool:
        return len(await plane.attempts(job_id)) >= count

    await until(there, what=f"{count} attempts")
