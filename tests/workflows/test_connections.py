"""Backends are connected, used and removed while the control plane runs: by the API, as an administrator does it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from temporalio.client import Client

import activities.connections
from activities.connections import ConnectionKeeper
from domain import backends
from domain.roles import Role
from domain.states import JobState
from providers.base import ProviderContext
from providers.connected import ConnectedProvider
from providers.fake.cloud import CloudSettings
from providers.fake.control import CloudControl
from providers.fake.server import RunningCloud, serve
from store.access import create_key, create_organization
from store.tables import Connection
from tests.providers.connectable import SIMULATED, installed
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod, serve_runpod
from tests.providers.runpod_support import IMPATIENT
from tests.support.agent_listener import agents_served, listening
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

PATH = "/api/compute/cloud/backends"
KEY = "canary-key-of-the-cloud-7d"
RTX_4090 = {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 20}


@pytest.fixture(autouse=True)
def _third_party(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("site"), monkeypatch):
        assert backends.catalog()["fake"] is SIMULATED
        yield


@pytest.fixture
async def cloud() -> AsyncIterator[RunningCloud]:
    async with serve(CloudSettings(api_key=KEY)) as running:
        yield running


@pytest.fixture
async def runpod() -> AsyncIterator[RunningRunPod]:
    async with serve_runpod() as running:
        yield running


@pytest.fixture
async def plane(
    sqlite_url: str, temporal_address: str, cloud: RunningCloud, runpod: RunningRunPod
) -> AsyncIterator[ControlPlane]:
    """A control plane without any backend, and a URL at which agents reach it."""
    listener, url = listening()
    async with (
        control_plane(sqlite_url, temporal_address, public_url=url) as running,
        agents_served(running, listener),
    ):
        yield running
        await assert_invariants(running)


async def connect(
    plane: ControlPlane, cloud: RunningCloud, *, key: str = KEY, client: httpx.AsyncClient | None = None, **body: Any
) -> httpx.Response:
    plane.cloud = plane.cloud or CloudControl(cloud.url)
    body = {"provider": "fake", "fields": {"url": cloud.url, "api_key": key}, **body}
    return await (client or plane.client).post(PATH, json=body)


async def loaded(plane: ControlPlane, connection_id: str, *, wanted: bool = True) -> None:
    assert plane.context is not None
    known = plane.context.providers.by_connection

    async def there() -> bool:
        return (connection_id in known) is wanted

    await until(there, seconds=10, what=f"{connection_id} loaded: {wanted}")


async def schedules(client: Client, connection_id: str) -> set[str]:
    return {s.id async for s in await client.list_schedules() if connection_id in s.id}


async def test_a_connected_backend_runs_jobs_and_is_removed_with_them(plane: ControlPlane, cloud: RunningCloud) -> None:
    answer = await connect(plane, cloud, cluster=True)
    assert (answer.status_code, answer.json()["state"]) == (201, "connected")
    connection_id = answer.json()["id"]
    await loaded(plane, connection_id)
    both = {f"offers-{connection_id}", f"reconcile-{connection_id}"}
    await until(lambda: _equal(schedules(plane.temporal, connection_id), both), what="schedules")
    job_id = await plane.fake(run_seconds=600)
    await plane.until_state(job_id, JobState.RUNNING)
    (attempt,) = await plane.attempts(job_id)
    assert attempt.connection_id == connection_id

    refused = await plane.client.delete(f"{PATH}/{connection_id}")
    assert (refused.status_code, refused.json()["error"]["details"]["jobs"][0]["id"]) == (409, job_id)
    removed = await plane.client.delete(f"{PATH}/{connection_id}", params={"force": "terminate"})
    assert (removed.status_code, removed.json()["state"]) == (202, "removing")
    assert (await plane.until_terminal(job_id))["state"] == "terminated"
    await plane.until_gone(job_id)
    await loaded(plane, connection_id, wanted=False)
    assert (await plane.client.get(f"{PATH}/{connection_id}")).status_code == 404
    await until(lambda: _equal(schedules(plane.temporal, connection_id), set()), what="no schedules")
    assert plane.cloud is not None
    assert await plane.cloud.alive() == []


async def _equal(answer: Any, wanted: Any) -> bool:
    return bool(await answer == wanted)


async def test_refused_credentials_are_told_in_the_providers_words_and_wiped(
    plane: ControlPlane, cloud: RunningCloud
) -> None:
    answer = await connect(plane, cloud, key="canary-wrong-key")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "verification_failed")
    assert "Simulated did not accept it (auth)" in error["message"]
    assert "canary" not in answer.text
    (row,) = (await plane.client.get(PATH)).json()["data"]
    assert row["state"] == "failed"
    stored = await plane.services.db.read(lambda s: s.get_one(Connection, row["id"]))
    assert (stored.candidate_sealed, stored.credentials_sealed) == (None, None)
    history = await plane.temporal.get_workflow_handle(f"verify-{row['id']}-1").fetch_history()
    assert "canary" not in history.to_json()


async def test_an_edit_reaches_a_running_worker_without_harm_to_what_runs(
    plane: ControlPlane, cloud: RunningCloud
) -> None:
    connection_id = (await connect(plane, cloud)).json()["id"]
    await loaded(plane, connection_id)
    job_id = await plane.fake(run_seconds=600)
    await plane.until_state(job_id, JobState.RUNNING)
    assert plane.context is not None
    assert plane.cloud is not None
    provider = plane.context.providers.by_connection[connection_id]
    assert isinstance(provider, ConnectedProvider)
    former = provider._held
    path = f"{PATH}/{connection_id}"
    refused = await plane.client.put(path, json={"fields": {"api_key": "another"}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "verification_failed")
    await plane.cloud.settings(api_key="another")
    edited = await plane.client.put(path, json={"fields": {"api_key": "another"}})
    assert (edited.status_code, edited.json()["state"]) == (200, "connected")

    async def replaced() -> bool:
        return provider._held is not former and former.retired

    await until(replaced, seconds=10)
    assert plane.context.providers.by_connection[connection_id] is provider
    verified = await plane.client.post(f"{path}/verify")
    assert verified.json()["verification"]["status"] == "ok"
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert await plane.cloud.alive() == []


async def test_a_job_is_never_placed_on_what_another_organization_connected(
    plane: ControlPlane, cloud: RunningCloud
) -> None:
    now = plane.services.clock()
    made = await plane.services.db.write(lambda s: create_organization(s, "others", now, enabled=True).id)
    key = await plane.services.db.write(lambda s: create_key(s, made, "them", Role.ORG_ADMIN, now))
    headers = {"Authorization": f"Bearer {key.token}"}
    transport = plane.client._transport
    async with httpx.AsyncClient(transport=transport, base_url="http://headrace", headers=headers) as other:
        answer = await connect(plane, cloud, client=other)
        assert answer.status_code == 201
        await loaded(plane, answer.json()["id"])
        job_id = await plane.fake()
        job = await plane.until_terminal(job_id)
        assert (job["state"], job["reason"]["code"]) == ("failed", "capacity_unavailable")
        assert "no backend is connected" in job["reason"]["message"]
        assert await plane.attempts(job_id) == []
        container = {"image": "registry.example/app:1", "command": ["fake", json.dumps({"status": 0})]}
        body = {
            "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
            "container": container,
        }
        created = await other.post("/api/v1/compute/jobs", json=body, headers={"Idempotency-Key": "k"})
        await plane.until_state(created.json()["id"], JobState.SUCCEEDED)
        await plane.until_gone(created.json()["id"])


async def test_a_job_waits_for_a_connection_that_its_worker_has_not_heard_of(
    plane: ControlPlane, cloud: RunningCloud
) -> None:
    assert plane.context is not None
    assert plane._keeper_task is not None
    plane._keeper_task.cancel()
    connection_id = (await connect(plane, cloud)).json()["id"]
    assert connection_id not in plane.context.providers.by_connection
    job_id = await plane.fake()

    async def looked_in_vain() -> bool:
        return await plane.state(job_id) is JobState.ALLOCATING and plane.context is not None

    await until(looked_in_vain, seconds=10)
    await asyncio.sleep(0.3)
    await ConnectionKeeper(plane.context).refresh()
    await plane.until_state(job_id, JobState.SUCCEEDED)
    await plane.until_gone(job_id)


async def test_a_gpu_is_had_from_runpod_by_its_name_once_it_is_connected(
    plane: ControlPlane, runpod: RunningRunPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    _point_at(runpod, monkeypatch)
    plane.cloud = CloudControl(runpod.url)
    body = {"provider": "runpod", "fields": {"api_key": API_KEY}}
    answer = await plane.client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["state"]) == (201, "connected")
    container = {"image": "registry.example/app:1", "command": ["fake", json.dumps({"stdout": "loss 0.5\n"})]}
    job_id = await plane.create(compute=RTX_4090, container=container)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert (job["state"], job["provider"]) == ("succeeded", "runpod")
    assert await plane.log_text(job_id) == "loss 0.5\n"
    path = f"{PATH}/{answer.json()['id']}"

    async def polled() -> bool:
        health = (await plane.client.get(path)).json()["health"]
        return bool(health["status"] == "healthy" and health["offer_count"] > 0)

    await until(polled, what="a poll")
    assert (await plane.client.delete(path)).status_code == 204
    await loaded(plane, answer.json()["id"], wanted=False)
    assert await plane.cloud.alive() == []


def _point_at(runpod: RunningRunPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter as it is, at another address, and less patient."""

    def context(connection_id: str, owner_id: str, data_dir: str, **given: Any) -> ProviderContext:
        return ProviderContext(connection_id, owner_id, data_dir, dict(IMPATIENT), **given)

    monkeypatch.setattr(activities.connections, "ProviderContext", context)
    monkeypatch.setattr("providers.runpod.provider.RunPodEndpoints", lambda: runpod.endpoints)


def test_neither_api_nor_worker_load_a_vendors_sdk_before_it_is_connected() -> None:
    look = (
        "import sys, worker, api.server, activities.connections, providers.connect\n"
        "from domain.backends import catalog\n"
        "assert len(catalog()) >= 9\n"
        "heavy = {'boto3', 'botocore', 'google.cloud.compute_v1', 'runpod', 'moto', 'asyncssh'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "ours = {n for n in sys.modules if n.startswith('providers.')}\n"
        "adapters = ('providers.aws', 'providers.gcp', 'providers.runpod', 'providers.ssh')\n"
        "assert not any(n.startswith(adapters) for n in ours), ours\n"
    )
    subprocess.run([sys.executable, "-c", look], check=True, timeout=60)
