"""`PollOffers`: what a connection would rent, into the cache. Scheduled, one per connection."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from workflows.contract import POLL_OFFERS


@workflow.defn(name=POLL_OFFERS)
class PollOffers:
    """One poll. What it found, or why it failed, is a row then; the next one comes with the schedule."""

    @workflow.run
    async def run(self, connection_id: str) -> str:
        report: str = await workflow.execute_activity(
            "poll_offers",
            connection_id,
            result_type=str,
            start_to_close_timeout=timedelta(minutes=2),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=2),
        )
        return report
