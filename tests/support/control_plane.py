"""The whole control plane in one process, for tests: API and agent socket, dispatcher, worker, a real Temporal server.

Each part can be stopped and started by itself, as its process would be. The provider is the fake cloud or this machine.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from sqlmodel import Session, select
from temporalio.client import Client
from temporalio.worker import Worker

from activities.connections import ConnectionKeeper
from activities.context import Context
from activities.schedules import ConnectionSchedules
from api.agent import create_agent_app
from api.app import create_app
from api.server import duties
from api.services import Services
from domain.clock import Clock, utc_now
from domain.ids import new_id
from domain.states import TERMINAL, JobState
from providers.fake.control import CloudControl
from settings import Settings
from store.bootstrap import first_start
from store.db import Database
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.tables import Instance, Job, JobEvent
from store.temporal import connect
from store.vault import Vault
from worker import build_providers, build_worker

# Real code, shorter waits: what takes a minute in production takes a second here.
SCALED: dict[str, Any] = {
    "local_enabled": False,
    "provisioning_timeout_seconds": 10,
    "launch_timeout_seconds": 5,
    "contact_timeout_seconds": 2,
    "heartbeat_interval_seconds": 0.5,
    "orders_wait_seconds": 5,
    "finalize_grace_seconds": 3,
    "terminate_drain_seconds": 0.5,
    "create_timeout_seconds": 3,
    "absence_gap_seconds": 0.1,
    "delete_accept_seconds": 1,
    "sweep_interval_seconds": 0.3,
    "capacity_wait_seconds": 3,
    "recover_interval_seconds": 1,
    "connections_interval_seconds": 0.3,
    "orphan_grace_seconds": 0,
    "log_format": "console",
}

_SHUTDOWN_SECONDS = 60.0
"""Longer than any worker takes to end, shorter than a test may take: one that hangs is told of, not waited for."""

CPU_JOB: dict[str, Any] = {
    "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
    "container": {"image": "localhost/headrace/host:latest", "command": ["true"]},
}


@dataclass
class ControlPlane:
    """A running control plane with a client. `api` and `worker` parts stop and start by themselves."""

    settings: Settings
    services: Services
    temporal: Client
    client: httpx.AsyncClient
    org_id: str
    cloud: CloudControl | None = None
    context: Context | None = None
    _api: list["asyncio.Task[None]"] = field(default_factory=list)
    _agent_server: uvicorn.Server | None = None
    _worker: Worker | None = None
    _worker_task: "asyncio.Task[None] | None" = None
    _keeper_task: "asyncio.Task[None] | None" = None

    # Parts --------------------------------------------------------------------------------------------------------

    async def start_api(self) -> None:
        """The agents' socket, and all that the API process does beside answering requests."""
        app = create_agent_app(self.services)
        config = uvicorn.Config(app, uds=str(self.settings.agent_socket), lifespan="off", log_level="warning")
        config.load()
        self._agent_server = uvicorn.Server(config)
        self._agent_server.lifespan = config.lifespan_class(config)
        await self._agent_server.startup()
        loops = [*duties(self.services), self._tick(self._agent_server)]
        self._api = [asyncio.create_task(loop) for loop in loops]

    async def _tick(self, server: uvicorn.Server) -> None:
        counter = 0
        while not await server.on_tick(counter):
            counter = (counter + 1) % 864_000
            await asyncio.sleep(0.1)

    async def stop_api(self) -> None:
        """As a kill would: held polls are cut, nothing is flushed."""
        for task in self._api:
            task.cancel()
        await asyncio.gather(*self._api, return_exceptions=True)
        assert self._agent_server is not None
        self._agent_server.force_exit = True
        for connection in list(self._agent_server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._agent_server.shutdown()
        self._api, self._agent_server = [], None

    async def start_worker(self) -> None:
        assert self.context is not None
        assert await self.context.is_the_one()
        self._worker = build_worker(self.temporal, self.context)
        self._worker_task = asyncio.create_task(self._worker.run())
        keeper = ConnectionKeeper(self.context)
        await keeper.refresh()
        schedules = ConnectionSchedules(self.temporal, self.settings)
        self._keeper_task = asyncio.create_task(keeper.run(schedules))

    async def stop_worker(self) -> None:
        assert self._worker is not None
        if self._keeper_task is not None:
            self._keeper_task.cancel()
            await asyncio.gather(self._keeper_task, return_exceptions=True)
        assert self._worker_task is not None
        try:
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await self._worker.shutdown()
                await self._worker_task
        except TimeoutError:
            self._worker_task.cancel()
            raise AssertionError(f"the worker did not end within {_SHUTDOWN_SECONDS:g} s") from None

    # A client's view ----------------------------------------------------------------------------------------------

    async def create(self, body: dict[str, Any] | None = None, *, key: str | None = None, **changes: Any) -> str:
        """Submits a job, answers its id. `changes` replace top-level fields of the body."""
        answer = await self.client.post(
            "/api/v1/compute/jobs",
            json={**(body or CPU_JOB), **changes},
            headers={"Idempotency-Key": key or new_id("k")},
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def fake(self, **script: Any) -> str:
        """Submits a job whose simulated agent follows `script` (see `providers.fake.script`)."""
        changes = {k: script.pop(k) for k in ("limits", "retry", "placement", "name", "labels") if k in script}
        container = {"image": "registry.example/app:1", "command": ["fake", json.dumps(script)]}
        return await self.create(container=container, **changes)

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/api/v1/compute/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def terminate(self, job_id: str) -> dict[str, Any]:
        answer = await self.client.post(f"/api/v1/compute/jobs/{job_id}/terminate")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def log_text(self, job_id: str, source: str | None = "user") -> str:
        """The whole log, one line each, all pages."""
        lines, cursor = [], None
        while True:
            params = {k: v for k, v in (("source", source), ("cursor", cursor), ("limit", 1000)) if v is not None}
            page = (await self.client.get(f"/api/v1/compute/jobs/{job_id}/logs", params=params)).json()
            lines += [line["message"] for line in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return "".join(f"{line}\n" for line in lines)

    # Rows and waits -----------------------------------------------------------------------------------------------

    async def events(self, job_id: str, kind: str | None = None) -> list[JobEvent]:
        def query(session: Session) -> list[JobEvent]:
            rows = session.exec(select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.seq)).all()
            return [row for row in rows if kind in (None, row.type)]

        return await self.services.db.read(query)

    async def attempts(self, job_id: str) -> list[Instance]:
        return await self.services.db.read(
            lambda s: list(s.exec(select(Instance).where(Instance.job_id == job_id).order_by(Instance.number)).all())
        )

    async def state(self, job_id: str) -> JobState:
        return JobState(await self.services.db.read(lambda s: s.get_one(Job, job_id).state))

    async def until_state(self, job_id: str, *states: JobState, seconds: float = 30) -> JobState:
        """Waits for one of the states; a terminal state that is not among them fails at once."""
        state = JobState.REQUESTED

        async def reached() -> bool:
            nonlocal state
            state = await self.state(job_id)
            assert state in states or not state.terminal, f"{job_id} ended as {state}: {await self.job(job_id)}"
            return state in states

        await until(reached, seconds=seconds, what=lambda: f"{job_id} is {state}, wanted {states}")
        return state

    async def until_terminal(self, job_id: str, seconds: float = 30) -> dict[str, Any]:
        """The finished job's record."""
        await self.until_state(job_id, *TERMINAL, seconds=seconds)
        return await self.job(job_id)

    async def until_gone(self, job_id: str, seconds: float = 30) -> None:
        """Waits until every attempt of the job is confirmed absent."""

        async def gone() -> bool:
            return all(a.confirmed_absent_at is not None for a in await self.attempts(job_id))

        await until(gone, seconds=seconds, what=lambda: f"{job_id}: an attempt is not confirmed absent")


async def until(condition: Callable[[], Any], *, seconds: float = 30, what: Callable[[], str] | str = "") -> None:
    """Polls an async condition; fails with what was awaited."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await condition():
        if loop.time() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def control_plane(
    database_url: str,
    temporal_address: str,
    *,
    cloud_url: str | None = None,
    vault: Vault | None = None,
    clock: Clock = utc_now,
    **overrides: Any,
) -> AsyncIterator[ControlPlane]:
    """Starts all parts; at the end stops them. The database must hold the tables."""
    # A short path: a Unix socket's may have 107 bytes.
    data_dir = Path(tempfile.mkdtemp(prefix="headrace-"))
    settings = Settings(
        **{**SCALED, "task_queue": new_id("queue"), "data_dir": data_dir, "database_url": database_url,
           "temporal_address": temporal_address, "fake_provider_url": cloud_url, **overrides}
    )  # fmt: skip
    settings.agent_dir.mkdir()
    db, vault = Database(database_url), vault or Vault.parse(Vault.generate())
    started = await asyncio.to_thread(first_start, db, clock())
    assert started is not None
    blobs = open_blob_store(settings.segment_url)
    logs = LogStore(db, blobs, clock, max_bytes=settings.log_max_bytes)
    temporal = await connect(settings, vault)
    services = Services(settings, db, vault, logs, clock, temporal)
    providers = build_providers(settings, started.owner_id)
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(services)),
        base_url="http://headrace",
        headers={"Authorization": f"Bearer {started.api_key}"},
        timeout=60,
    )
    plane = ControlPlane(
        settings, services, temporal, client, started.org_id,
        cloud=CloudControl(cloud_url) if cloud_url else None,
        context=Context(settings, db, vault, logs, blobs, clock, providers, started.owner_id),
    )  # fmt: skip
    try:
        await plane.start_api()
        await plane.start_worker()
        yield plane
    finally:
        if plane._worker_task is not None and not plane._worker_task.done():
            await plane.stop_worker()
        if plane._agent_server is not None:
            await plane.stop_api()
        await client.aclose()
        if plane.cloud is not None:
            await plane.cloud.close()
        await providers.close()
        db.close()
        shutil.rmtree(data_dir, ignore_errors=True)
