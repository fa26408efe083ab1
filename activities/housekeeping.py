"""`keep_house`: closes the ledger's days, seals finished logs, enforces log retention, exports failed histories, prunes
bookkeeping rows."""

from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import delete
from sqlmodel import Session, col, select
from temporalio import activity

from activities.context import Context, heartbeating, log
from activities.histories import export_failed
from domain.errors import HeadraceError
from store import inbox, ledger, liveness, webhooks
from store.tables import InboxRow, Job, LogState

_DELIVERED_KEPT = timedelta(days=7)
_DELIVERIES_KEPT = timedelta(days=30)
_BATCH = 200


class HousekeepingActivities:
    """Work that no job waits for."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def keep_house(self) -> str:
        """One round; repeatable at any time. Answers what it did."""
        async with heartbeating():
            now = self._context.clock()
            await self._close_days(now)
            sealed = 0
            for job_id in await self._context.db.read(_finished_with_hot_logs):
                try:
                    await self._context.logs.seal(job_id)
                    sealed += 1
                except (HeadraceError, OSError):
                    # One log that cannot be sealed stays hot and readable; it must not keep the rest from being done.
                    log.exception("log_not_sealed", job_id=job_id)
            trimmed = await self._context.logs.enforce_retention(now)
            old = now - _DELIVERED_KEPT

            def prune(session: Session) -> None:
                # A delivered start or terminate of a live job keeps its duplicate out; those of finished jobs may go.
                finished = select(Job.id).where(col(Job.terminal_at).is_not(None), col(Job.terminal_at) < old)
                session.exec(delete(InboxRow).where(col(InboxRow.job_id).in_(finished)))
                told = (col(InboxRow.kind).in_([inbox.BUDGET, inbox.VERIFY]), col(InboxRow.delivered_at) < old)
                session.exec(delete(InboxRow).where(*told))
                webhooks.prune(session, now - _DELIVERIES_KEPT)
                liveness.prune(session, old)

            await self._context.db.write(prune)
            exported = await export_failed(self._context, activity.client())
            return f"{sealed} logs sealed, {trimmed} lines removed, {exported} histories exported"

    async def _close_days(self, now: datetime) -> None:
        """Writes what live instances have cost on days that are over. Reports compute the same until then."""
        unclosed = await self._context.db.read(lambda session: ledger.unclosed(session, now))
        for begin in range(0, len(unclosed), _BATCH):
            batch = unclosed[begin : begin + _BATCH]
            await self._context.db.write(partial(ledger.close_days, instance_ids=batch, now=now))


def _finished_with_hot_logs(session: Session) -> list[str]:
    query = (
        select(LogState.job_id)
        .join(Job, col(Job.id) == col(LogState.job_id))
        .where(col(LogState.hot_since).is_not(None), col(Job.terminal_at).is_not(None))
        .limit(_BATCH)
    )
    return list(session.exec(query).all())
