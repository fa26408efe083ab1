"""`review_budgets`: one look at an organization's budgets, and what is due of them."""

from temporalio import activity

from activities.context import Context, log
from store import budget_review
from store.budget_review import Outlook
from workflows.contract import BudgetPlan


class BudgetActivities:
    """What the budget workflow asks for."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def review_budgets(self, org_id: str) -> BudgetPlan:
        """Raises the alerts that are due, stops jobs where a budget is used up, and answers when to look again."""
        outlook, stopped = await self._look(org_id), 0
        if outlook.due:
            stopped = await self._act(org_id)
            outlook = await self._look(org_id)
        # What became due between the two: at once.
        next_at = self._context.clock() if outlook.due else outlook.next_at
        return BudgetPlan(outlook.budgets, next_at, stopped)

    async def _look(self, org_id: str) -> Outlook:
        now, drain = self._context.clock(), self._context.settings.terminate_drain_seconds
        return await self._context.db.read(lambda session: budget_review.look(session, org_id, now, drain))

    async def _act(self, org_id: str) -> int:
        now, drain = self._context.clock(), self._context.settings.terminate_drain_seconds
        stopped = await self._context.db.write(lambda session: budget_review.act(session, org_id, now, drain))
        if stopped:
            log.warning("budget_exhausted", org_id=org_id, stopped_jobs=len(stopped))
        return len(stopped)
