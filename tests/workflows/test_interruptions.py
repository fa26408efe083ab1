"""A provider that gives notice before it takes a machine back: the workload may end well, and is else tried again."""

import pytest

from domain.states import JobState
from tests.support.control_plane import ControlPlane, until

RETRY = {"on_preemption": True, "max_attempts": 2}
TOLD = "the provider takes this machine back soon: the workload gets SIGTERM"


@pytest.mark.parametrize(("status", "signal"), [(143, 15), (1, 0)], ids=["killed", "exited"])
async def test_a_workload_that_ends_on_notice_runs_again(plane: ControlPlane, status: int, signal: int) -> None:
    assert plane.cloud is not None
    await plane.cloud.script(stdout="second\n")
    await plane.cloud.script(times=1, notice=True, status=status, signal=signal, stdout="first\n")
    job_id = await plane.create(retry=RETRY)

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert [a.reason_code for a in await plane.attempts(job_id)] == ["preempted", None]
    assert job["attempts"] == {"total": 2, "rejected": 0, "user_failure": 0, "preemption": 1, "infrastructure": 0}
    assert await plane.log_text(job_id) == "first\nsecond\n"
    assert TOLD in await plane.log_text(job_id, "system")
    assert len(await plane.events(job_id, "interruption_noticed")) == 1


async def test_without_a_retry_it_is_preempted_and_never_failed_by_itself(plane: ControlPlane) -> None:
    job_id = await plane.fake(notice=True, status=1)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "preempted")
    assert "status 1" in job["reason"]["message"]
    assert job["attempts"]["preemption"] == 1


async def test_a_workload_that_ends_well_on_notice_has_succeeded(plane: ControlPlane) -> None:
    job_id = await plane.fake(notice=True, retry=RETRY)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert (job["state"], job["exit_code"]) == ("succeeded", 0)
    assert len(await plane.attempts(job_id)) == 1


async def test_a_machine_that_vanishes_after_the_notice_was_preempted_not_lost(plane: ControlPlane) -> None:
    job_id = await plane.fake(notice=True, hold_run=True)

    async def noticed() -> bool:
        return bool(await plane.events(job_id, "interruption_noticed"))

    await plane.until_state(job_id, JobState.RUNNING)
    await until(noticed, what="the notice")
    assert await plane.state(job_id) is JobState.RUNNING
    assert plane.cloud is not None
    await plane.cloud.vanish((await plane.attempts(job_id))[0].id)

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("failed", "preempted")
