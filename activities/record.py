"""Short database steps of the job workflow, run as local activities. Each is one transaction, repeatable."""

from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select
from temporalio import activity

from activities.context import Context, fenced_job
from activities.deadlines import limit_deadline
from domain.offers import Offer
from domain.outcome import ExitReport, judge
from domain.spec import JobSpec
from domain.states import EventType, JobState, Reason
from settings import Settings
from store import attempts
from store.lifecycle import request_termination
from store.tables import Instance, Job
from store.transitions import has_event, record, transition
from workflows.contract import Claim, Deadline, FailAttemptInput, JobRef, Policy, SettleInput, TerminationInput


class RecordActivities:
    """Claim, termination by a limit, failed attempts and the terminal transition."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def claim_job(self, job_id: str) -> Claim:
        """Makes the calling run the one that may write for the job; older runs are fenced off from then on."""
        run_id, now, settings = activity.info().workflow_run_id, self._context.clock(), self._context.settings

        def claim(session: Session) -> Claim:
            job = session.get(Job, job_id, with_for_update=True)
            assert job is not None, job_id
            if job.run_id != run_id:
                job.run_id, job.run_token = run_id, job.run_token + 1
            if job.workflow_started_at is None:
                job.workflow_started_at = now
            session.add(job)
            session.flush()
            if job.state == JobState.REQUESTED:
                transition(session, job_id, JobState.ALLOCATING, "allocating", now)
            state = JobState(job.state)
            open_attempts = attempts.open_attempts(session, job_id)
            exited = [a for a in open_attempts if a.exit_report is not None]
            return Claim(
                token=job.run_token,
                state=state,
                policy=_policy(settings, JobSpec.model_validate(job.spec)),
                open_attempts=tuple(a.id for a in open_attempts),
                finalizing_attempt=_finalizing_attempt(session, job_id, exited)
                if state is JobState.FINALIZING
                else None,
            )

        return await self._context.db.write(claim)

    @activity.defn
    async def open_attempts(self, job_id: str) -> list[str]:
        """The job's attempts that are not confirmed absent."""
        return await self._context.db.read(lambda session: [a.id for a in attempts.open_attempts(session, job_id)])

    @activity.defn
    async def begin_termination(self, termination: TerminationInput) -> str:
        """A limit binds. Answers the state that stands: `finalizing` when an exit was there first."""
        now = self._context.clock()

        def begin(session: Session) -> str:
            fenced_job(session, termination.job_id, termination.token)
            return request_termination(
                session,
                termination.job_id,
                now,
                reason=termination.reason,
                message=termination.message,
                notify_workflow=False,
            )

        return await self._context.db.write(begin)

    @activity.defn
    async def current_deadline(self, job: JobRef) -> Deadline | None:
        """When a limit must end the job, by the prices that the rows hold now."""
        now, drain = self._context.clock(), self._context.settings.terminate_drain_seconds

        def compute(session: Session) -> Deadline | None:
            return limit_deadline(session, fenced_job(session, job.job_id, job.token, lock=False), now, drain)

        return await self._context.db.read(compute)

    @activity.defn
    async def fail_attempt(self, failure: FailAttemptInput) -> str | None:
        """Gives the attempt up; answers its offer's `ref`. None: its exit came first, and has sealed the outcome."""
        now = self._context.clock()

        def fail(session: Session) -> str | None:
            job = fenced_job(session, failure.job_id, failure.token)
            instance = attempts.locked(session, failure.attempt_id)
            if job.state == JobState.FINALIZING:
                return None
            attempts.give_up(session, instance, failure.reason, failure.message, now, retry=failure.retry)
            note = f"attempt {instance.number} failed: {failure.message}"
            self._context.logs.append_system(session, failure.job_id, [note], now)
            return Offer.model_validate(instance.offer).ref

        return await self._context.db.write(fail)

    @activity.defn
    async def settle(self, ending: SettleInput) -> str:
        """The terminal transition. The row's state decides: what is terminating becomes terminated, what an exit
        sealed ends as the exit says, anything else fails for the reason given."""
        now = self._context.clock()

        def end(session: Session) -> str:
            job = fenced_job(session, ending.job_id, ending.token)
            self._finish_logs(session, job.id, now)
            return _settle(session, job, now, ending.attempt_id, ending.reason, ending.message, ending.details)

        return await self._context.db.write(end)

    @activity.defn
    async def settle_recovered(self, job_id: str) -> str:
        """The end of a job whose workflow was lost: its sealed outcome if it has one, else `internal_error`."""
        now = self._context.clock()

        def end(session: Session) -> str:
            job = session.get(Job, job_id, with_for_update=True)
            assert job is not None, job_id
            record(session, job_id, EventType.RECOVERED, "recovered", now, {})
            self._finish_logs(session, job_id, now)
            message = "the job's workflow was ended from outside; its hardware was given back"
            return _settle(session, job, now, None, Reason.INTERNAL_ERROR, message)

        return await self._context.db.write(end)

    def _finish_logs(self, session: Session, job_id: str, now: datetime) -> None:
        """Where the drain was cut short, the last unfinished line is shown as it is."""
        for instance in _instances(session, job_id):
            if instance.drained_at is None and instance.started_at is not None:
                self._context.logs.finish_streams(session, instance, now)


def _settle(
    session: Session,
    job: Job,
    now: datetime,
    attempt_id: str | None,
    reason: Reason | None,
    message: str | None,
    details: dict[str, Any] | None = None,
) -> str:
    state = JobState(job.state)
    if state.terminal:
        return state
    if state is JobState.TERMINATING:
        stands = Reason(job.reason_code) if job.reason_code else Reason.USER_REQUESTED
        return transition(
            session,
            job.id,
            JobState.TERMINATED,
            "terminated",
            now,
            reason=stands,
            message=job.reason_message,
            details=job.reason_details,
        ).state
    if state is JobState.FINALIZING:
        exited = [a for a in _instances(session, job.id) if a.exit_report is not None]
        attempt_id = attempt_id or _finalizing_attempt(session, job.id, exited)
        instance = attempts.locked(session, attempt_id or exited[-1].id)
        verdict = judge(ExitReport.model_validate(instance.exit_report))
        return transition(
            session,
            job.id,
            verdict.state,
            "settled",
            now,
            reason=verdict.reason,
            message=verdict.message,
            details={"exit_code": verdict.exit_code, "instance_id": instance.id} if verdict.reason else None,
            values={"exit_code": verdict.exit_code},
        ).state
    return transition(
        session,
        job.id,
        JobState.FAILED,
        "settled",
        now,
        reason=reason or Reason.INTERNAL_ERROR,
        message=message,
        details=details or _boot_details(session, job.id, reason),
    ).state


def _boot_details(session: Session, job_id: str, reason: Reason | None) -> dict[str, Any] | None:
    """What the last instance said that did not come up, where that is why the job failed."""
    if reason not in {Reason.BOOTSTRAP_FAILED, Reason.IMAGE_PULL_FAILED, Reason.PROVISIONING_TIMEOUT}:
        return None
    said = [a for a in _instances(session, job_id) if a.last_words is not None]
    return {"instance_id": said[-1].id, "output": said[-1].last_words} if said else None


def _instances(session: Session, job_id: str) -> list[Instance]:
    """All attempts of the job, locked: whoever stores output locks the attempt before the log."""
    query = select(Instance).where(Instance.job_id == job_id).order_by(col(Instance.number))
    return list(session.exec(query.with_for_update()).all())


def _finalizing_attempt(session: Session, job_id: str, exited: list[Instance]) -> str | None:
    """The attempt whose exit won running -> finalizing: its transition's event names it."""
    for instance in reversed(exited):
        if has_event(session, job_id, f"exit-{instance.id}"):
            return instance.id
    return None


def _policy(settings: Settings, spec: JobSpec) -> Policy:
    wait = spec.placement.capacity_wait_seconds
    return Policy(
        provisioning_timeout=settings.provisioning_timeout_seconds,
        contact_timeout=settings.contact_timeout_seconds,
        finalize_grace=settings.finalize_grace_seconds,
        terminate_drain=settings.terminate_drain_seconds,
        delete_accept=settings.delete_accept_seconds,
        capacity_wait=settings.capacity_wait_seconds if wait is None else wait,
        max_attempts=settings.max_attempts,
        retries_on_loss=spec.retry.max_attempts - 1 if spec.retry.on_preemption else 0,
        activity_timeout=settings.activity_timeout_seconds,
    )
