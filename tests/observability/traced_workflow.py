"""A workflow with one activity, to be followed by a trace."""

from datetime import timedelta

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import structlog


@activity.defn
async def observed_activity() -> None:
    structlog.get_logger().info("activity_at_work")


@workflow.defn
class TracedWorkflow:
    @workflow.run
    async def run(self) -> None:
        workflow.logger.info("workflow_at_work")
        await workflow.execute_activity(observed_activity, start_to_close_timeout=timedelta(seconds=10))
