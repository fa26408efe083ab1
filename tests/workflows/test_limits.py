"""Limits end a job in time, with the right reason, whatever its agent does."""

from datetime import timedelta

import pytest

from domain.states import JobState
from tests.support.control_plane import ControlPlane, until


async def test_max_runtime_ends_the_job_with_its_reason(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120, limits={"max_runtime_hours": 1 / 3600})

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("terminated", "max_runtime_exceeded")


async def test_max_cost_ends_the_job_before_it_is_exceeded(plane: ControlPlane) -> None:
    # 0.36 USD/h by the second is 0.0001 USD a second; teardown takes 1 s and the drain 0.5 s at most.
    job_id = await plane.fake(run_seconds=120, limits={"max_cost_usd": 0.0005})

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["reason"]["code"] == "max_cost_exceeded"
    assert plane.cloud is not None
    assert await plane.cloud.charged(job_id) <= 0.0005


async def test_an_offer_whose_first_unit_exceeds_the_limit_is_never_taken(plane: ControlPlane) -> None:
    job = await plane.until_terminal(await plane.fake(limits={"max_cost_usd": 0.0001}))

    assert (job["state"], job["reason"]["code"]) == ("failed", "max_cost_exceeded")
    assert plane.cloud is not None
    assert await plane.cloud.instances() == []


async def test_an_agent_that_ignores_the_stop_order_is_deleted_all_the_same(plane: ControlPlane) -> None:
    """Case 11."""
    job_id = await plane.fake(run_seconds=120, ignore_stop=True, limits={"max_runtime_hours": 1 / 3600})

    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["reason"]["code"] == "max_runtime_exceeded"


async def test_a_limit_that_passed_while_the_worker_was_down_binds_at_its_return(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120, limits={"max_runtime_hours": 4 / 3600})
    await plane.until_state(job_id, JobState.PROVISIONING, JobState.RUNNING)
    await plane.stop_worker()

    async def passed() -> bool:
        allocated_at = (await plane.attempts(job_id))[0].allocated_at
        assert allocated_at is not None
        return plane.services.clock() > allocated_at + timedelta(seconds=4)

    await until(passed)
    await plane.start_worker()
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["reason"]["code"] == "max_runtime_exceeded"


@pytest.mark.parametrize("script", [{"never_hello": True}, {"hello_delay_seconds": 60}])
async def test_an_agent_that_never_connects_is_given_up_at_the_deadline(
    plane: ControlPlane, script: dict[str, float]
) -> None:
    assert plane.cloud is not None
    await plane.cloud.script(**script)
    job_id = await plane.fake()

    job = await plane.until_terminal(job_id, seconds=40)
    await plane.until_gone(job_id)

    # Its only offer was tried: the job fails for what went wrong with it.
    assert (job["state"], job["reason"]["code"]) == ("failed", "provisioning_timeout")
    attempt = (await plane.attempts(job_id))[0]
    assert attempt.reason_code == "provisioning_timeout"
