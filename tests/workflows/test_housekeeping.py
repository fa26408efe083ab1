"""What the scheduled workflows leave behind: exported histories, sealed logs."""

from datetime import timedelta

from sqlmodel import Session
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from activities.histories import export_failed, export_name
from domain.ids import new_id
from store.tables import Job
from store.temporal import data_converter
from tests.support.control_plane import ControlPlane
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
