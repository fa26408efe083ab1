"""Tells the budget workflow of an organization that what it computed may be wrong by now.

Only organizations with a budget have such a workflow: for the others this is one look into a small table.
"""

from datetime import datetime

from sqlalchemy import bindparam
from sqlmodel import Session, col, select

from store import inbox
from store.tables import Budget

_ANY_BUDGET = select(col(Budget.id)).where(col(Budget.org_id) == bindparam("org")).limit(1)


def budget_workflow_id(org_id: str) -> str:
    """One workflow an organization; also what its inbox rows are filed under."""
    return f"budget-{org_id}"


def organization_of(workflow_id: str) -> str:
    """The organization whose budgets the workflow looks after."""
    return workflow_id.removeprefix("budget-")


def spend_changed(session: Session, org_id: str, key: str, now: datetime) -> None:
    """What the organization's machines cost, or will cost, has changed; `key` names the change, once for ever."""
    if session.connection().execute(_ANY_BUDGET, {"org": org_id}).first() is not None:
        budgets_changed(session, org_id, key, now)


def budgets_changed(session: Session, org_id: str, key: str, now: datetime) -> None:
    """A budget was made, changed or removed."""
    inbox.put(session, budget_workflow_id(org_id), inbox.BUDGET, now, key=key)
