"""`Budget`: stops an organization's jobs before one of its budgets is overspent. Workflow id = `budget-{organization}`.

Owns: the timer for the next moment at which a budget has something to do, which one look at the rows computes.
Accepts: signal `changed`, query `status`. It lives as long as the organization has a budget.
A run lasts a week at the most, then it continues as new: the master key that its history is sealed with, once replaced,
need not be kept for longer.
Leaks: nothing: it decides nothing that the rows do not say. One that is lost is started again by the recovery sweep,
and by whatever changes next.
"""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from workflows.contract import BUDGET, BudgetInput, BudgetPlan

_HISTORY_EVENTS = 2_000
_BOUNDED_RUNS = "budget-runs-are-bounded"
_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10))
# A clock that differs a little from the server's must not make it ask without a pause.
_SHORTEST = timedelta(milliseconds=50)


@workflow.defn(name=BUDGET)
class Budget:
    """Looks, sleeps until the moment that the look named, and looks again; or earlier, when it is told of a change."""

    def __init__(self) -> None:
        self._changed = False
        self._plan: BudgetPlan | None = None

    @workflow.signal
    def changed(self) -> None:
        """What the organization's machines cost, or a budget, is not what it was."""
        self._changed = True

    @workflow.query
    def status(self) -> BudgetPlan | None:
        """What the last look found."""
        return self._plan

    @workflow.run
    async def run(self, budget: BudgetInput) -> str:
        while True:
            self._changed = False
            self._plan = await self._review(budget.org_id)
            if self._changed:
                pass
            elif not self._plan.budgets:
                return "no budgets"
            else:
                await self._sleep(self._end_of_run(budget))
            if self._history_is_long() or self._is_over(budget):
                # A change that was told of meanwhile is seen by the first look of the next run.
                workflow.continue_as_new(budget)

    async def _review(self, org_id: str) -> BudgetPlan:
        plan: BudgetPlan = await workflow.execute_activity(
            "review_budgets",
            org_id,
            result_type=BudgetPlan,
            start_to_close_timeout=timedelta(minutes=2),
            retry_policy=_RETRY,
        )
        until = "a change" if plan.next_at is None else plan.next_at.isoformat()
        workflow.set_current_details(f"{plan.budgets} budgets; sleeping until {until}")
        return plan

    async def _sleep(self, end_of_run: datetime | None) -> None:
        assert self._plan is not None
        next_at = min((at for at in (self._plan.next_at, end_of_run) if at is not None), default=None)
        try:
            await workflow.wait_condition(
                lambda: self._changed,
                timeout=None if next_at is None else max(_SHORTEST, next_at - workflow.now()),
                timeout_summary=None if next_at is None else "a budget has something to do",
            )
        except TimeoutError:
            return

    def _end_of_run(self, budget: BudgetInput) -> datetime | None:
        """None in a run that began before runs were bounded: its history has no timer for this."""
        if not workflow.patched(_BOUNDED_RUNS):
            return None
        return workflow.info().start_time + timedelta(seconds=budget.longest_run_seconds)

    def _is_over(self, budget: BudgetInput) -> bool:
        end = self._end_of_run(budget)
        return end is not None and workflow.now() >= end

    def _history_is_long(self) -> bool:
        info = workflow.info()
        return info.get_current_history_length() > _HISTORY_EVENTS or info.is_continue_as_new_suggested()
