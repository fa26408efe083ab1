"""What every activity works with, and the helpers that they share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog
from pydantic import SecretStr
from sqlmodel import Session
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.slot_queue import SlotQueue
from agent.bootstrap import script_digest
from agent.script import agent_script
from domain.clock import Clock
from domain.ids import AttemptId, new_id
from providers.registry import Providers
from settings import Settings
from store import agent_scripts, fence
from store.db import Database
from store.logs.blobs import BlobStore
from store.logs.store import LogStore
from store.tables import Job
from store.vault import Vault
from workflows.contract import FailureType

log = structlog.get_logger()

_LONGEST_HEARTBEAT_SECONDS = 5.0


@dataclass
class Context:
    """One per worker process."""

    settings: Settings
    db: Database
    vault: Vault
    logs: LogStore
    blobs: BlobStore
    clock: Clock
    providers: Providers
    owner_id: str
    lease_id: str = field(default_factory=lambda: new_id("worker"))
    in_flight: dict[str, "asyncio.Task[object]"] = field(default_factory=dict)
    """Provider calls under way in this process, by attempt: a deletion ends them first, so that nothing appears
    behind its back."""
    slots: SlotQueue = field(default_factory=SlotQueue)
    _found_to_be_the_one: bool = False
    _script_kept: bool = False

    async def is_the_one(self) -> bool:
        """Whether the database is the one that machines with our owner id belong to, by `store.fence`: only then may
        anything be deleted at a provider. The file store is asked until it has answered once, and again for as long as
        the database is fenced; a file store that fails later holds no deletion up."""
        if self._found_to_be_the_one and not (await self.db.read(fence.read)).fenced:
            return True
        self._found_to_be_the_one = await fence.holds(self.db, self.blobs, self.owner_id, self.clock())
        return self._found_to_be_the_one

    async def say(self, job_id: str, *messages: str, instance_rank: int | None = None) -> None:
        """System log lines of a job."""
        now = self.clock()
        await self.db.write(
            lambda session: self.logs.append_system(session, job_id, messages, now, instance_rank=instance_rank)
        )

    async def keep_agent_script(self) -> None:
        """Before a machine is made that may fetch it, from an API process of whatever version."""
        if not self._script_kept:
            text, now = self.agent_script, self.clock()
            await self.db.write(lambda session: agent_scripts.keep(session, script_digest(text), text, now))
            self._script_kept = True

    @property
    def agent_script(self) -> str:
        return agent_script()

    def bootstrap_token(self, attempt_id: AttemptId) -> SecretStr:
        """The agent's first credential."""
        return SecretStr(self.vault.bootstrap_token(attempt_id))


def fenced_job(session: Session, job_id: str, token: int, *, lock: bool = True) -> Job:
    """The job's row, if the run that holds `token` is still the one that may write. Locked until the transaction ends;
    `lock=False` is for reads: a snapshot that locks fails on PostgreSQL as soon as the row has changed since.

    Raises:
        ApplicationError: `fenced`, not retryable: another run has claimed the job.
    """
    job = session.get(Job, job_id, with_for_update=lock)
    if job is None:
        raise ApplicationError(f"no job {job_id}", type=FailureType.FENCED, non_retryable=True)
    if job.run_token != token:
        raise ApplicationError(
            f"{job_id} was claimed by run number {job.run_token}; this is number {token}",
            type=FailureType.FENCED,
            non_retryable=True,
        )
    return job


@asynccontextmanager
async def heartbeating(details: Callable[[], Sequence[object]] = tuple) -> AsyncIterator[None]:
    """Heartbeats while the body runs, so that a dead worker is noticed and a cancellation arrives."""
    timeout = activity.info().heartbeat_timeout
    pause = _LONGEST_HEARTBEAT_SECONDS
    if timeout is not None:
        pause = min(pause, timeout.total_seconds() / 4)

    async def beat() -> None:
        while True:
            activity.heartbeat(*details())
            await asyncio.sleep(pause)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
