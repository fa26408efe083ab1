"""What operators and accidents do to workflows: resets, terminations from outside, orphans, long histories."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from sqlmodel import Session
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle
from temporalio.testing import ActivityEnvironment

from activities.instances import instance_spec
from activities.reconcile import ReconcileActivities
from activities.recovery import sweep
from domain.offers import Offer
from domain.states import JobState
from providers.base import Handle, ProviderState
from providers.fake.faults import Answer, Operation
from store.tables import Job
from tests.support.control_plane import ControlPlane, until
from workflows.contract import TerminateSignal, deallocation_id


async def _reset(plane: ControlPlane, job_id: str, after_activities: int, run_id: str | None = None) -> None:
    """Resets to the workflow task that followed so many completed activities of the run; 0 is the first one."""
    history = await plane.temporal.get_workflow_handle(job_id, run_id=run_id).fetch_history()
    completed, target = 0, None
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed += 1
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED and completed >= after_activities:
            target = event.event_id
            break
    assert target is not None
    await plane.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=plane.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job_id, run_id=run_id or ""),
            reason="test",
            workflow_task_finish_event_id=target,
            request_id=f"reset-{job_id}-{after_activities}",
            reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_SIGNAL,
        )
    )


async def _result(plane: ControlPlane, job_id: str) -> object:
    handle: WorkflowHandle[object, object] = plane.temporal.get_workflow_handle(job_id)
    return await handle.result()


async def test_a_reset_of_a_succeeded_job_changes_nothing_and_runs_nothing(plane: ControlPlane) -> None:
    job_id = await plane.fake()
    before = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    run_id = (await plane.temporal.get_workflow_handle(job_id).describe()).run_id
    for after_activities in (0, 1, 3):
        await _reset(plane, job_id, after_activities, run_id)
        assert await _result(plane, job_id) == "succeeded"

    assert await plane.job(job_id) == before
    assert plane.cloud is not None
    assert len(await plane.cloud.instances()) == 1


async def test_a_reset_of_a_failed_job_changes_nothing_and_runs_nothing(plane: ControlPlane) -> None:
    job_id = await plane.fake(status=9)
    before = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    await _reset(plane, job_id, 0)

    assert await _result(plane, job_id) == "failed"
    assert await plane.job(job_id) == before
    assert len(await plane.attempts(job_id)) == 1


async def test_a_reset_of_a_running_job_goes_on_with_the_machine_it_has(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=4)
    await plane.until_state(job_id, JobState.RUNNING)

    await _reset(plane, job_id, 0)
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert plane.cloud is not None
    assert len(await plane.cloud.instances()) == 1


async def test_a_workflow_that_was_terminated_from_outside_is_recovered(plane: ControlPlane) -> None:
    """Case 31: the machine is removed and the job ends."""
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.temporal.get_workflow_handle(job_id).terminate("an operator did this")
    assert plane.context is not None

    def long_ago(session: Session) -> None:
        job = session.get_one(Job, job_id)
        job.workflow_started_at = job.created_at.replace(year=2020)
        session.add(job)

    await plane.services.db.write(long_ago)

    async def recovered() -> bool:
        assert plane.context is not None
        await sweep(plane.context, plane.temporal)
        return (await plane.state(job_id)).terminal

    await until(recovered)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("failed", "internal_error")
    assert plane.cloud is not None
    assert await plane.cloud.alive() == []


async def test_a_deletion_that_was_terminated_from_outside_is_started_again(plane: ControlPlane) -> None:
    """The job is long over, so nobody else would ask for its machine's end."""
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.DELETE, Answer.INTERNAL, times=None)
    job_id = await plane.fake()
    await plane.until_terminal(job_id)
    attempt = (await plane.attempts(job_id))[0]
    await plane.temporal.get_workflow_handle(deallocation_id(attempt.id)).terminate("an operator did this")
    await plane.cloud.clear_faults()
    assert plane.context is not None
    assert await sweep(plane.context, plane.temporal) == [], "it is too early to say that nobody deletes it"

    later = replace(plane.context, clock=lambda: plane.services.clock() + timedelta(minutes=1))
    assert await sweep(later, plane.temporal) == [attempt.id]

    await plane.until_gone(job_id)
    assert await plane.cloud.alive() == []


async def test_the_sweep_leaves_running_workflows_and_undelivered_starts_alone(plane: ControlPlane) -> None:
    running = await plane.fake(run_seconds=60)
    await plane.until_state(running, JobState.RUNNING)
    plane.services.temporal = None
    undelivered = await plane.fake()
    assert plane.context is not None

    recovered = await sweep(plane.context, plane.temporal)

    assert recovered == []
    plane.services.temporal = plane.temporal
    assert (await plane.until_terminal(undelivered))["state"] == "succeeded"
    await plane.terminate(running)
    await plane.until_terminal(running)
    await plane.until_gone(running)


async def test_a_machine_that_no_row_explains_is_deleted_by_the_reconciler(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)
    assert plane.cloud is not None
    assert plane.context is not None
    attempt = (await plane.attempts(job_id))[0]
    # The row of another attempt is lost, as after a restore from an old backup; its machine is still there.
    orphan_job = await plane.fake(run_seconds=60)
    await plane.until_state(orphan_job, JobState.RUNNING)
    orphan = (await plane.attempts(orphan_job))[0]
    now = plane.services.clock()

    def forget(session: Session) -> None:
        row = session.get_one(type(orphan), orphan.id)
        row.confirmed_absent_at = row.terminal_at = now
        session.add(row)

    await plane.services.db.write(forget)

    await ActivityEnvironment().run(ReconcileActivities(plane.context).reconcile_connection, "fake")

    alive = {machine["attempt"] for machine in await plane.cloud.alive()}
    assert orphan.id not in alive
    assert attempt.id in alive
    for each in (job_id, orphan_job):
        await plane.terminate(each)
        await plane.until_terminal(each)
    await plane.until_gone(job_id)


async def test_a_second_machine_of_an_attempt_is_deleted_by_the_reconciler(plane: ControlPlane) -> None:
    """Two creates of one attempt worked, by two workers: the row knows the machine of one of them."""
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)
    assert plane.cloud is not None
    assert plane.context is not None
    attempt = (await plane.attempts(job_id))[0]
    assert attempt.handle is not None
    offer, provider = Offer.model_validate(attempt.offer), plane.context.providers.of("fake")
    job = await plane.services.db.read(lambda session: session.get_one(Job, job_id))
    await plane.cloud.hide(attempt.handle["provider_id"], calls=1, operations=[Operation.FIND])
    await provider.create(await instance_spec(plane.context, job, attempt), offer)
    assert len(await plane.cloud.alive()) == 2

    await ActivityEnvironment().run(ReconcileActivities(plane.context).reconcile_connection, "fake")

    async def one_is_left() -> bool:
        assert plane.cloud is not None
        return len(await plane.cloud.alive()) == 1

    await until(one_is_left)
    assert await plane.state(job_id) is JobState.RUNNING
    view = await provider.get(Handle.model_validate(attempt.handle))
    assert view is not None
    assert view.state is ProviderState.RUNNING
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def test_a_job_with_thousands_of_signals_continues_as_new_and_keeps_its_machine(plane: ControlPlane) -> None:
    """Case 31, shortened: the history limit is what ends a run, not the number of signals."""
    job_id = await plane.fake(hold_run=True)
    await plane.until_state(job_id, JobState.RUNNING)
    handle = plane.temporal.get_workflow_handle(job_id)
    first_run = (await handle.describe()).run_id

    # `deletion_accepted` of an attempt that does not exist: a signal that changes nothing.
    async def noise(count: int) -> None:
        for _ in range(count):
            await handle.signal("deletion_accepted", "inst-nobody")

    await asyncio.gather(*(noise(60) for _ in range(10)))

    async def continued() -> bool:
        await handle.signal("deletion_accepted", "inst-nobody")
        return (await handle.describe()).run_id != first_run

    await until(continued, seconds=90, what="the run was not continued as new")
    assert plane.cloud is not None
    await plane.cloud.release((await plane.attempts(job_id))[0].id)
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert len((await handle.fetch_history()).events) < 10_000
    assert len(await plane.attempts(job_id)) == 1


async def test_a_terminate_signal_that_comes_twice_is_taken_once(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.terminate(job_id)
    await plane.temporal.get_workflow_handle(job_id).signal("terminate", TerminateSignal())

    assert (await plane.until_terminal(job_id))["state"] == "terminated"
    await plane.until_gone(job_id)
