"""Signs of life of agents, gathered in memory and passed on in batches: to the rows, and to Temporal as heartbeats."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import bindparam, func, or_, select, update
from sqlmodel import Session, col

from api.presence import Contact
from api.services import Services
from store.tables import Instance, LogState, LogStream

logger = structlog.get_logger(__name__)

Heartbeat = Callable[[str, str, str, Mapping[str, int]], Awaitable[None]]
"""(run id, activity id, job id, details): keeps the attempt's open `stream_logs` alive."""

_BATCH = 500
_HEARTBEATS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _Followed:
    """An instance with an open `stream_logs`, and how far its log is."""

    instance_id: str
    job_id: str
    run_id: str
    activity_id: str
    log_offset: int
    lines: int


class Contacts:
    """Passes on what this process hears. `last_contact_at` is at most `heartbeat_interval_seconds` behind."""

    def __init__(self, services: Services, heartbeat: Heartbeat) -> None:
        self._services = services
        self._heartbeat = heartbeat
        self._interval = timedelta(seconds=services.settings.heartbeat_interval_seconds)
        self._contacts = services.presence.contacts
        self._slots = asyncio.Semaphore(_HEARTBEATS_AT_ONCE)
        self._beats: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        pause = min(1.0, self._interval.total_seconds() / 4)
        try:
            while True:
                try:
                    await self.flush()
                except Exception:
                    logger.exception("contacts_not_stored")
                await asyncio.sleep(pause)
        finally:
            for beat in self._beats:
                beat.cancel()

    async def flush(self) -> None:
        """Passes on what is due: each instance once per interval, all that are due in one transaction."""
        now = self._services.clock()
        self._refresh(now)
        due = [instance_id for instance_id, contact in self._contacts.items() if self._is_due(contact, now)]
        for start in range(0, len(due), _BATCH):
            seen = {instance_id: self._contacts[instance_id].seen_at for instance_id in due[start : start + _BATCH]}
            followed = await self._services.db.write(partial(_store, seen=seen))
            for instance_id, seen_at in seen.items():
                self._contacts[instance_id].stored_at = seen_at
            for entry in followed:
                self._begin_beat(entry, now)

    async def settled(self) -> None:
        """Waits for the heartbeats that are under way."""
        await asyncio.gather(*self._beats)

    def _refresh(self, now: datetime) -> None:
        """Held polls are contact now; agents that were silent for long are forgotten."""
        forget_before = now - self._interval - timedelta(seconds=self._services.settings.contact_timeout_seconds)
        for instance_id, contact in list(self._contacts.items()):
            if contact.held:
                contact.seen_at = now
            elif contact.seen_at < forget_before:
                del self._contacts[instance_id]

    def _is_due(self, contact: Contact, now: datetime) -> bool:
        if contact.beating or contact.stored_at == contact.seen_at:
            return False
        # A row can be up to date while its heartbeat is not: `stream_logs` was not open yet.
        return any(last is None or now - last >= self._interval for last in (contact.stored_at, contact.beaten_at))

    def _begin_beat(self, followed: _Followed, now: datetime) -> None:
        contact = self._contacts[followed.instance_id]
        if contact.beaten_at is not None and now - contact.beaten_at < self._interval:
            return
        contact.beating = True
        contact.beaten_at = now
        task = asyncio.create_task(self._beat(followed, contact))
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)

    async def _beat(self, followed: _Followed, contact: Contact) -> None:
        details = {"log_offset": followed.log_offset, "lines": followed.lines}
        try:
            async with self._slots:
                await self._heartbeat(followed.run_id, followed.activity_id, followed.job_id, details)
        except Exception as error:
            # Temporal is away: the next interval tries again, and a time-out there asks the provider first.
            logger.warning("heartbeat_failed", job_id=followed.job_id, error=str(error)[:200])
        finally:
            contact.beating = False


def _store(session: Session, seen: Mapping[str, datetime]) -> list[_Followed]:
    newer = (
        update(Instance)
        .where(
            col(Instance.id) == bindparam("instance"),
            or_(col(Instance.last_contact_at).is_(None), col(Instance.last_contact_at) < bindparam("seen")),
        )
        .values(last_contact_at=bindparam("seen"))
    )
    session.connection().execute(newer, [{"instance": key, "seen": value} for key, value in seen.items()])
    return _followed(session, list(seen))


def _followed(session: Session, instance_ids: Sequence[str]) -> list[_Followed]:
    stored = func.coalesce(func.sum(col(LogStream.acked_offset)), 0)
    query = (
        select(
            col(Instance.id),
            col(Instance.job_id),
            col(Instance.stream_run_id),
            col(Instance.stream_activity_id),
            stored,
            func.coalesce(func.max(col(LogState.user_lines)), 0),
        )
        .outerjoin(LogStream, col(LogStream.instance_id) == col(Instance.id))
        .outerjoin(LogState, col(LogState.job_id) == col(Instance.job_id))
        .where(
            col(Instance.id).in_(instance_ids),
            col(Instance.stream_run_id).is_not(None),
            col(Instance.stream_activity_id).is_not(None),
            col(Instance.exited_at).is_(None),
        )
        .group_by(
            col(Instance.id),
            col(Instance.job_id),
            col(Instance.stream_run_id),
            col(Instance.stream_activity_id),
        )
    )
    return [
        _Followed(instance_id, job_id, str(run_id), str(activity_id), int(offset), int(lines))
        for instance_id, job_id, run_id, activity_id, offset, lines in session.connection().execute(query)
    ]
