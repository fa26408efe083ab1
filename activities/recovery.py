"""Finds rows that should have a workflow and have none: `Recover` is started for jobs, `Deallocation` for attempts,
`Budget` for organizations with budgets.

A workflow may be terminated from outside, be past its retention, or be gone with Temporal's database. What a job or an
attempt still costs then must end all the same. A copy of a database beside a Temporal of its own looks just like that:
while the database may be one (`store.fence`), nothing is started, and what would be is told of.
"""

from datetime import timedelta

from sqlalchemy import or_
from sqlmodel import Session, col, select
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.context import Context, log
from domain.states import TERMINAL
from store.budget_inbox import budget_workflow_id
from store.tables import Budget, Instance, Job
from workflows.contract import (
    BUDGET,
    COMPUTE_JOB,
    DEALLOCATION,
    RECOVER,
    BudgetInput,
    DeallocationInput,
    JobInput,
    deallocation_id,
    recover_id,
)

_SETTLING = timedelta(seconds=5)
_DELETION_SETTLING = timedelta(seconds=30)
"""By then the workflow that ends an attempt has started its deletion, unless no worker runs."""
_BATCH = 500


async def sweep(context: Context, client: Client) -> list[str]:
    """One look; answers the jobs for which `Recover` was started, the attempts whose deletion was started anew, and the
    organizations whose budgets were unattended.

    Only jobs marked started are looked at: a start that was never delivered is the dispatcher's.
    """
    jobs, attempts = await _lost_jobs(context, client), await _lost_deletions(context, client)
    organizations = await _unattended_budgets(context, client)
    if not await context.is_the_one():
        if jobs or attempts:
            log.error("recovery_withheld", jobs=jobs, attempts=[attempt.id for attempt in attempts])
        return []
    for job_id in jobs:
        await _recover(client, context, job_id)
    for attempt in attempts:
        await _delete(client, context, attempt)
    for org_id in organizations:
        log.error("budget_unattended", org_id=org_id)
        await _start(client, context, BUDGET, BudgetInput(org_id), budget_workflow_id(org_id))
    return [*jobs, *(attempt.id for attempt in attempts), *organizations]


async def _lost_jobs(context: Context, client: Client) -> list[str]:
    suspects = await context.db.read(lambda session: _started_and_open(session, context))
    return await _without_workflow(client, COMPUTE_JOB, {job_id: job_id for job_id in suspects})


async def _lost_deletions(context: Context, client: Client) -> list[Instance]:
    suspects = {row.id: row for row in await context.db.read(lambda session: _ended_and_not_gone(session, context))}
    lost = await _without_workflow(client, DEALLOCATION, {deallocation_id(each): each for each in suspects})
    return [suspects[attempt_id] for attempt_id in lost]


async def _unattended_budgets(context: Context, client: Client) -> list[str]:
    settled = col(Budget.created_at) < context.clock() - _SETTLING
    query = select(Budget.org_id).where(settled).distinct()
    organizations = await context.db.read(lambda session: session.exec(query).all())
    return await _without_workflow(client, BUDGET, {budget_workflow_id(org_id): org_id for org_id in organizations})


def _started_and_open(session: Session, context: Context) -> list[str]:
    query = select(Job.id).where(
        col(Job.state).not_in([s.value for s in TERMINAL]),
        col(Job.workflow_started_at).is_not(None),
        col(Job.workflow_started_at) < context.clock() - _SETTLING,
    )
    return list(session.exec(query.order_by(col(Job.created_at)).limit(_BATCH)).all())


def _ended_and_not_gone(session: Session, context: Context) -> list[Instance]:
    """Attempts that were given up, or whose job is over, and that their provider may still have."""
    long_ago = context.clock() - _DELETION_SETTLING
    query = (
        select(Instance)
        .join(Job, col(Job.id) == col(Instance.job_id))
        .where(
            col(Instance.confirmed_absent_at).is_(None),
            or_(col(Instance.terminal_at) < long_ago, col(Job.terminal_at) < long_ago),
        )
    )
    return list(session.exec(query.order_by(col(Instance.created_at)).limit(_BATCH)).all())


async def _without_workflow(client: Client, workflow: str, rows: dict[str, str]) -> list[str]:
    """Of the rows, by their workflow's id, those whose workflow does not run."""
    if not rows:
        return []
    query = f"WorkflowType = '{workflow}' AND ExecutionStatus = 'Running'"
    running = {execution.id async for execution in client.list_workflows(query)}
    # Visibility lags, so the workflow itself is asked.
    return [row for key, row in rows.items() if key not in running and await _is_over(client, key)]


async def _is_over(client: Client, workflow_id: str) -> bool:
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return description.status is not WorkflowExecutionStatus.RUNNING


async def _recover(client: Client, context: Context, job_id: str) -> None:
    log.error("workflow_lost", job_id=job_id)
    await _start(client, context, RECOVER, JobInput(job_id), recover_id(job_id))


async def _delete(client: Client, context: Context, attempt: Instance) -> None:
    log.error("deletion_lost", job_id=attempt.job_id, attempt_id=attempt.id)
    deletion = DeallocationInput(attempt.job_id, attempt.id, activity_timeout=context.settings.activity_timeout_seconds)
    await _start(client, context, DEALLOCATION, deletion, deallocation_id(attempt.id))


async def _start(client: Client, context: Context, workflow: str, argument: object, workflow_id: str) -> None:
    try:
        await client.start_workflow(
            workflow,
            argument,
            id=workflow_id,
            task_queue=context.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
    except WorkflowAlreadyStartedError:
        return
