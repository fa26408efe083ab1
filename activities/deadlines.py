"""When a job's limits bind, from what its rows say now."""

from datetime import datetime, timedelta

from sqlmodel import Session

from domain.limits import cost_deadline, runtime_deadline
from domain.spec import JobSpec
from domain.states import Reason
from store import attempts
from store.tables import Job
from workflows.contract import Deadline


def limit_deadline(session: Session, job: Job, now: datetime, drain_seconds: float) -> Deadline | None:
    """When a limit must end the job: the earlier of its two limits' moments; None without any that could bind."""
    limits = JobSpec.model_validate(job.spec).limits
    candidates: list[Deadline] = []
    if limits.max_runtime_hours is not None and job.allocated_at is not None:
        at = runtime_deadline(job.allocated_at, limits.max_runtime_hours)
        message = f"max_runtime_hours {limits.max_runtime_hours} was reached"
        candidates.append(Deadline(at, Reason.MAX_RUNTIME_EXCEEDED, message))
    if limits.max_cost_usd is not None:
        metered = attempts.metered(session, [job.id], drain_seconds)[job.id]
        moment = cost_deadline(metered, limits.max_cost_usd, now)
        if moment is not None:
            message = f"max_cost_usd {limits.max_cost_usd} would be exceeded"
            candidates.append(Deadline(moment, Reason.MAX_COST_EXCEEDED, message))
    longest = now + timedelta(days=3650)
    return min((c for c in candidates if c.at < longest), key=lambda c: c.at, default=None)
