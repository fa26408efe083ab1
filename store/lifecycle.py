"""What agents and users do to a running job, each as one transaction: state, event and inbox row together.

These functions run inside `Database.write`; the caller answers only after the commit.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import update
from sqlmodel import Session, col, select

from domain.outcome import ExitReport, judge
from domain.states import EventType, InstanceState, JobState, Reason
from store import inbox
from store.db import is_sqlite, publish
from store.tables import Instance, Job
from store.transitions import has_event, record, transition

ORDERS = "orders"
"""Topic: an agent may have a new order."""


def request_termination(
    session: Session,
    job_id: str,
    now: datetime,
    *,
    reason: Reason = Reason.USER_REQUESTED,
    message: str | None = None,
    data: dict[str, Any] | None = None,
    notify_workflow: bool = True,
) -> JobState:
    """Ends a job: idempotent, at most one terminate is sent to its workflow. Returns the state that stands.

    `notify_workflow` is False when the workflow itself asks, because a limit binds.

    Once an exit report has sealed the outcome (`finalizing`), a terminate only cuts the drain of the logs.
    """
    outcome = transition(
        session,
        job_id,
        JobState.TERMINATING,
        "terminate",
        now,
        reason=reason,
        message=message,
        event=EventType.TERMINATION_REQUESTED,
        data=data,
    )
    if outcome.applied:
        order_stop(session, job_id, now)
    if notify_workflow and (outcome.applied or outcome.state is JobState.FINALIZING):
        inbox.put(session, job_id, inbox.TERMINATE, now, {"cut_drain": not outcome.applied})
    return outcome.state


def order_stop(session: Session, job_id: str, now: datetime) -> None:
    """Every agent of the job that may still run is told to stop, by its next (or held) poll for orders."""
    session.exec(
        update(Instance)
        .where(
            col(Instance.job_id) == job_id,
            col(Instance.stop_requested_at).is_(None),
            col(Instance.confirmed_absent_at).is_(None),
        )
        .values(stop_requested_at=now)
    )
    publish(session, ORDERS)


class LaunchAnswer(StrEnum):
    """What an agent that asks for its launch spec is told."""

    LAUNCH = "launch"
    WAIT = "wait"
    """The machine is up before the provider's answer to its create was written down: ask again."""
    STOP = "stop"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class LaunchDecision:
    answer: LaunchAnswer
    job: Job
    instance: Instance


def hello(session: Session, instance: Instance, now: datetime, data: dict[str, Any] | None = None) -> None:
    """The agent's first sign of life: it ends provisioning."""
    if instance.hello_at is None:
        instance.hello_at = instance.last_contact_at = now
        if not _given_up(instance):
            instance.state = InstanceState.STARTING
        session.add(instance)
        record(session, instance.job_id, EventType.AGENT_CONNECTED, f"hello-{instance.id}", now,
               {"instance_id": instance.id, **(data or {})})  # fmt: skip


def fetch_launch(
    session: Session, attempt_id: str, nonce: str, session_hash: str, now: datetime
) -> LaunchDecision | None:
    """The compare-and-set behind the launch spec: only while the job is provisioning with no termination requested,
    and only for the agent whose nonce was bound first. Repeatable with that nonce until `started`.

    Returns None for an unknown attempt. A refusal is recorded as an alert event.
    """
    instance = session.get(Instance, attempt_id)
    if instance is None:
        return None
    job = _lock(session, instance)
    if instance.nonce is not None and instance.nonce != nonce:
        # One alert an attempt: who makes up nonces must not fill the history with them.
        record(session, job.id, EventType.NONCE_REFUSED, f"nonce-{instance.id}", now,
               {"instance_id": instance.id, "alert": True})  # fmt: skip
        return LaunchDecision(LaunchAnswer.REFUSED, job, instance)
    hello(session, instance, now)
    instance.nonce, instance.session_hash = nonce, session_hash
    session.add(instance)
    stopped = instance.stop_requested_at is not None or instance.started_at is not None or _given_up(instance)
    if stopped or JobState(job.state) not in {JobState.ALLOCATING, JobState.PROVISIONING}:
        return LaunchDecision(LaunchAnswer.STOP, job, instance)
    if instance.handle is None or job.state != JobState.PROVISIONING:
        return LaunchDecision(LaunchAnswer.WAIT, job, instance)
    return LaunchDecision(LaunchAnswer.LAUNCH, job, instance)


def refuse_launch(session: Session, instance: Instance, reason: Reason, message: str, now: datetime) -> None:
    """The job's secrets are of no use: the agent is sent away, and `provision` finds the reason on the attempt."""
    instance.reason_code, instance.reason_message = reason.value, message
    session.add(instance)
    data = {"instance_id": instance.id, "reason": reason.value, "message": message}
    record(session, instance.job_id, EventType.LAUNCH_REFUSED, f"launch-refused-{instance.id}", now, data)


def agent_started(session: Session, instance: Instance, now: datetime) -> None:
    """The workload runs: provisioning -> running. A repeat changes nothing; one of an attempt that a termination
    overtook, or that was given up for another, is noted on the instance only."""
    _lock(session, instance)
    _started(session, instance, now)


def _started(session: Session, instance: Instance, now: datetime) -> None:
    if instance.started_at is not None:
        return
    instance.started_at = now
    session.add(instance)
    if _given_up(instance):
        return
    instance.state = InstanceState.RUNNING
    transition(
        session,
        instance.job_id,
        JobState.RUNNING,
        f"started-{instance.id}",
        now,
        event=EventType.WORKLOAD_STARTED,
        data={"instance_id": instance.id},
        values={"started_at": now},
    )


def ssh_told(session: Session, instance: Instance, host_key: str | None, now: datetime) -> bool:
    """Whether the workload's sshd serves, and by which key one knows it; None where it does not. The first word counts:
    whether this was it."""
    kind = EventType.SSH_UNAVAILABLE if host_key is None else EventType.SSH_OPENED
    data = {"instance_id": instance.id, **({} if host_key is None else {"host_key": host_key})}
    if not record(session, instance.job_id, kind, f"ssh-{instance.id}", now, data):
        return False
    instance.ssh_host_key = host_key
    session.add(instance)
    return True


def interruption_noticed(
    session: Session, instance: Instance, now: datetime, *, at: datetime | None, hint: bool = False
) -> bool:
    """The provider says that it takes the machine back, `at` that moment where it names one; or, as a `hint`, that it
    may. The first word of each counts: whether this was it."""
    kind = EventType.INTERRUPTION_RISK if hint else EventType.INTERRUPTION_NOTICED
    data = {"instance_id": instance.id, **({} if at is None else {"at": at.isoformat()})}
    return record(session, instance.job_id, kind, f"{kind.value}-{instance.id}", now, data)


def was_noticed(session: Session, instance: Instance) -> bool:
    """Whether the provider gave notice that it takes this machine back."""
    return has_event(session, instance.job_id, f"{EventType.INTERRUPTION_NOTICED.value}-{instance.id}")


def agent_exit(session: Session, instance: Instance, report: ExitReport, now: datetime) -> None:
    """The first exit report of an instance counts. The one that wins running -> finalizing seals the job's outcome;
    any later or overtaken one is an event only, and so is the end of an interrupted workload, which may be tried again.
    An exit implies a start whose report has not arrived yet."""
    _lock(session, instance)
    if instance.exit_report is not None:
        return
    _started(session, instance, now)
    verdict = judge(report)
    instance.exit_report = report.model_dump()
    instance.exited_at = now
    preempted = verdict.reason is Reason.PREEMPTED
    if instance.terminal_at is None:
        ended_well = verdict.state is JobState.SUCCEEDED
        lost = InstanceState.LOST if preempted else InstanceState.FAILED
        instance.state = InstanceState.SUCCEEDED if ended_well else lost
    session.add(instance)
    data = {"instance_id": instance.id, "exit_code": report.status, "signal": report.signal}
    sealed = not (_given_up(instance) or preempted) and transition(
        session,
        instance.job_id,
        JobState.FINALIZING,
        f"exit-{instance.id}",
        now,
        event=EventType.WORKLOAD_EXITED,
        data=data,
        values={"exit_code": verdict.exit_code},
    )
    if not sealed:
        killed = instance.stop_requested_at is not None
        in_time = killed or (preempted and not _given_up(instance))
        record(session, instance.job_id, EventType.WORKLOAD_EXITED if in_time else EventType.LATE_EXIT,
               f"exit-{instance.id}", now, {**data, "killed_by_us": killed})  # fmt: skip
    inbox.put(session, instance.job_id, inbox.EXIT, now, {"attempt_id": instance.id}, key=f"exit-{instance.id}")


def _given_up(instance: Instance) -> bool:
    """Whether the attempt counts for its job no more: it was lost or failed, or its deletion was asked for."""
    return instance.terminal_at is not None or instance.delete_requested_at is not None


def _lock(session: Session, instance: Instance) -> Job:
    """Locks the job's row, then the instance's: always in this order, lest two reports wait for each other. Both are
    read anew, since the caller may have read them before it waited."""
    if is_sqlite(session):
        return session.get_one(Job, instance.job_id)
    job = session.exec(
        select(Job).where(Job.id == instance.job_id).with_for_update().execution_options(populate_existing=True)
    ).one()
    session.refresh(instance, with_for_update=True)
    return job
