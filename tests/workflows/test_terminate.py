"""Case 6: a termination in every phase, twice, and across restarts. Also case 7 through the whole path."""

import asyncio

from domain.states import JobState
from providers.fake.faults import Operation
from tests.support.control_plane import ControlPlane, until


async def test_terminating_a_running_job_ends_its_workload_and_its_machine(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)

    answer = await plane.terminate(job_id)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert answer["state"] == "terminating"
    assert (job["state"], job["reason"]["code"]) == ("terminated", "user_requested")
    assert plane.cloud is not None
    assert await plane.cloud.alive() == []


async def test_terminating_twice_is_one_termination(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)

    first, second = await asyncio.gather(plane.terminate(job_id), plane.terminate(job_id))
    job = await plane.until_terminal(job_id)
    again = await plane.terminate(job_id)

    assert {first["state"], second["state"]} <= {"terminating", "terminated"}
    assert job["state"] == again["state"] == "terminated"
    assert len(await plane.events(job_id, "termination_requested")) == 1


async def test_terminating_before_the_workflow_started_allocates_nothing(plane: ControlPlane) -> None:
    plane.services.temporal = None
    job_id = await plane.fake()
    assert (await plane.terminate(job_id))["state"] == "terminating"

    plane.services.temporal = plane.temporal
    job = await plane.until_terminal(job_id)

    assert job["state"] == "terminated"
    assert await plane.attempts(job_id) == []


async def test_terminating_while_the_machine_boots_starts_no_user_command(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.script(hello_delay_seconds=3)
    job_id = await plane.fake()
    await plane.until_state(job_id, JobState.PROVISIONING)

    await plane.terminate(job_id)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "terminated"
    assert await plane.events(job_id, "workload_started") == []


async def test_a_termination_with_temporal_away_stops_the_workload_and_ends_later(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    plane.services.temporal = None

    answer = await plane.terminate(job_id)

    async def agent_stopped() -> bool:
        return (await plane.attempts(job_id))[0].exit_report is not None

    await until(agent_stopped, what="the agent did not take its stop order from the row")
    assert answer["state"] == "terminating"
    plane.services.temporal = plane.temporal
    assert (await plane.until_terminal(job_id))["state"] == "terminated"


async def test_a_termination_survives_a_restart_of_the_worker(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.stop_worker()
    await plane.terminate(job_id)

    await plane.start_worker()
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "terminated"


async def test_a_machine_whose_deletion_fails_for_a_while_goes_in_the_end(plane: ControlPlane) -> None:
    """Case 4: the job is finished long before its machine is; the deletion goes on, and its cost counts."""
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.DELETE, "internal", times=6)
    job_id = await plane.fake()

    job = await plane.until_terminal(job_id)
    assert (await plane.attempts(job_id))[0].confirmed_absent_at is None
    await plane.until_gone(job_id, seconds=90)

    assert job["state"] == "succeeded"
    assert await plane.cloud.alive() == []
    assert len(await plane.events(job_id, "delete_retried")) == 1


async def test_a_deleted_machine_that_is_still_listed_is_not_gone(plane: ControlPlane) -> None:
    """Case 5: 200 to the delete call, and the listing still shows it running."""
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.DELETE, linger_seconds=1.5)
    job_id = await plane.fake()

    await plane.until_terminal(job_id)
    assert (await plane.attempts(job_id))[0].confirmed_absent_at is None
    await plane.until_gone(job_id)

    assert await plane.cloud.alive() == []


async def test_exit_and_termination_at_the_same_moment_have_one_outcome(plane: ControlPlane) -> None:
    """Case 7, a few rounds through the whole path; 200 rounds of the race itself are in tests/store."""
    ends = []
    for delay in (0.0, 0.05, 0.1, 0.15):
        job_id = await plane.fake(run_seconds=0.1)
        await plane.until_state(job_id, JobState.RUNNING, JobState.FINALIZING, JobState.SUCCEEDED)
        await asyncio.sleep(delay)
        await plane.terminate(job_id)
        ends.append((await plane.until_terminal(job_id))["state"])
        await plane.until_gone(job_id)

    assert set(ends) <= {"succeeded", "terminated"}
