"""Meters of instances, from their rows: what the limits, `accrued_usd` and the ledger compute with."""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from domain.billing import metered as meter
from domain.limits import MeteredInstance
from domain.money import PriceInterval, UsdPerHour
from store.tables import Instance, PriceRecord


def metered(session: Session, job_ids: Sequence[str], drain_seconds: float = 0) -> dict[str, list[MeteredInstance]]:
    """What the limits and `accrued_usd` need of the jobs' instances; those that were never billed are left out.

    `drain_seconds` is added to each backend's expected teardown: how long a kill may wait for the last log bytes.
    """
    query = select(Instance).where(col(Instance.job_id).in_(job_ids), col(Instance.allocated_at).is_not(None))
    instances = session.exec(query).all()
    meters = meters_of(session, instances, drain_seconds)
    result: dict[str, list[MeteredInstance]] = {job_id: [] for job_id in job_ids}
    for instance in instances:
        result[instance.job_id].append(meters[instance.id])
    return result


def meters_of(session: Session, instances: Sequence[Instance], drain_seconds: float = 0) -> dict[str, MeteredInstance]:
    """The meter of each instance, by its id; all must have been allocated."""
    prices: dict[str, list[PriceInterval]] = {}
    query = select(PriceRecord).where(col(PriceRecord.instance_id).in_([i.id for i in instances]))
    for row in session.exec(query.order_by(col(PriceRecord.since), col(PriceRecord.id))).all():
        prices.setdefault(row.instance_id, []).append(PriceInterval(row.since, UsdPerHour(row.usd_per_hour)))
    result: dict[str, MeteredInstance] = {}
    for instance in instances:
        assert instance.allocated_at is not None
        result[instance.id] = meter(
            instance.offer,
            instance.allocated_at,
            instance.started_at,
            instance.confirmed_absent_at,
            prices.get(instance.id, ()),
            drain_seconds,
        )
    return result
