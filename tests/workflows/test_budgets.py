"""The budget workflow on a real server: it ends jobs in time, by a timer that changes move, and says so."""

import asyncio
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlmodel import select
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from activities.reconcile import ReconcileActivities
from activities.recovery import sweep
from domain.clock import utc_now
from domain.states import JobState
from providers.fake.faults import Operation
from providers.fake.server import RunningCloud
from store.budget_inbox import budget_workflow_id
from store.tables import BudgetAlert, InboxRow
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.test_egress import receiving
from workflows.contract import BUDGET, BudgetInput

# The cloud's CPU costs 0.36 USD/h by the second, 0.0001 USD a second; a teardown takes a second, the drain half of one.
SECOND = Decimal("0.0001")


async def budget(plane: ControlPlane, usd: str, **fields: Any) -> str:
    answer = await plane.client.post(
        "/api/v1/compute/budgets",
        content=f'{{"amount_usd": {usd}, "alert_percents": {fields.pop("alerts", [])}}}',
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def alerts(plane: ControlPlane) -> set[tuple[str, int]]:
    rows = await plane.services.db.read(lambda s: s.exec(select(BudgetAlert)).all())
    return {(row.kind, row.percent) for row in rows}


async def plan(plane: ControlPlane) -> dict[str, Any] | None:
    found: dict[str, Any] | None = await plane.temporal.get_workflow_handle(budget_workflow_id(plane.org_id)).query(
        "status"
    )
    return found


async def is_charged_at_most(plane: ControlPlane, usd: Decimal) -> None:
    assert plane.cloud is not None
    assert await plane.cloud.charged() <= usd


async def test_jobs_end_before_their_budget_is_overspent(plane: ControlPlane) -> None:
    amount = 12 * SECOND
    await budget(plane, str(amount), alerts=[50])
    one = await plane.fake(run_seconds=120, limits={"max_cost_usd": 0.0005})
    two = await plane.fake(run_seconds=120)

    ended = [await plane.until_terminal(job_id) for job_id in (one, two)]
    for job_id in (one, two):
        await plane.until_gone(job_id)

    assert "budget_exhausted" in {job["reason"]["code"] for job in ended}
    assert {job["state"] for job in ended} == {"terminated"}
    await is_charged_at_most(plane, amount)
    assert ("exhausted", 100) in await alerts(plane)
    assert ("threshold", 50) in await alerts(plane)
    assert ("overspent", 100) not in await alerts(plane)


async def test_a_create_beyond_the_budget_is_refused_with_its_code(plane: ControlPlane) -> None:
    await budget(plane, "0.001")
    job_id = await plane.fake(run_seconds=120)
    body = {
        "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
        "container": {"image": "registry.example/app:1", "command": ["true"]},
    }
    answer = await plane.client.post("/api/v1/compute/jobs", json=body, headers={"Idempotency-Key": "second"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "budget_exhausted")
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def test_a_dearer_price_in_mid_run_ends_the_jobs_within_the_budget(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    assert plane.context is not None
    amount = Decimal("0.20")
    await budget(plane, str(amount))
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)

    async def sleeps() -> bool:
        found = await plan(plane)
        return found is not None and found["next_at"] is not None

    await until(sleeps, what="the budget workflow sets its timer")

    # A cent a second: half an hour becomes some ten seconds.
    await plane.cloud.set_price((await plane.attempts(job_id))[0].id, "36")
    await ActivityEnvironment().run(ReconcileActivities(plane.context).reconcile_connection, "fake")
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)

    assert (job["state"], job["reason"]["code"]) == ("terminated", "budget_exhausted")
    await is_charged_at_most(plane, amount)


async def test_an_offer_that_the_budget_cannot_pay_is_never_taken(plane: ControlPlane) -> None:
    await budget(plane, "0.0001")
    job = await plane.until_terminal(await plane.fake())
    assert (job["state"], job["reason"]["code"]) == ("failed", "budget_exhausted")
    assert plane.cloud is not None
    assert await plane.cloud.instances() == []


async def test_a_create_answer_that_is_too_dear_costs_its_attempt_and_no_other_job(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await budget(plane, "0.50")
    calm = await plane.fake(run_seconds=120, limits={"max_cost_usd": 0.4})
    await plane.until_state(calm, JobState.RUNNING)
    # Ten cents a second: its first second and its end are more than the other job's reservation leaves.
    await plane.cloud.fault(Operation.CREATE, price_usd_hr="360")
    dear = await plane.fake(run_seconds=120)

    job = await plane.until_terminal(dear)
    await plane.until_gone(dear)

    assert (job["state"], job["reason"]["code"]) == ("failed", "max_cost_exceeded")
    assert "or its budget" in job["reason"]["message"]
    assert await plane.state(calm) is JobState.RUNNING
    await plane.terminate(calm)
    await plane.until_terminal(calm)
    await plane.until_gone(calm)


async def test_a_budget_that_is_cut_stops_what_runs_and_its_workflow_ends_with_the_last_one(
    plane: ControlPlane,
) -> None:
    budget_id = await budget(plane, "100")
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    path = f"/api/v1/compute/budgets/{budget_id}"
    assert (await plane.client.put(path, json={"amount_usd": 0})).status_code == 200
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert job["reason"]["code"] == "budget_exhausted"

    assert (await plane.client.delete(path)).status_code == 204
    async with asyncio.timeout(20):
        handle = plane.temporal.get_workflow_handle(budget_workflow_id(plane.org_id))
        assert await handle.result() == "no budgets"


async def test_what_was_told_while_no_worker_ran_is_done_at_its_return(plane: ControlPlane) -> None:
    await budget(plane, str(30 * SECOND))
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.stop_worker()
    await asyncio.sleep(1)
    await plane.start_worker()
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert job["reason"]["code"] == "budget_exhausted"
    await is_charged_at_most(plane, 30 * SECOND)


async def test_without_a_budget_there_is_no_workflow_and_no_message(plane: ControlPlane) -> None:
    job_id = await plane.fake(run_seconds=0)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    rows = await plane.services.db.read(lambda s: s.exec(select(InboxRow).where(InboxRow.kind == "budget")).all())
    assert rows == []


async def test_a_budget_that_stops_its_jobs_tells_a_webhook_so(
    sqlite_url: str, temporal_address: str, cloud: RunningCloud
) -> None:
    async with (
        receiving() as receiver,
        control_plane(
            sqlite_url, temporal_address, cloud_url=cloud.url, egress_allowed_networks="127.0.0.1/32"
        ) as plane,
    ):
        answer = await plane.client.post(
            "/api/v1/compute/webhooks", json={"url": f"http://127.0.0.1:{receiver.port}/hook"}
        )
        assert answer.status_code == 201, answer.text
        budget_id = await budget(plane, str(20 * SECOND), alerts=[50])
        job_id = await plane.fake(run_seconds=120)
        await plane.until_terminal(job_id)
        await plane.until_gone(job_id)

        async def told() -> bool:
            return len(receiver.requests) >= 3

        await until(told, what="three deliveries")
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests]
    by_type = {body["type"]: body["data"] for body in bodies}
    assert set(by_type) == {"budget.threshold_reached", "budget.exhausted", "job.terminated"}
    assert by_type["budget.threshold_reached"]["budget"]["percent"] == 50
    assert by_type["budget.exhausted"]["budget"]["id"] == budget_id
    assert by_type["budget.exhausted"]["budget"]["stopped_jobs"] == [job_id]
    assert by_type["job.terminated"]["job"]["reason"]["code"] == "budget_exhausted"


async def test_a_budget_workflow_that_was_ended_from_outside_is_started_again(plane: ControlPlane) -> None:
    assert plane.context is not None
    await budget(plane, "100")
    handle = plane.temporal.get_workflow_handle(budget_workflow_id(plane.org_id))

    async def sleeps() -> bool:
        try:
            return await plan(plane) is not None
        except RPCError:
            return False

    await until(sleeps, what="the budget workflow runs")
    await handle.terminate("by an operator")
    plane.context.clock = lambda: utc_now() + timedelta(minutes=1)
    assert await sweep(plane.context, plane.temporal) == [plane.org_id]
    await until(sleeps, what="it runs again")
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING


async def test_a_long_history_is_continued_and_nothing_is_forgotten(plane: ControlPlane) -> None:
    await budget(plane, "100")
    handle = plane.temporal.get_workflow_handle(budget_workflow_id(plane.org_id))

    async def runs() -> bool:
        try:
            return await plan(plane) is not None
        except RPCError:
            return False

    await until(runs, what="the budget workflow runs")
    first = (await handle.describe()).run_id

    # While more and more messages come in, the server lets no run end: they come in one burst.
    for _ in range(21):
        await asyncio.gather(*(handle.signal("changed") for _ in range(100)))

    async def another_run() -> bool:
        return (await handle.describe()).run_id != first

    await until(another_run, seconds=60, what="it continues as new")
    job_id = await plane.fake(run_seconds=120)
    await plane.until_state(job_id, JobState.RUNNING)
    [known] = (await plane.client.get("/api/v1/compute/budgets")).json()["data"]
    await plane.client.put(f"/api/v1/compute/budgets/{known['id']}", json={"amount_usd": 0})
    assert (await plane.until_terminal(job_id))["reason"]["code"] == "budget_exhausted"
    await plane.until_gone(job_id)


async def test_a_run_is_not_older_than_it_may_be(plane: ControlPlane) -> None:
    """A week in earnest: what a history is sealed with need not be kept for longer."""
    budget_id = await budget(plane, "100")
    handle = await plane.temporal.start_workflow(
        BUDGET,
        BudgetInput(plane.org_id, longest_run_seconds=1),
        id="budget-of-short-runs",
        task_queue=plane.settings.task_queue,
    )

    async def third_run() -> bool:
        runs = [run async for run in plane.temporal.list_workflows("WorkflowId = 'budget-of-short-runs'")]
        return len(runs) >= 3

    await until(third_run, what="it continues as new twice")
    await plane.client.delete(f"/api/v1/compute/budgets/{budget_id}")
    # The next run's first look finds none.
    assert await handle.result() == "no budgets"
    first = await plane.temporal.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id).fetch_history()
    assert len(first.events) < 40
