"""Machines that vanish, agents that fall silent, control planes that go away: each gets its right class."""

import asyncio

from domain.states import JobState
from tests.support.control_plane import ControlPlane, until


async def test_a_vanished_machine_is_lost(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    assert plane.cloud is not None
    await plane.cloud.vanish((await plane.attempts(job_id))[0].id)

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("failed", "instance_lost")


async def test_a_machine_that_its_cloud_took_back_is_preempted(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    assert plane.cloud is not None
    await plane.cloud.interrupt((await plane.attempts(job_id))[0].id)

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("failed", "preempted")


async def test_a_preempted_job_that_asked_for_it_runs_again_on_new_hardware(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=3, retry={"on_preemption": True, "max_attempts": 2})
    await plane.until_state(job_id, JobState.RUNNING)
    assert plane.cloud is not None
    first = (await plane.attempts(job_id))[0]
    await plane.cloud.interrupt(first.id)

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert [a.reason_code for a in await plane.attempts(job_id)] == ["preempted", None]


async def test_a_silent_agent_on_a_living_machine_is_never_abandoned(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120, silent_after_seconds=0.2)
    await plane.until_state(job_id, JobState.RUNNING)

    async def contact_lost() -> bool:
        return bool(await plane.events(job_id, "contact_lost"))

    await until(contact_lost, what="the silence was not noticed")
    await asyncio.sleep(3)

    assert await plane.state(job_id) is JobState.RUNNING
    assert len(await plane.attempts(job_id)) == 1
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def test_a_job_that_runs_and_one_that_ends_while_the_api_is_down_are_not_lost(plane: ControlPlane) -> None:
    longer, shorter = await plane.fake(run_seconds=12), await plane.fake(run_seconds=2)
    for job_id in (longer, shorter):
        await plane.until_state(job_id, JobState.RUNNING)
    await plane.stop_api()
    # Three times the contact time-out: time in which no API could be reached is not silence.
    await asyncio.sleep(6)

    await plane.start_api()
    ends = [(await plane.until_terminal(job_id, seconds=60))["state"] for job_id in (longer, shorter)]
    for job_id in (longer, shorter):
        await plane.until_gone(job_id)

    assert ends == ["succeeded", "succeeded"]
    for job_id in (longer, shorter):
        assert len(await plane.attempts(job_id)) == 1
        assert await plane.log_text(job_id) == "fake\n"


async def test_an_exit_that_was_stored_and_not_delivered_ends_the_job(plane: ControlPlane) -> None:
    """The API is dead between the exit report's commit and the activity's completion."""
    job_id = await plane.fake(run_seconds=1)
    await plane.until_state(job_id, JobState.RUNNING)
    plane.services.temporal = None

    async def exit_stored() -> bool:
        return (await plane.attempts(job_id))[0].exit_report is not None

    await until(exit_stored)
    await plane.stop_api()
    # Without any API: Temporal's heartbeat time-out makes the activity read the row.
    job = await plane.until_terminal(job_id)

    assert job["state"] == "succeeded"
    plane.services.temporal = plane.temporal
    await plane.start_api()
    await plane.until_gone(job_id)
