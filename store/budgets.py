"""Budgets: making and reading them, and what they say to a new job and to each of its attempts.

All that spends serializes on the organization's row once a budget applies: two creates never see the same free money.
Without a budget nothing is locked. All runs inside `Database.read` or `Database.write`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import bindparam, delete
from sqlmodel import Session, col, select

from domain.budgets import (
    BudgetPeriod,
    Window,
    attos_for,
    attos_within,
    burn_usd_hr,
    firing_moment,
    held,
    rate_seconds_of,
    spent,
)
from domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from domain.ids import new_id
from domain.money import cents_of, usd_of
from domain.offers import Offer
from domain.placement import menu
from domain.spec import JobSpec
from store import budget_draws, offers
from store.access import Principal
from store.budget_draws import Account, least_cost_of
from store.budget_inbox import budgets_changed
from store.connection_reach import reach_of_job
from store.db import insert_once, is_sqlite
from store.tables import ApiKey, Budget, BudgetAlert, BudgetReservation, Job, Organization, Project

MOST_BUDGETS = 200
"""Of one organization: each create looks at those that apply."""
_SHOWN_ALERTS = 50
_ANY_AGE = timedelta.max

_APPLYING = (
    select(Budget)
    .where(
        Budget.org_id == bindparam("org"),
        col(Budget.project_id).in_(["", bindparam("project")]),
        col(Budget.owner).in_(["", bindparam("owner")]),
    )
    .order_by(col(Budget.id))
)


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget as it stands at a moment. Amounts are exact USD; `reserved_usd` is what jobs hold beyond their spend."""

    budget: Budget
    project: str | None
    window: Window
    spent_usd: Decimal
    reserved_usd: Decimal
    remaining_usd: Decimal
    burn_usd_hr: Decimal
    exhausted_at: datetime | None
    """When it would stop its jobs, if nothing changed; None when it would not, in this window."""
    alerts: tuple[BudgetAlert, ...]
    """Of this window, oldest first."""


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """Why an attempt was not minted: a budget has too little left for the offer."""

    message: str


# Making and reading --------------------------------------------------------------------------------------------------


def create(
    session: Session,
    org_id: str,
    project: str | None,
    owner: str | None,
    period: BudgetPeriod,
    amount_usd: Decimal,
    alert_percents: Sequence[int],
    now: datetime,
) -> Budget:
    """A budget; spend of its window that lies before it counts.

    Raises:
        InvalidRequest: there is no such project, or the organization has as many budgets as it may.
        Conflict: there is one of this scope and period (`budget_exists`).
    """
    _lock(session, org_id)
    held_by_org = session.exec(select(Budget.id).where(Budget.org_id == org_id)).all()
    if len(held_by_org) >= MOST_BUDGETS:
        raise InvalidRequest(
            f"the organization has {len(held_by_org)} budgets, and may have {MOST_BUDGETS}",
            field="amount_usd",
            limit=MOST_BUDGETS,
        )
    values: dict[str, Any] = {
        "id": new_id("bud"),
        "org_id": org_id,
        "project_id": _project_id(session, org_id, project),
        "owner": owner or "",
        "period": period.value,
        "amount_usd": amount_usd,
        "alert_percents": list(alert_percents),
        "version": 1,
        "created_at": now,
        "updated_at": now,
    }
    if not insert_once(session, Budget, ("org_id", "project_id", "owner", "period"), **values):
        raise Conflict(f"there is a {period.value} budget of this scope already: change that one", code="budget_exists")
    budgets_changed(session, org_id, f"{values['id']}-1", now)
    return Budget(**values)


def find(session: Session, org_id: str, budget_id: str, *, lock: bool = False) -> Budget:
    """Raises NotFound when the organization has none of this id."""
    budget = session.get(Budget, budget_id, with_for_update=lock)
    if budget is None or budget.org_id != org_id:
        raise NotFound(f"no budget {budget_id[:64]!r}")
    return budget


def change(
    session: Session, budget: Budget, amount_usd: Decimal | None, alert_percents: Sequence[int] | None, now: datetime
) -> None:
    """Changes what is given, and the version with it. One that leaves less than is spent stops its jobs at once."""
    budget.amount_usd = budget.amount_usd if amount_usd is None else amount_usd
    budget.alert_percents = budget.alert_percents if alert_percents is None else list(alert_percents)
    budget.version += 1
    budget.updated_at = now
    session.add(budget)
    session.flush()
    budgets_changed(session, budget.org_id, f"{budget.id}-{budget.version}", now)


def remove(session: Session, budget: Budget, now: datetime) -> None:
    """The budget and its alerts. Jobs that it let through go on."""
    session.exec(delete(BudgetAlert).where(col(BudgetAlert.budget_id) == budget.id))
    session.delete(budget)
    session.flush()
    budgets_changed(session, budget.org_id, f"{budget.id}-removed", now)


def list_all(session: Session, org_id: str, *, project_id: str | None = None) -> list[Budget]:
    """All budgets of an organization, oldest first; with `project_id` those that such a project's jobs may draw on."""
    query = select(Budget).where(Budget.org_id == org_id)
    if project_id is not None:
        query = query.where(col(Budget.project_id).in_(["", project_id]))
    # Here and not there: what is compared with ids must not depend on how a database collates them.
    return sorted(session.exec(query).all(), key=lambda budget: (budget.created_at, budget.id))


def statuses(session: Session, org_id: str, budgets: Sequence[Budget], now: datetime) -> list[BudgetStatus]:
    """How budgets of one organization stand."""
    names = (
        dict(session.exec(select(Project.id, Project.name).where(Project.org_id == org_id)).all()) if budgets else {}
    )
    return [_status(session, account, names, now) for account in budget_draws.accounts(session, org_id, budgets, now)]


def _status(session: Session, account: Account, names: dict[str, str], now: datetime) -> BudgetStatus:
    budget, window, draws, settled = account.budget, account.window, account.draws, account.settled
    amount = attos_within(budget.amount_usd)
    spent_attos, held_attos = spent(draws, window, now, settled), held(draws, window, now, settled)
    alerts = (
        select(BudgetAlert)
        .where(BudgetAlert.budget_id == budget.id, BudgetAlert.window_start == window.start)
        .order_by(col(BudgetAlert.at), col(BudgetAlert.percent))
        .limit(_SHOWN_ALERTS)
    )
    return BudgetStatus(
        budget=budget,
        project=names.get(budget.project_id),
        window=window,
        spent_usd=usd_of(spent_attos),
        reserved_usd=usd_of(held_attos - spent_attos),
        remaining_usd=usd_of(max(0, amount - held_attos)),
        burn_usd_hr=burn_usd_hr(draws),
        exhausted_at=firing_moment(draws, amount, window, now, settled),
        alerts=tuple(session.exec(alerts).all()),
    )


def _project_id(session: Session, org_id: str, project: str | None) -> str:
    if project is None:
        return ""
    found = session.exec(select(Project.id).where(Project.org_id == org_id, Project.name == project)).first()
    if found is None:
        raise InvalidRequest(f"project: this organization has no project {project!r}", field="project")
    return found


# What they say to jobs -----------------------------------------------------------------------------------------------


def reserve(
    session: Session, principal: Principal, job_id: str, project_id: str, spec: dict[str, Any], now: datetime
) -> None:
    """Takes from each budget that applies what the new job may spend: its `max_cost_usd`, or all that is free where
    that is less, and never less than the least that the dearest offer it may get costs.

    Raises:
        Forbidden: that much is not free (`budget_exhausted`).
    """
    if not _applying(session, principal.org_id, project_id, principal.owner):
        return
    _lock(session, principal.org_id)
    # Read again: the lock waited for whoever changed one, or reserved of one.
    budgets = _applying(session, principal.org_id, project_id, principal.owner)
    accounts = budget_draws.accounts(session, principal.org_id, budgets, now)
    if not accounts:
        return
    free, tightest = min(((_free(account, now), account) for account in accounts), key=lambda pair: pair[0])
    wanted = JobSpec.model_validate(spec)
    least = _dearest_least_cost(session, principal.org_id, project_id, wanted, now)
    ceiling = wanted.limits.max_cost_usd
    reserved = max(least, free if ceiling is None else min(attos_for(ceiling), free))
    if free <= 0 or reserved > free:
        raise _exhausted(tightest, free, least, now)
    session.add(BudgetReservation(job_id=job_id, rate_seconds=rate_seconds_of(reserved)))


def refusal(session: Session, job: Job, offer: Offer, now: datetime, drain_seconds: float) -> BudgetSpent | None:
    """None when the job's budgets leave room for the least that the offer costs, beside what other jobs hold and what
    the job's own machines cost. Whoever mints the attempt in the same transaction has taken that room."""
    budgets = _drawn_on(session, job)
    if not budgets:
        return None
    _lock(session, job.org_id)
    accounts = budget_draws.accounts(session, job.org_id, budgets, now, drain_seconds)
    least = least_cost_of(offer, drain_seconds)
    for account in accounts:
        room = _room(account, job.id, now)
        if room < least:
            return BudgetSpent(
                f"an offer at {shown(offer.price_usd_hr)} USD/h costs {cents_of(least)} USD at least, and the"
                f" {account.budget.period} budget has {cents_of(max(room, 0))} USD left for this job"
            )
    return None


def overdrawn(session: Session, job: Job, now: datetime, drain_seconds: float) -> bool:
    """Whether what the job's machines cost, stopped now, is more than its budgets leave beside what other jobs hold."""
    accounts = budget_draws.accounts(session, job.org_id, _drawn_on(session, job), now, drain_seconds)
    return any(_room(account, job.id, now) < 0 for account in accounts)


def _room(account: Account, job_id: str, now: datetime) -> int:
    # What it reserved is the job's own to use: of itself, it is held up by what its machines cost.
    draws = [replace(job.draw, reserved=0) if job.job_id == job_id else job.draw for job in account.jobs]
    return attos_within(account.budget.amount_usd) - held(draws, account.window, now, account.settled)


def _free(account: Account, now: datetime) -> int:
    return attos_within(account.budget.amount_usd) - held(account.draws, account.window, now, account.settled)


def _dearest_least_cost(session: Session, org_id: str, project_id: str, spec: JobSpec, now: datetime) -> int:
    """In attos; 0 while no offer is known that the job might get."""
    reach = reach_of_job(session, org_id, project_id)
    market = offers.market(session, reach, spec.compute.accelerator, spec.compute.gpu_count, now, _ANY_AGE)
    eligible = menu(spec, market.offers, market.capabilities, unreadable=market.unreadable).offers
    count = spec.compute.instance_count or 1
    return max((least_cost_of(offer) * count for offer in eligible), default=0)


def _exhausted(account: Account, free: int, least: int, now: datetime) -> Forbidden:
    budget = account.budget
    spent_usd = cents_of(spent(account.draws, account.window, now, account.settled))
    message = (
        f"the {budget.period} budget {budget.id} of {shown(budget.amount_usd)} USD has {cents_of(max(free, 0))} USD"
        f" free: {spent_usd} USD are spent, live jobs hold the rest"
    )
    if 0 < free < least:
        message += f", and this job would need {cents_of(least)} USD at least"
    else:
        message += " (one without max_cost_usd holds all that was free)"
    details = {"budget_id": budget.id, "limit": shown(budget.amount_usd)}
    return Forbidden(message, code="budget_exhausted", details=details)


def shown(amount_usd: Decimal) -> str:
    """An amount in its own digits, for sentences."""
    return format(amount_usd, "f")


def _drawn_on(session: Session, job: Job) -> list[Budget]:
    owner = session.exec(select(ApiKey.owner).where(ApiKey.id == job.key_id)).first() or ""
    return _applying(session, job.org_id, job.project_id, owner)


def _applying(session: Session, org_id: str, project_id: str, owner: str) -> list[Budget]:
    query = _APPLYING.execution_options(populate_existing=True)
    return list(session.execute(query, {"org": org_id, "project": project_id, "owner": owner}).scalars())


def _lock(session: Session, org_id: str) -> None:
    """Until the transaction ends. Whoever also locks a job does that first; on SQLite every writer is alone anyway."""
    if not is_sqlite(session):
        session.exec(select(Organization.id).where(Organization.id == org_id).with_for_update()).one()
