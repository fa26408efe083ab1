"""What draws on an organization's budgets, from the rows of its jobs and machines: nothing here is counted along."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from sqlalchemy import select as select_columns
from sqlalchemy import union
from sqlmodel import Session, col, select

from domain.budgets import BudgetPeriod, Draw, Window, attos_for, window_at
from domain.limits import MeteredInstance, least_cost
from domain.money import UsdPerHour, attos
from domain.offers import Offer
from domain.states import TERMINAL, JobState
from store.budget_ledger import LedgerSums
from store.meters import meters_of
from store.tables import ApiKey, Budget, BudgetReservation, Instance, Job, Organization

T = TypeVar("T")

_LIVE = [state.value for state in JobState if state not in TERMINAL]
_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class JobDraw:
    """What one job draws, and by what its budgets are told: its project and the owner of its key."""

    job_id: str
    project_id: str
    owner: str
    state: JobState
    draw: Draw


@dataclass(frozen=True, slots=True)
class Account:
    """A budget in its current window, with the jobs that may still cost something, and what the others have cost in
    the window (`settled`, in attos)."""

    budget: Budget
    window: Window
    jobs: tuple[JobDraw, ...]
    settled: int

    @property
    def draws(self) -> list[Draw]:
        return [job.draw for job in self.jobs]


def accounts(
    session: Session, org_id: str, budgets: Sequence[Budget], now: datetime, drain_seconds: float = 0
) -> list[Account]:
    """The accounts of budgets of one organization. `drain_seconds` is how long a kill may wait for the last output."""
    if not budgets:
        return []
    zone = session.exec(select(Organization.time_zone).where(Organization.id == org_id)).one()
    jobs = _open_jobs(session, org_id, drain_seconds)
    sums = LedgerSums(session, org_id, by_project=any(budget.project_id for budget in budgets))
    result = []
    for budget in budgets:
        window = window_at(BudgetPeriod(budget.period), zone, budget.created_at, now)
        drawing = tuple(job for job in jobs if applies(budget, job.project_id, job.owner))
        settled = sums.of(budget, window, [job.job_id for job in drawing if job.draw.instances])
        result.append(Account(budget, window, drawing, settled))
    return result


def applies(budget: Budget, project_id: str, owner: str) -> bool:
    """Whether jobs of this project and owner draw on the budget."""
    return budget.project_id in {"", project_id} and budget.owner in {"", owner}


def _open_jobs(session: Session, org_id: str, drain_seconds: float) -> list[JobDraw]:
    """The jobs that are live, and those that are over with a machine not confirmed absent; by their ids."""
    # Two searches of an index each, united: joined by OR they would be one look at every job that ever was.
    live = select_columns(col(Job.id)).where(col(Job.org_id) == org_id, col(Job.state).in_(_LIVE))
    unconfirmed = select_columns(col(Instance.job_id)).where(
        col(Instance.org_id) == org_id, col(Instance.confirmed_absent_at).is_(None)
    )
    query = (
        select_columns(
            col(Job.id), col(Job.project_id), col(Job.state), col(ApiKey.owner), col(BudgetReservation.rate_seconds)
        )
        .outerjoin(ApiKey, col(ApiKey.id) == col(Job.key_id))
        .outerjoin(BudgetReservation, col(BudgetReservation.job_id) == col(Job.id))
        .where(col(Job.id).in_(union(live, unconfirmed)))
        .order_by(col(Job.id))
    )
    rows = session.connection().execute(query).all()
    instances: dict[str, list[Instance]] = defaultdict(list)
    for some in _chunks([row[0] for row in rows]):
        for instance in session.exec(select(Instance).where(col(Instance.job_id).in_(some))).all():
            instances[instance.job_id].append(instance)
    billed = [i for of_job in instances.values() for i in of_job if i.allocated_at is not None]
    meters = _meters(session, billed, drain_seconds)
    return [
        JobDraw(
            job_id=job_id,
            project_id=project_id,
            owner=owner or "",
            state=JobState(state),
            draw=Draw(
                reserved=attos(reserved or Decimal(0)),
                instances=tuple(meters[i.id] for i in instances[job_id] if i.id in meters),
                pending=sum(_pending(i, drain_seconds) for i in instances[job_id]),
                ended=JobState(state).terminal,
            ),
        )
        for job_id, project_id, state, owner, reserved in rows
    ]


def _pending(instance: Instance, drain_seconds: float) -> int:
    """What an attempt will cost at least, as long as its provider's answer is awaited."""
    if instance.allocated_at is not None or instance.confirmed_absent_at is not None:
        return 0
    return least_cost_of(Offer.model_validate(instance.offer), drain_seconds)


def least_cost_of(offer: Offer, drain_seconds: float = 0) -> int:
    """In attos: nothing on this offer costs less, its teardown included."""
    unit_seconds, teardown = offer.pricing_model.unit_seconds, offer.teardown_seconds + drain_seconds
    return attos_for(least_cost(UsdPerHour(offer.price_usd_hr), unit_seconds, teardown, offer.terms.minimum_seconds))


def _meters(session: Session, instances: Sequence[Instance], drain_seconds: float) -> dict[str, MeteredInstance]:
    result: dict[str, MeteredInstance] = {}
    for some in _chunks(instances):
        result |= meters_of(session, some, drain_seconds)
    return result


def _chunks(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
