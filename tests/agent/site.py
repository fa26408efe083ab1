"""The agent routes on a real Unix socket over a real database, and real agents that talk to them."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from sqlalchemy import delete
from sqlmodel import Session, col, select

from agent.script import agent_script
from api.agent import create_agent_app
from api.agent.orders import OrderBoard
from api.services import Services
from domain.clock import utc_now
from domain.ids import AttemptId
from domain.spec import RegistryCredential, Workload
from domain.states import JobState
from settings import Settings
from store.db import Database
from store.lifecycle import request_termination
from store.logs.blobs import open_blob_store
from store.logs.output_mask import OutputMask
from store.logs.store import Ack, LogLine, LogStore
from store.tables import Instance, Job, JobEvent, LogStream
from store.vault import Vault
from tests.support.factory import Factory
from tests.support.logs import everything


class RecordingLogs(LogStore):
    """The log store, which also keeps the bytes of each stream as they were accepted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accepted: dict[tuple[str, str], bytearray] = {}

    def append_chunk(
        self,
        session: Session,
        instance: Instance,
        stream: str,
        offset: int,
        data: bytes,
        now: datetime,
        mask: OutputMask | None = None,
    ) -> Ack:
        before = self.acked(session, instance.id)[stream]
        ack = super().append_chunk(session, instance, stream, offset, data, now, mask)
        if ack.offset > before:
            self.accepted.setdefault((instance.id, stream), bytearray()).extend(data[before - offset :])
        return ack


@dataclass
class Attempt:
    """A job's attempt, and the agent that was started for it, if one was."""

    site: "Site"
    job: Job
    instance: Instance
    process: asyncio.subprocess.Process | None = None

    @property
    def token(self) -> str:
        return self.site.services.vault.bootstrap_token(AttemptId(self.instance.id))

    async def row(self) -> Instance:
        return await self.site.services.db.read(lambda s: s.get_one(Instance, self.instance.id))

    async def job_row(self) -> Job:
        return await self.site.services.db.read(lambda s: s.get_one(Job, self.job.id))

    async def events(self) -> list[JobEvent]:
        query = select(JobEvent).where(JobEvent.job_id == self.job.id).order_by(col(JobEvent.seq))
        return await self.site.services.db.read(lambda s: list(s.exec(query).all()))

    def output(self, stream: str = "stdout") -> bytes:
        """The bytes that were accepted."""
        return bytes(self.site.logs.accepted.get((self.instance.id, stream), b""))

    async def lines(self, source: str | None = "user") -> list[LogLine]:
        return await everything(self.site.logs, self.job.id, source=source)

    async def terminate(self) -> None:
        now = utc_now()
        await self.site.services.db.write(lambda s: request_termination(s, self.job.id, now))

    async def ended(self, seconds: float = 30) -> int:
        """Waits for the agent itself to end; its status."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def result(self, seconds: float = 30) -> tuple[int, int]:
        """Status and signal of the workload, once the agent has ended and its log is complete."""
        assert await self.ended(seconds) == 0
        row = await self.row()
        assert row.exit_report is not None
        assert row.drained_at is not None
        return row.exit_report["status"], row.exit_report["signal"]


class Site:
    """A control plane for agents. `start` and `stop` are those of its API process."""

    def __init__(self, database: Database, vault: Vault, **settings: Any) -> None:
        # A short path: a Unix socket's may have 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="hr-"))
        self.settings = Settings(data_dir=self.directory, **settings)
        self.logs = RecordingLogs(database, open_blob_store(self.settings.segment_url), utc_now)
        self.services = Services(self.settings, database, vault, self.logs, utc_now)
        self.factory = Factory(database, utc_now, vault)
        self.settings.agent_dir.mkdir()
        self.script = self.settings.agent_dir / "agent.sh"
        self.script.write_text(agent_script())
        self._server: uvicorn.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._agents: list[asyncio.subprocess.Process] = []

    async def start(self, socket: Path | None = None) -> None:
        config = uvicorn.Config(
            create_agent_app(self.services),
            uds=str(socket or self.settings.agent_socket),
            lifespan="off",
            log_level="warning",
        )
        self._server = _Server(config)
        self._tasks = [asyncio.create_task(self._server.serve()), asyncio.create_task(OrderBoard(self.services).run())]
        await until(lambda: self._server is not None and self._server.started, what="the server is up")

    async def stop(self) -> None:
        """As a kill would: open connections are cut."""
        assert self._server is not None
        self._server.force_exit = self._server.should_exit = True
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._tasks[0]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    def attempt(
        self,
        workload: Workload,
        *,
        ssh_public_key: str | None = None,
        provider_id: str = "x",
        image: str | None = None,
        registry: RegistryCredential | None = None,
    ) -> Attempt:
        """A job that is being provisioned, and its attempt."""
        job = self.factory.job(JobState.PROVISIONING, workload=workload)
        if ssh_public_key is not None:
            job.spec = job.spec | {"ssh_public_key": ssh_public_key}
        if image is not None:
            job.spec = job.spec | {"image": image}
        if registry is not None:
            values = {"username": registry.username, "password": registry.password.get_secret_value()}
            job.registry_sealed = self.services.vault.seal(json.dumps(values).encode(), f"registry:{job.id}")
        job = self.services.db.run_write(lambda session: session.merge(job))
        return Attempt(
            self, job, self.factory.instance(job, handle={"provider_id": provider_id, "resource_type": "container"})
        )

    async def launch(
        self,
        workload: Workload,
        *,
        environment: Mapping[str, str] | None = None,
        socket: Path | None = None,
        under: Sequence[str] = (),
        by_text: bool = False,
        ssh_public_key: str | None = None,
    ) -> Attempt:
        """Starts an agent; `under` is a command that runs it, such as bwrap's."""
        attempt = self.attempt(workload, ssh_public_key=ssh_public_key)
        command = ["bash", "-c", agent_script()] if by_text else ["bash", str(self.script)]
        variables = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.directory),
            **(environment or {}),
            "HEADRACE_TOKEN": attempt.token,
            "HEADRACE_SOCKET": str(socket or self.settings.agent_socket),
        }
        attempt.process = await asyncio.create_subprocess_exec(
            *under,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
            cwd=self.directory,
            start_new_session=True,
        )
        self._agents.append(attempt.process)
        return attempt

    async def run(self, *argv: str, **options: Any) -> Attempt:
        return await self.launch(Workload(argv=argv), **options)

    async def script_job(self, script: str, **options: Any) -> Attempt:
        return await self.launch(Workload(script=script), **options)

    async def forget_output(self, attempt: Attempt) -> None:
        """As a database that was restored from before the first byte."""
        await self.services.db.write(
            lambda session: session.execute(delete(LogStream).where(col(LogStream.instance_id) == attempt.instance.id))
        )
        self.logs.accepted.clear()

    def kill(self, attempt: Attempt) -> None:
        """As a machine that loses its power: the agent and all that it runs."""
        assert attempt.process is not None
        _kill_session(attempt.process.pid)

    async def close(self) -> None:
        for agent in self._agents:
            _kill_session(agent.pid)
            await agent.wait()
        if self._server is not None:
            await self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def _kill_session(leader: int) -> None:
    """Everything that the agent started and that has not made itself a session of its own."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


class _Server(uvicorn.Server):
    """Leaves the process's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def open_site(database: Database, vault: Vault, **settings: Any) -> AsyncIterator[Site]:
    """A site that is up; `settings` are those of Headrace."""
    site = Site(database, vault, **settings)
    try:
        await site.start()
        yield site
    finally:
        await site.close()


@contextlib.asynccontextmanager
async def by_tcp(site: Site) -> AsyncIterator[str]:
    """The agent routes as a machine far away reaches them; their URL."""
    server = _Server(uvicorn.Config(create_agent_app(site.services), port=0, lifespan="off", log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started, what="the server is up")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.force_exit = server.should_exit = True
    await serving


async def until(condition: Callable[[], Any], *, seconds: float = 20, what: str = "") -> None:
    """Polls a condition, sync or async; fails with what was awaited."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = condition()
        if await value if asyncio.iscoroutine(value) else value:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(0.01)
