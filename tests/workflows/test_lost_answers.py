"""Cases 1, 2 and 9: creates whose answer is lost, late, or dearer than the offer."""

from decimal import Decimal

import pytest

from providers.fake.cloud import CloudOffer
from providers.fake.faults import Answer, Operation
from tests.support.control_plane import ControlPlane, until

TWO_OFFERS = (
    CloudOffer(id="cheap", accelerator="cpu-general", gpu_count=0, price_usd_hr=Decimal("0.36")),
    CloudOffer(id="dear", accelerator="cpu-general", gpu_count=0, price_usd_hr=Decimal("0.72")),
)


@pytest.mark.parametrize("answer", [Answer.INTERNAL, Answer.RESET, Answer.TRUNCATED, Answer.HTML_502, Answer.CUT])
async def test_a_create_that_answered_with_an_error_although_it_worked_is_adopted(
    plane: ControlPlane, answer: Answer
) -> None:
    assert plane.cloud is not None
    # The machine is made, the answer lost, and the first two looks do not see it.
    await plane.cloud.fault(Operation.CREATE, answer, stage="after", hide_calls=2)

    job_id = await plane.fake()
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert len(await plane.cloud.instances()) == 1
    assert len(await plane.attempts(job_id)) == 1


@pytest.mark.parametrize("dedupe", ["none", "same", "conflict"])
async def test_a_worker_that_dies_right_after_the_create_leaves_one_machine(plane: ControlPlane, dedupe: str) -> None:
    assert plane.cloud is not None
    await plane.cloud.settings(dedupe=dedupe)
    # The create is done, its answer hangs: the worker is gone before it arrives.
    await plane.cloud.fault(Operation.CREATE, delay_after_seconds=2)
    job_id = await plane.fake()
    await until(lambda: _has_machine(plane), what="no machine was made")
    await plane.stop_worker()

    await plane.start_worker()
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert len(await plane.cloud.instances()) == 1


async def test_no_capacity_goes_to_the_next_offer_and_is_told_in_events(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(*TWO_OFFERS)
    await plane.cloud.fault(Operation.CREATE, Answer.NO_CAPACITY, offer="cheap")

    job_id = await plane.fake()
    job = await plane.until_terminal(job_id)

    assert job["state"] == "succeeded"
    rejected = await plane.events(job_id, "offer_rejected")
    assert [event.data["class"] for event in rejected] == ["no_capacity"]


async def test_a_menu_that_stays_exhausted_fails_the_job_after_the_capacity_wait(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.CREATE, Answer.QUOTA, times=None)

    job = await plane.until_terminal(await plane.fake(), seconds=40)

    assert (job["state"], job["reason"]["code"]) == ("failed", "quota_exceeded")


async def test_a_request_that_no_backend_can_serve_fails_at_once_and_says_why(plane: ControlPlane) -> None:
    job_id = await plane.create(
        compute={"accelerator": "nvidia-b300-288gb", "gpu_count": 8, "ephemeral_disk_gb": 1},
    )

    job = await plane.until_terminal(job_id, seconds=10)

    assert job["reason"]["code"] == "capacity_unavailable"
    assert "nvidia-b300-288gb" in job["reason"]["message"]


async def test_a_create_answer_over_the_price_limit_is_deleted_and_the_next_offer_taken(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(*TWO_OFFERS)
    await plane.cloud.fault(Operation.CREATE, price_usd_hr="99", offer="cheap")

    job_id = await plane.fake(placement={"max_price_usd_hr": 50})
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    first, second = await plane.attempts(job_id)
    assert (first.reason_code, second.offer["provider_sku"]) == ("max_cost_exceeded", "dear")
    [rejected] = await plane.events(job_id, "offer_rejected")
    assert (rejected.data["class"], rejected.data["sku"]) == ("price", "cheap")
    assert (job["attempts"]["rejected"], job["attempts"]["infrastructure"]) == (1, 0)
    assert job["state"] == "succeeded"
    assert await plane.cloud.alive() == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_termination_while_the_create_hangs_ends_with_nothing_left(plane: ControlPlane, when: str) -> None:
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.CREATE, **{f"delay_{when}_seconds": 2})
    job_id = await plane.fake(run_seconds=60)
    await until(lambda: _was_asked(plane), what="no create was asked for")

    await plane.terminate(job_id)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "terminated"
    assert await plane.cloud.alive() == []
    assert not await plane.events(job_id, "workload_started")


async def _has_machine(plane: ControlPlane) -> bool:
    assert plane.cloud is not None
    return bool(await plane.cloud.instances())


async def _was_asked(plane: ControlPlane) -> bool:
    assert plane.cloud is not None
    return bool(await plane.cloud.journal(Operation.CREATE))
