"""What a budget does: it tells what it has reached, and stops its jobs once the balance is what their ends will cost.

`look` says what is due and when to look again; `act` does what is due, alert and terminations in one transaction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlmodel import Session, col, select

from domain.budgets import (
    EXHAUSTED_PERCENT,
    AlertKind,
    attos_within,
    burn_usd_hr,
    crossing_moment,
    firing_moment,
    spent,
)
from domain.ids import new_id
from domain.money import cents_of
from domain.notices import NoticeType
from domain.states import JobState, Reason
from store import budget_draws, webhooks
from store.budget_draws import Account
from store.budgets import list_all, shown
from store.db import insert_once
from store.lifecycle import request_termination
from store.tables import BudgetAlert, Project

_RUNNABLE = {JobState.REQUESTED, JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING}
_STOPPABLE = {*_RUNNABLE, JobState.FINALIZING}
_NOTICES = {
    AlertKind.THRESHOLD: NoticeType.BUDGET_THRESHOLD_REACHED,
    AlertKind.EXHAUSTED: NoticeType.BUDGET_EXHAUSTED,
    AlertKind.OVERSPENT: NoticeType.BUDGET_OVERSPENT,
}


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one look found. `next_at`: when something else will be due, if nothing changes; None: never."""

    budgets: int
    due: int
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Step:
    """Something that a budget does at a moment: raise an alert, and stop its jobs with it where that is asked for."""

    at: datetime
    kind: AlertKind
    percent: int
    stops: bool = False


def look(session: Session, org_id: str, now: datetime, drain_seconds: float) -> Outlook:
    """Reads only."""
    budgets = list_all(session, org_id)
    accounts = budget_draws.accounts(session, org_id, budgets, now, drain_seconds)
    steps = [step for account in accounts for step in _steps(account, _raised(session, account), now)]
    moments = [step.at for step in steps if step.at > now]
    moments += [a.window.end for a in accounts if a.window.end is not None and burn_usd_hr(a.draws)]
    return Outlook(len(budgets), sum(step.at <= now for step in steps), min(moments, default=None))


def act(session: Session, org_id: str, now: datetime, drain_seconds: float) -> list[str]:
    """Does what is due by `now`, and answers the jobs that were stopped. Repeatable: an alert is raised once for each
    window and amount, and a job is terminated once."""
    accounts = budget_draws.accounts(session, org_id, list_all(session, org_id), now, drain_seconds)
    due = [(a, step) for a in accounts for step in _steps(a, _raised(session, a), now) if step.at <= now]
    # Locked in the order of their ids, over all budgets: no two transactions wait for each other.
    to_stop: dict[str, Account] = {}
    for account, step in due:
        if step.stops:
            to_stop |= {job.job_id: account for job in account.jobs if job.state in _STOPPABLE}
    for job_id, account in sorted(to_stop.items()):
        _stop(session, job_id, account, now)
    for account, step in due:
        _raise(session, account, step, now)
    return sorted(to_stop)


def _steps(account: Account, raised: set[tuple[str, int]], now: datetime) -> Iterator[_Step]:
    """What the budget has still to do, each with its moment."""
    amount = attos_within(account.budget.amount_usd)
    window, draws, settled = account.window, account.draws, account.settled

    def crossing(threshold: int, kind: AlertKind, percent: int) -> Iterator[_Step]:
        if (kind.value, percent) not in raised:
            moment = crossing_moment(draws, threshold, window, now, settled)
            if moment is not None:
                yield _Step(moment, kind, percent)

    for percent in account.budget.alert_percents:
        if percent < EXHAUSTED_PERCENT and amount:
            yield from crossing(-(-amount * percent // 100), AlertKind.THRESHOLD, percent)
    if any(job.state in _RUNNABLE for job in account.jobs):
        moment = firing_moment(draws, amount, window, now, settled)
        if moment is not None:
            yield _Step(moment, AlertKind.EXHAUSTED, EXHAUSTED_PERCENT, stops=True)
    if amount:
        yield from crossing(amount, AlertKind.EXHAUSTED, EXHAUSTED_PERCENT)
    yield from crossing(amount + 1, AlertKind.OVERSPENT, EXHAUSTED_PERCENT)


def _raised(session: Session, account: Account) -> set[tuple[str, int]]:
    """The alerts that the budget has raised in its window, at its amount."""
    budget = account.budget
    query = select(BudgetAlert).where(
        BudgetAlert.budget_id == budget.id, BudgetAlert.window_start == account.window.start
    )
    return {(a.kind, a.percent) for a in session.exec(query).all() if a.amount_usd == budget.amount_usd}


def _stop(session: Session, job_id: str, account: Account, now: datetime) -> None:
    budget = account.budget
    request_termination(
        session,
        job_id,
        now,
        reason=Reason.BUDGET_EXHAUSTED,
        message=f"the {budget.period} budget of {shown(budget.amount_usd)} USD is used up",
        data={"budget_id": budget.id},
    )


def _raise(session: Session, account: Account, step: _Step, now: datetime) -> None:
    budget = account.budget
    spent_usd = cents_of(spent(account.draws, account.window, now, account.settled))
    data = _shown(session, account, step, spent_usd)
    new = insert_once(
        session,
        BudgetAlert,
        ("budget_id", "window_start", "kind", "percent", "amount_usd"),
        id=new_id("bal"),
        budget_id=budget.id,
        org_id=budget.org_id,
        window_start=account.window.start,
        kind=step.kind.value,
        percent=step.percent,
        amount_usd=budget.amount_usd,
        spent_usd=spent_usd,
        data=data,
        at=now,
    )
    if new:
        webhooks.emit(session, budget.org_id, _NOTICES[step.kind], {"budget": data}, now)


def _shown(session: Session, account: Account, step: _Step, spent_usd: Decimal) -> dict[str, Any]:
    """What a receiver is told of the budget. Amounts are decimals in text: no reader may make floats of them."""
    budget = account.budget
    stopped = [job.job_id for job in account.jobs if job.state in _STOPPABLE] if step.stops else []
    return {
        "id": budget.id,
        "period": budget.period,
        "project": _project_name(session, budget.project_id),
        "user": budget.owner or None,
        "percent": step.percent,
        "amount_usd": shown(budget.amount_usd),
        "spent_usd": str(spent_usd),
        "window": {"from": _text(account.window.start), "to": _text(account.window.end)},
        "stopped_jobs": _first(stopped),
        "stopped_job_count": len(stopped),
    }


def _project_name(session: Session, project_id: str) -> str | None:
    return session.exec(select(Project.name).where(col(Project.id) == project_id)).first() if project_id else None


def _first(job_ids: Sequence[str], most: int = 100) -> list[str]:
    return list(job_ids[:most])


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
