"""Case 9: a price that changes while the machine runs counts from then on, and moves the cost limit."""

from decimal import Decimal

from sqlmodel import select
from temporalio.testing import ActivityEnvironment

from activities.reconcile import ReconcileActivities
from domain.states import JobState
from store.tables import PriceRecord
from tests.support.control_plane import ControlPlane


async def _reprice(plane: ControlPlane, job_id: str, usd_per_hour: str) -> None:
    assert plane.cloud is not None
    assert plane.context is not None
    await plane.cloud.set_price((await plane.attempts(job_id))[0].id, usd_per_hour)
    await ActivityEnvironment().run(ReconcileActivities(plane.context).reconcile_connection, "fake")


async def test_a_new_price_is_appended_and_the_old_one_stands(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)

    await _reprice(plane, job_id, "3.00")
    await _reprice(plane, job_id, "3.00")

    attempt = (await plane.attempts(job_id))[0]
    records = await plane.services.db.read(
        lambda s: s.exec(
            select(PriceRecord).where(PriceRecord.instance_id == attempt.id).order_by(PriceRecord.id)
        ).all()
    )
    assert [row.usd_per_hour for row in records] == [Decimal("0.36"), Decimal("3.00")]
    job = await plane.job(job_id)
    assert (job["price_usd_hr"], job["current_price_usd_hr"]) == (0.36, 3.0)
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def test_what_another_connection_lists_costs_this_ones_machines_nothing(plane: ControlPlane) -> None:
    """Whoever has an account of their own says what it lists, tags and prices included."""
    assert plane.cloud is not None
    assert plane.context is not None
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.cloud.set_price((await plane.attempts(job_id))[0].id, "360.00")
    plane.context.providers.by_connection["other"] = plane.context.providers.of("fake")

    report = await ActivityEnvironment().run(ReconcileActivities(plane.context).reconcile_connection, "other")

    assert "0 orphans deleted, 0 price changes" in report
    assert (await plane.job(job_id))["current_price_usd_hr"] == 0.36
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def test_a_dearer_price_ends_the_job_within_its_cost_limit(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=120, limits={"max_cost_usd": 0.05})
    await plane.until_state(job_id, JobState.RUNNING)
    status = await plane.temporal.get_workflow_handle(job_id).query("status")
    assert status["deadline"]["reason"] == "max_cost_exceeded"

    await _reprice(plane, job_id, "36")
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("terminated", "max_cost_exceeded")
    assert job["accrued_usd"] <= 0.05
