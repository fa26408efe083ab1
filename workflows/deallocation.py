"""`Deallocation`: gives one attempt's hardware back, for as long as it takes. Workflow id = `dealloc-{attempt}`.

A child that its job abandons: it outlives the job. It ends only when the provider confirmed the absence. Retries live
in the activities' retry policies, so the history stays short however long the provider refuses.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows.contract import DEALLOCATION, Deallocated, DeallocationInput

_WITHOUT_END = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=1.7, maximum_interval=timedelta(seconds=60)
)


@workflow.defn(name=DEALLOCATION)
class Deallocation:
    """Requests the deletion, tells the job that it was accepted, then waits for the confirmed absence."""

    @workflow.run
    async def run(self, deletion: DeallocationInput) -> None:
        workflow.set_current_details(f"deleting {deletion.attempt_id} of {deletion.job_id}")
        answer: Deallocated = await workflow.execute_activity(
            "deallocate",
            deletion,
            result_type=Deallocated,
            start_to_close_timeout=timedelta(minutes=5),
            heartbeat_timeout=timedelta(seconds=deletion.activity_timeout),
            retry_policy=_WITHOUT_END,
        )
        if not answer.gone:
            await self._tell_job(deletion)
            workflow.set_current_details(f"deletion of {deletion.attempt_id} accepted; waiting until it is gone")
            await workflow.execute_activity(
                "confirm_absence",
                deletion,
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=deletion.activity_timeout),
                retry_policy=_WITHOUT_END,
            )

    async def _tell_job(self, deletion: DeallocationInput) -> None:
        parent = workflow.info().parent
        if parent is None or parent.workflow_id != deletion.job_id:
            return
        try:
            await workflow.get_external_workflow_handle(deletion.job_id).signal(
                "deletion_accepted", deletion.attempt_id
            )
        except ApplicationError:
            # The job is over: it did not wait for us any longer.
            workflow.logger.info("job ended before its deletion was accepted", extra={"job_id": deletion.job_id})
