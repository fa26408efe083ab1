"""`Recover`: ends a job whose row should have a workflow and has none (terminated from outside, past retention).

Workflow id = `recover-{job}`. Deletes what the job holds, then fails it with `internal_error`.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from workflows.contract import DEALLOCATION, RECOVER, Claim, DeallocationInput, JobInput, deallocation_id

_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


@workflow.defn(name=RECOVER)
class Recover:
    """Fences off whatever may still write for the job, starts its deletions, settles it."""

    @workflow.run
    async def run(self, job: JobInput) -> str:
        claim: Claim = await workflow.execute_local_activity(
            "claim_job",
            job.job_id,
            result_type=Claim,
            start_to_close_timeout=timedelta(seconds=5),
            retry_policy=_RETRY,
        )
        for attempt in claim.open_attempts:
            try:
                await workflow.start_child_workflow(
                    DEALLOCATION,
                    DeallocationInput(job.job_id, attempt, activity_timeout=claim.policy.activity_timeout),
                    id=deallocation_id(attempt),
                    parent_close_policy=ParentClosePolicy.ABANDON,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                )
            except WorkflowAlreadyStartedError:
                continue
        state: str = await workflow.execute_activity(
            "settle_recovered",
            job.job_id,
            result_type=str,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=_RETRY,
        )
        return state
