"""A workflow that says something in every place that the Temporal UI shows, and fails."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError


@workflow.defn
class SummarisedWorkflow:
    """Takes an argument, sets current details, and fails with a type and a message once released."""

    def __init__(self) -> None:
        self._released = False

    @workflow.run
    async def run(self, argument: dict[str, str]) -> None:
        workflow.set_current_details(f"details of {argument['note']}")
        await workflow.wait_condition(lambda: self._released)
        raise ApplicationError("message of the failure", type="CapacityExhausted", non_retryable=True)

    @workflow.signal
    def release(self) -> None:
        self._released = True
