"""`VerifyConnection`: asks a provider about a connection's credentials. Workflow id = `verify-{connection}-{number}`.

Owns: nothing; it is given ids only. The outcome is a row. Leaks: none; credentials without an outcome are wiped by the
API after 15 minutes, whether this ran or not.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from workflows.contract import VERIFY_CONNECTION, VerifyInput


@workflow.defn(name=VERIFY_CONNECTION)
class VerifyConnection:
    """One question. How it went in one word: what the provider said stays in the row."""

    @workflow.run
    async def run(self, request: VerifyInput) -> str:
        status: str = await workflow.execute_activity(
            "verify_connection",
            request,
            result_type=str,
            start_to_close_timeout=timedelta(minutes=2),
            schedule_to_close_timeout=timedelta(minutes=15),
            heartbeat_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=5),
        )
        return status
