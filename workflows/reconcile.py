"""`Reconcile`: compares what a connection's provider has with the rows. Scheduled, one per connection."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from workflows.contract import HOUSEKEEPING, RECONCILE


@workflow.defn(name=RECONCILE)
class Reconcile:
    """One look at the provider's list for all jobs; unknown instances with our owner id are deleted after a grace."""

    @workflow.run
    async def run(self, connection_id: str) -> str:
        report: str = await workflow.execute_activity(
            "reconcile_connection",
            connection_id,
            result_type=str,
            start_to_close_timeout=timedelta(minutes=10),
            heartbeat_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=3),
        )
        return report


@workflow.defn(name=HOUSEKEEPING)
class Housekeeping:
    """Log sealing, log retention and pruning of bookkeeping rows. Scheduled."""

    @workflow.run
    async def run(self) -> str:
        report: str = await workflow.execute_activity(
            "keep_house",
            result_type=str,
            start_to_close_timeout=timedelta(minutes=30),
            heartbeat_timeout=timedelta(minutes=2),
            retry_policy=RetryPolicy(maximum_attempts=2),
        )
        return report
