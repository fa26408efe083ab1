"""Allocations that ended half way, or that two workers made at once: one machine for an attempt, within the limits."""

from decimal import Decimal

from sqlmodel import Session
from temporalio.testing import ActivityEnvironment

from activities.allocate import AllocateActivities
from activities.instances import instance_spec
from domain.clock import utc_now
from domain.offers import Offer
from domain.spec import Limits
from domain.states import JobState, Reason
from providers.base import Handle
from providers.fake.faults import Operation
from store import attempts
from store.tables import Instance, Job
from tests.support.control_plane import ControlPlane, until
from tests.support.factory import Factory
from workflows.contract import AllocateInput, Allocation, AllocationOutcome


async def _hanging_create(plane: ControlPlane) -> tuple[str, Instance]:
    """A job whose create is done at the provider, while its answer hangs for a moment."""
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.CREATE, delay_after_seconds=2)
    job_id = await plane.fake()

    async def made() -> bool:
        assert plane.cloud is not None
        return bool(await plane.cloud.instances())

    await until(made, what="no machine was made")
    return job_id, (await plane.attempts(job_id))[0]


async def test_of_two_workers_creates_for_one_attempt_the_second_answer_is_given_back(plane: ControlPlane) -> None:
    """A worker that was taken for dead goes on with its create, while another one has finished the attempt."""
    assert plane.cloud is not None
    assert plane.context is not None
    job_id, attempt = await _hanging_create(plane)
    late = (await plane.cloud.instances())[0]["id"]
    offer, provider = Offer.model_validate(attempt.offer), plane.context.providers.of("fake")
    job = await plane.services.db.read(lambda session: session.get_one(Job, job_id))
    await plane.cloud.hide(late, calls=1, operations=[Operation.FIND])
    other = type(provider)(provider._context, plane.settings.fake_provider_url)  # type: ignore[call-arg, attr-defined]
    handle = await other.create(await instance_spec(plane.context, job, attempt), offer)
    await other.close()

    def other_worker(session: Session) -> None:
        row = attempts.locked(session, attempt.id)
        attempts.allocated(session, row, handle.model_dump(mode="json"), offer.price_usd_hr, "test", utc_now())

    await plane.services.db.write(other_worker)
    job_record = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job_record["state"] == "succeeded"
    assert handle.provider_id != late
    assert (await plane.attempts(job_id))[0].handle == handle.model_dump(mode="json")
    assert await plane.cloud.alive() == []


async def test_a_create_that_outlives_its_attempts_confirmed_end_leaves_nothing(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    job_id, attempt = await _hanging_create(plane)

    def confirmed_absent(session: Session) -> None:
        attempts.gone(session, attempts.locked(session, attempt.id), utc_now())

    await plane.services.db.write(confirmed_absent)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert await plane.cloud.alive() == []
    assert (await plane.attempts(job_id))[0].allocated_at is None


async def test_a_price_that_was_written_down_and_not_judged_is_judged_by_the_next_try(plane: ControlPlane) -> None:
    """And a rejection that the workflow has not heard of is told again, so that it deletes the machine."""
    assert plane.context is not None
    factory = Factory(plane.services.db, utc_now, plane.services.vault)
    job = factory.job(
        JobState.PROVISIONING, run_token=1, limits=Limits(max_cost_usd=Decimal(1)), allocated_at=utc_now()
    )
    handle = Handle(provider_id="instance-x", resource_type="instance", price_usd_hr=Decimal(99))
    attempt = factory.instance(job, handle=handle.model_dump(mode="json"), allocated_at=utc_now())
    factory.price(attempt, "99")
    allocate = AllocateActivities(plane.context).allocate

    async def again() -> Allocation:
        answer: Allocation = await ActivityEnvironment().run(allocate, AllocateInput(job.id, 1))
        return answer

    first, second = await again(), await again()

    assert first == second
    assert (first.outcome, first.attempt_id) == (AllocationOutcome.TOO_DEAR, attempt.id)
    row = (await plane.attempts(job.id))[0]
    assert row.reason_code == Reason.MAX_COST_EXCEEDED
    assert await plane.state(job.id) is JobState.ALLOCATING
    await plane.services.db.write(lambda session: attempts.gone(session, attempts.locked(session, row.id), utc_now()))
