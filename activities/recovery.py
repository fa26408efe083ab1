"""Finds jobs whose row should have a workflow and has none, and starts `Recover` for them."""

from datetime import timedelta

from sqlmodel import Session, col, select
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.context import Context, log
from domain.states import TERMINAL
from store.tables import Job
from workflows.contract import RECOVER, JobInput, recover_id

_SETTLING = timedelta(seconds=5)
_BATCH = 500


async def sweep(context: Context, client: Client) -> list[str]:
    """One look; answers the jobs for which `Recover` was started. Only rows marked started are looked at: a start that
    was never delivered is the dispatcher's."""
    suspects = await context.db.read(lambda session: _started_and_open(session, context))
    running = {execution.id async for execution in client.list_workflows(_RUNNING)}
    recovered = []
    for job_id in suspects:
        if job_id not in running and await _is_over(client, job_id):
            await _recover(client, context, job_id)
            recovered.append(job_id)
    return recovered


_RUNNING = "WorkflowType = 'ComputeJob' AND ExecutionStatus = 'Running'"


def _started_and_open(session: Session, context: Context) -> list[str]:
    query = select(Job.id).where(
        col(Job.state).not_in([s.value for s in TERMINAL]),
        col(Job.workflow_started_at).is_not(None),
        col(Job.workflow_started_at) < context.clock() - _SETTLING,
    )
    return list(session.exec(query.order_by(col(Job.created_at)).limit(_BATCH)).all())


async def _is_over(client: Client, job_id: str) -> bool:
    """Visibility lags, so the workflow itself is asked."""
    try:
        description = await client.get_workflow_handle(job_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return description.status is not WorkflowExecutionStatus.RUNNING


async def _recover(client: Client, context: Context, job_id: str) -> None:
    log.error("workflow_lost", job_id=job_id)
    try:
        await client.start_workflow(
            RECOVER,
            JobInput(job_id),
            id=recover_id(job_id),
            task_queue=context.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
    except WorkflowAlreadyStartedError:
        return
