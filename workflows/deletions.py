"""The deletions that a job's run starts: each attempt's outlives the job."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from workflows.contract import DEALLOCATION, Deallocated, DeallocationInput, Policy, deallocation_id


class Deletions:
    """What was started and what the providers have accepted, by attempt."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.accepted: set[str] = set()

    @property
    def open(self) -> list[str]:
        """Those whose first delete call was not accepted yet."""
        return [attempt for attempt in self.started if attempt not in self.accepted]

    async def start(self, job_id: str, attempts: Iterable[str], policy: Policy, drain_seconds: float) -> None:
        """Starts the deletion of each attempt; it outlives this workflow. The start is awaited, whatever happens."""
        for attempt in attempts:
            if attempt in self.started:
                continue
            self.started.append(attempt)
            await asyncio.shield(self._start(job_id, attempt, policy, drain_seconds))

    async def try_at_once(self, job_id: str, attempts: Iterable[str], policy: Policy) -> None:
        """One delete call of our own for what is mostly gone with it, since a workflow for it would cost as much as all
        else that Temporal does for the job. What is not gone by then gets its workflow."""
        for attempt in attempts:
            if attempt in self.started:
                continue
            try:
                answer: Deallocated = await workflow.execute_local_activity(
                    "deallocate",
                    DeallocationInput(job_id, attempt, 0, policy.activity_timeout),
                    result_type=Deallocated,
                    start_to_close_timeout=timedelta(seconds=min(max(1.0, policy.delete_accept / 2), 5.0)),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )
            except FailureError as error:
                if is_cancelled_exception(error):
                    raise
                workflow.logger.info("not deleted at once", extra={"job_id": job_id, "attempt_id": attempt})
                return
            if answer.gone:
                self.started.append(attempt)
            self.accepted.add(attempt)

    async def _start(self, job_id: str, attempt: str, policy: Policy, drain_seconds: float) -> None:
        try:
            child = await workflow.start_child_workflow(
                DEALLOCATION,
                DeallocationInput(job_id, attempt, drain_seconds, policy.activity_timeout),
                id=deallocation_id(attempt),
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=f"give {attempt} back",
            )
        except WorkflowAlreadyStartedError:
            self.accepted.add(attempt)
            return
        # A deletion that is confirmed at once ends without a signal: one event instead of two.
        child.add_done_callback(lambda _: self.accepted.add(attempt))
