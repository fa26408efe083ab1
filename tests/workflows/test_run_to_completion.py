"""A job that nothing goes wrong with."""

from datetime import timedelta

from temporalio.client import WorkflowExecutionStatus

from api.dispatcher import Dispatcher
from domain.states import JobState
from store.tables import InboxRow
from tests.support.control_plane import ControlPlane

MOST_EVENTS = 45


async def test_a_job_that_exits_zero_succeeds_and_gives_its_machine_back(plane: ControlPlane) -> None:
    job_id = await plane.fake(stdout="hello\n", status=0)

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert job["exit_code"] == 0
    assert job["reason"] is None
    assert await plane.log_text(job_id) == "hello\n"
    assert plane.cloud is not None
    assert await plane.cloud.alive() == []


async def test_a_job_that_exits_nonzero_fails_with_its_code_and_reason(plane: ControlPlane) -> None:
    job_id = await plane.fake(status=3)

    job = await plane.until_terminal(job_id)

    assert (job["state"], job["exit_code"], job["reason"]["code"]) == ("failed", 3, "workload_exit_nonzero")


async def test_a_signal_is_told_from_a_status(plane: ControlPlane) -> None:
    job = await plane.until_terminal(await plane.fake(status=139, signal=11))

    assert job["reason"]["code"] == "workload_signaled"
    assert "SIGSEGV" in job["reason"]["message"]


async def test_events_tell_the_story_in_order(plane: ControlPlane) -> None:
    job_id = await plane.fake()
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    types = [event.type for event in await plane.events(job_id)]

    story = ["job_created", "provider_allocated", "agent_connected", "workload_started", "workload_exited"]
    assert [t for t in types if t in story] == story
    assert {"delete_accepted", "instance_gone"} <= set(types)


async def test_the_history_of_a_successful_job_stays_short_whatever_the_runtime(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=3, repeat=10, limits={"max_runtime_hours": 1, "max_cost_usd": 100})
    await plane.until_terminal(job_id)

    handle = plane.temporal.get_workflow_handle(job_id)
    await handle.result(rpc_timeout=timedelta(seconds=10))
    events = (await handle.fetch_history()).events

    assert len(events) <= MOST_EVENTS, [event.event_type for event in events]


async def test_operators_can_ask_a_running_workflow_for_its_status(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=30, limits={"max_runtime_hours": 2})
    await plane.until_state(job_id, JobState.RUNNING)

    status = await plane.temporal.get_workflow_handle(job_id).query("status")

    assert status["attempt_id"] == (await plane.attempts(job_id))[0].id
    assert status["deadline"]["reason"] == "max_runtime_exceeded"
    await plane.terminate(job_id)
    await plane.until_gone(job_id)


async def test_a_job_that_was_created_while_temporal_was_away_runs_once_it_is_back(plane: ControlPlane) -> None:
    plane.services.temporal = None
    job_id = await plane.fake()
    assert (await plane.job(job_id))["state"] == "requested"

    plane.services.temporal = plane.temporal

    assert (await plane.until_terminal(job_id))["state"] == "succeeded"


async def test_a_closed_workflow_is_not_started_again_by_a_second_delivery(plane: ControlPlane) -> None:
    job_id = await plane.fake()
    await plane.until_terminal(job_id)
    row = InboxRow(job_id=job_id, kind="start", dedupe_key="again", payload={}, created_at=plane.services.clock())
    await Dispatcher(plane.services)._deliver(plane.temporal, row)

    description = await plane.temporal.get_workflow_handle(job_id).describe()
    assert description.status is WorkflowExecutionStatus.COMPLETED
    assert len(await plane.attempts(job_id)) == 1
