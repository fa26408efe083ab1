"""`stream_logs`: follows a running attempt without holding a worker slot, and `drain`: the last bytes of its log.

The activity registers itself on the attempt's row and completes asynchronously: the API's agent endpoint heartbeats it
and the exit report completes it. When heartbeats stop for the contact time-out, Temporal retries it; the retry reads
the exit row first of all, then asks whether the instance is still there.
"""

import asyncio
from datetime import datetime

from sqlmodel import Session
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import Context, fenced_job, heartbeating, log
from activities.failures import bounded
from domain.errors import ProviderError
from domain.outcome import ExitReport
from domain.states import EventType
from providers.base import Handle, InstanceView, ProviderState
from store import attempts, liveness
from store.lifecycle import was_noticed
from store.tables import Instance
from store.transitions import record
from workflows.contract import AttemptInput, DrainInput, FailureType, StreamOutcome, StreamResult, exit_result

_DRAIN_POLL_SECONDS = 0.01
_DRAIN_LONGEST_POLL_SECONDS = 0.25
_EXIT_WITHOUT_REPORT_SECONDS = 20.0


class StreamActivities:
    """Follows attempts by their rows."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def stream_logs(self, request: AttemptInput) -> StreamResult:
        """The exit if it is known, a loss if the provider confirms it; else completes asynchronously."""
        info = activity.info()

        def register(session: Session) -> StreamResult | Instance:
            fenced_job(session, request.job_id, request.token)
            row = attempts.locked(session, request.attempt_id)
            if row.exit_report is not None:
                return exit_result(ExitReport.model_validate(row.exit_report), row.drained_at is not None)
            row.stream_run_id, row.stream_activity_id = info.workflow_run_id, info.activity_id
            session.add(row)
            return row

        registered = await self._context.db.write(register)
        if isinstance(registered, StreamResult):
            return registered
        lost = await self._assess(registered) if info.attempt > 1 else None
        if lost is None:
            activity.raise_complete_async()
        return lost

    async def _assess(self, instance: Instance) -> StreamResult | None:
        """After lost contact: whether the instance is gone. None: it lives, or nobody can tell, so it is followed on.

        Only time in which an API replica was there to be reached counts as silence.
        """
        now, limit = self._context.clock(), self._context.settings.contact_timeout_seconds
        silence = await self._context.db.read(lambda session: _reachable_silence(session, instance, now))
        if silence < limit:
            return None
        await self._note_contact_lost(instance, now)
        view, known = await self._look(instance)
        if not known or (view is not None and view.state in _ALIVE):
            return None
        if view is not None and view.state in {ProviderState.EXITED, ProviderState.FAILED}:
            # Its agent may still be on the way with the report: give it a moment before the instance counts as lost.
            if silence < limit + _EXIT_WITHOUT_REPORT_SECONDS:
                waiting = "the instance ended; waiting for its exit report"
                raise ApplicationError(waiting, type=FailureType.AWAITING_EXIT)
            return StreamResult(await self._loss(instance, view), message=_ended_silently(view))
        why = view.message if view is not None and view.message else "the provider no longer has the instance"
        message = bounded(f"contact lost for {silence:.0f} s; {why}")
        return StreamResult(await self._loss(instance, view), message=message)

    async def _loss(self, instance: Instance, view: InstanceView | None) -> StreamOutcome:
        """Whether the provider took the machine back: it says so now, or has given notice."""
        taken = view is not None and view.state is ProviderState.INTERRUPTED
        if taken or await self._context.db.read(lambda session: was_noticed(session, instance)):
            return StreamOutcome.PREEMPTED
        return StreamOutcome.LOST

    async def _look(self, instance: Instance) -> tuple[InstanceView | None, bool]:
        """What the provider says, and whether it said anything; one miss is no proof, so it is asked twice."""
        provider = self._context.providers.of(instance.connection_id)
        handle = Handle.model_validate(instance.handle)
        try:
            view = await provider.get(handle)
            if view is None:
                await asyncio.sleep(self._context.settings.absence_gap_seconds)
                view = await provider.get(handle)
        except ProviderError as error:
            log.warning("instance_unknown", attempt_id=instance.id, kind=error.kind, message=error.message)
            return None, False
        return view, True

    async def _note_contact_lost(self, instance: Instance, now: datetime) -> None:
        """Once for each silence, however often it is looked at."""
        event, key = EventType.CONTACT_LOST, f"contact_lost-{instance.id}-{instance.last_contact_at}"
        data = {"instance_id": instance.id, "last_contact_at": _shown(instance.last_contact_at)}
        await self._context.db.write(lambda session: record(session, instance.job_id, event, key, now, data))

    @activity.defn
    async def drain(self, request: DrainInput) -> bool:
        """Until all output up to the exit report is stored, at most `seconds`; whether it is."""
        async with heartbeating():
            return await drained(self._context, request.attempt_id, request.seconds)


async def drained(context: Context, attempt_id: str, seconds: float) -> bool:
    """Waits until the attempt's output is stored to its end, at most `seconds`."""
    pause, until = _DRAIN_POLL_SECONDS, asyncio.get_running_loop().time() + seconds
    while True:
        row = await context.db.read(lambda session: attempts.peek(session, attempt_id))
        if row.drained_at is not None:
            return True
        remaining = until - asyncio.get_running_loop().time()
        if remaining <= 0:
            return False
        await asyncio.sleep(min(pause, remaining))
        pause = min(pause * 1.5, _DRAIN_LONGEST_POLL_SECONDS)


_ALIVE = {ProviderState.PENDING, ProviderState.STARTING, ProviderState.RUNNING, ProviderState.STOPPING}


def _reachable_silence(session: Session, instance: Instance, now: datetime) -> float:
    row = session.get(Instance, instance.id)
    assert row is not None
    since = row.last_contact_at or row.started_at or row.created_at
    return liveness.reachable_seconds(session, liveness.API, since, now)


def _ended_silently(view: InstanceView) -> str:
    code = "" if view.exit_code is None else f" with exit code {view.exit_code}"
    return bounded(f"the instance ended{code} without an exit report. {view.message}".strip())


def _shown(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
