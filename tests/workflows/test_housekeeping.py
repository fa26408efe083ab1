"""What the scheduled workflows leave behind: exported histories, sealed logs."""

import asyncio
from datetime import timedelta

from sqlmodel import Session, select
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from activities.histories import export_failed, export_name
from domain.clock import utc_now
from domain.ids import new_id
from domain.states import InstanceState, JobState
from store import inbox
from store.tables import InboxRow, Job, LedgerEntry, WebhookDelivery
from store.temporal import data_converter
from tests.support.control_plane import ControlPlane
from tests.support.factory import Factory
from worker import WORKFLOWS
from workflows.contract import HOUSEKEEPING


async def test_a_failed_jobs_history_is_exported_once_and_replays(plane: ControlPlane) -> None:
    job_id = await plane.fake(status=7)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    await plane.temporal.get_workflow_handle(job_id).result()
    assert plane.context is not None

    def some_time_ago(session: Session) -> None:
        job = session.get_one(Job, job_id)
        assert job.terminal_at is not None
        job.terminal_at -= timedelta(minutes=1)
        session.add(job)

    await plane.services.db.write(some_time_ago)

    first = await export_failed(plane.context, plane.temporal)
    second = await export_failed(plane.context, plane.temporal)

    assert (first, second) == (1, 0)
    exported = (plane.settings.data_dir / "logs" / export_name(job_id)).read_text()
    replayer = Replayer(workflows=WORKFLOWS, data_converter=data_converter(plane.services.vault))
    await replayer.replay_workflow(WorkflowHistory.from_json(job_id, exported))


async def test_housekeeping_seals_the_logs_of_finished_jobs(plane: ControlPlane) -> None:
    job_id = await plane.fake(stdout="a line to keep\n", repeat=3, run_seconds=0.2)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    report = await plane.temporal.execute_workflow(
        HOUSEKEEPING, id=new_id("housekeeping"), task_queue=plane.settings.task_queue, result_type=str
    )

    assert report.startswith("1 logs sealed")
    assert await plane.log_text(job_id) == "a line to keep\n" * 3


async def test_housekeeping_forgets_old_messages_to_budgets_and_old_deliveries(plane: ControlPlane) -> None:
    now = plane.services.clock()

    def leave(session: Session) -> None:
        for key, age in (("old", 8), ("young", 6)):
            at = now - timedelta(days=age)
            inbox.put(session, "budget-org_1", inbox.BUDGET, at, key=key)
            session.flush()
            row = session.exec(select(InboxRow).where(InboxRow.dedupe_key == key)).one()
            row.delivered_at = at
        for name, age in (("whd_old", 31), ("whd_young", 29)):
            at = now - timedelta(days=age)
            fields = {"webhook_id": "wh_1", "org_id": "org_1", "type": "webhook.test", "data": {}}
            session.add(WebhookDelivery(id=name, state="dead", created_at=at, due_at=at, settled_at=at, **fields))

    await plane.services.db.write(leave)
    await plane.temporal.execute_workflow(
        HOUSEKEEPING, id=new_id("housekeeping"), task_queue=plane.settings.task_queue, result_type=str
    )

    def left(session: Session) -> tuple[list[str], list[str]]:
        told = session.exec(select(InboxRow.dedupe_key).where(InboxRow.kind == inbox.BUDGET)).all()
        return list(told), list(session.exec(select(WebhookDelivery.id)).all())

    assert await plane.services.db.read(left) == (["young"], ["whd_young"])


async def test_housekeeping_closes_the_days_that_are_over(plane: ControlPlane) -> None:
    now = utc_now()
    factory = Factory(plane.services.db, lambda: now, plane.services.vault)
    job = await asyncio.to_thread(factory.job, JobState.RUNNING)
    begin = (now - timedelta(days=2)).replace(hour=22, minute=0, second=0, microsecond=0)
    instance = await asyncio.to_thread(factory.instance, job, InstanceState.RUNNING, allocated_at=begin)
    await asyncio.to_thread(factory.price, instance, "0.6", begin)

    for _ in range(2):
        await plane.temporal.execute_workflow(
            HOUSEKEEPING, id=new_id("housekeeping"), task_queue=plane.settings.task_queue, result_type=str
        )

    entries = await plane.services.db.read(lambda s: s.exec(select(LedgerEntry).order_by(LedgerEntry.id)).all())
    assert [(e.resource_id, e.begins_at, e.units) for e in entries] == [
        (job.id, begin, 120),
        (job.id, begin + timedelta(hours=2), 1440),
    ]
