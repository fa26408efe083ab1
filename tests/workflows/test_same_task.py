"""A termination and the end of an activity that reach the workflow within one and the same workflow task."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.worker import Worker

from domain.states import JobState
from providers.fake.faults import Operation
from tests.support.control_plane import ControlPlane, until
from worker import WORKFLOWS, activities_of


@asynccontextmanager
async def workflows_only(plane: ControlPlane) -> AsyncIterator[None]:
    """A worker that runs workflows and their local activities, and leaves the other activities to others."""
    assert plane.context is not None
    queue, activities = plane.settings.task_queue, activities_of(plane.context)
    async with Worker(
        plane.temporal, task_queue=queue, workflows=WORKFLOWS, activities=activities, no_remote_activities=True
    ):
        yield


@asynccontextmanager
async def activities_only(plane: ControlPlane) -> AsyncIterator[None]:
    assert plane.context is not None
    async with Worker(
        plane.temporal, task_queue=plane.settings.task_queue, activities=activities_of(plane.context)
    ):  # fmt: skip
        yield


async def pending_activities(plane: ControlPlane, job_id: str) -> int:
    description = await plane.temporal.get_workflow_handle(job_id).describe()
    return len(description.raw_description.pending_activities)


@pytest.mark.parametrize("phase", [JobState.ALLOCATING, JobState.PROVISIONING])
async def test_a_termination_that_meets_the_end_of_an_activity_ends_the_job(
    plane: ControlPlane, phase: JobState
) -> None:
    """The activity's outcome swallows the cancellation; the job must not go on, nor wait for ever."""
    assert plane.cloud is not None
    await plane.cloud.script(hello_delay_seconds=60)
    if phase is JobState.ALLOCATING:
        await plane.cloud.fault(Operation.CREATE, delay_before_seconds=2)
    await plane.stop_worker()
    async with activities_only(plane):
        async with workflows_only(plane):
            job_id = await plane.fake()
            await plane.until_state(job_id, phase)
            await until(lambda: pending_activities(plane, job_id))
        await plane.terminate(job_id)

        async def activity_ended() -> bool:
            return await pending_activities(plane, job_id) == 0

        await until(activity_ended)
        async with workflows_only(plane):
            job = await plane.until_terminal(job_id, seconds=40)
            await plane.until_gone(job_id)
    await plane.start_worker()

    assert job["state"] == "terminated"
    assert await plane.cloud.alive() == []
    assert await plane.events(job_id, "workload_started") == []
