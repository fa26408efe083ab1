"""Attempts as rows: minted before the provider's create, closed by a confirmed absence."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from domain.ids import new_attempt_id
from domain.limits import MeteredInstance
from domain.money import PriceInterval, UsdPerHour
from domain.offers import Offer
from domain.states import EventType, InstanceState, JobState, Reason
from store import inbox
from store.db import is_sqlite
from store.lifecycle import order_stop
from store.slots import SlotsTaken, freed, taken
from store.tables import Instance, Job, PriceRecord
from store.transitions import Outcome, record, transition

_BOOT_MARKS = (
    select_columns(
        col(Job.state),
        col(Job.run_token),
        col(Instance.hello_at),
        col(Instance.started_at),
        col(Instance.exited_at),
        col(Instance.delete_requested_at),
    )
    .join(Instance, col(Instance.job_id) == col(Job.id))
    .where(col(Instance.id) == bindparam("attempt"))
)


def open_attempts(session: Session, job_id: str) -> list[Instance]:
    """The attempts of a job that are not confirmed absent, oldest first."""
    query = select(Instance).where(Instance.job_id == job_id, col(Instance.confirmed_absent_at).is_(None))
    return list(session.exec(query.order_by(col(Instance.number))).all())


def current_of(open_attempts: Sequence[Instance]) -> Instance | None:
    """The attempt that the job is on: open, not given up, no deletion asked for."""
    candidates = [a for a in open_attempts if a.delete_requested_at is None and a.terminal_at is None]
    return candidates[-1] if candidates else None


def mint(
    session: Session, job: Job, offer: Offer, now: datetime, *, slots: int | None, single_tenant: bool
) -> Instance | SlotsTaken:
    """Write-ahead: the attempt exists as a row before the provider hears of it.

    `slots` bounds the open attempts of the connection; with `single_tenant` they all belong to one organization.
    """
    if slots is not None:
        none = taken(session, job, offer.connection_id, slots, single_tenant=single_tenant)
        if none is not None:
            return none
    number = session.exec(select(func.count()).select_from(Instance).where(Instance.job_id == job.id)).one() + 1
    instance = Instance(
        id=new_attempt_id(),
        job_id=job.id,
        org_id=job.org_id,
        number=number,
        connection_id=offer.connection_id,
        provider=offer.provider,
        offer=offer.model_dump(mode="json"),
        state=InstanceState.REQUESTED,
        created_at=now,
    )
    session.add(instance)
    session.flush()
    return instance


def refused(session: Session, instance: Instance, kind: str, message: str, now: datetime) -> None:
    """The provider created nothing: the attempt is over and was never billed."""
    instance.state = InstanceState.FAILED
    instance.reason_code, instance.reason_message = kind, message
    instance.create_settled_at = instance.terminal_at = instance.confirmed_absent_at = now
    session.add(instance)
    record(session, instance.job_id, EventType.OFFER_REJECTED, f"rejected-{instance.id}", now,
           {"instance_id": instance.id, "provider": instance.provider, "sku": instance.offer["provider_sku"],
            "class": kind, "message": message})  # fmt: skip
    freed(session, instance, now)


def allocated(
    session: Session, instance: Instance, handle: dict[str, Any], price: Decimal, price_source: str, now: datetime
) -> Outcome:
    """The provider's create answered: billing runs, and the job is provisioning."""
    instance.handle = handle
    instance.create_settled_at = now
    if instance.allocated_at is None:
        instance.allocated_at = now
        instance.state = InstanceState.STARTING
        session.add(PriceRecord(instance_id=instance.id, since=now, usd_per_hour=price, source=price_source))
    session.add(instance)
    first = session.exec(select(Job.allocated_at).where(Job.id == instance.job_id)).one()
    return transition(
        session,
        instance.job_id,
        JobState.PROVISIONING,
        f"allocated-{instance.id}",
        now,
        event=EventType.PROVIDER_ALLOCATED,
        data={
            "instance_id": instance.id,
            "provider": instance.provider,
            "provider_id": handle["provider_id"],
            "price_usd_hr": str(price),
            "attempt": instance.number,
        },
        values={"allocated_at": first or now},
    )


def give_up(session: Session, instance: Instance, reason: Reason, message: str, now: datetime, *, retry: bool) -> None:
    """The attempt failed; its hardware is still to be deleted. With `retry` the job goes back to allocating."""
    if instance.terminal_at is None:
        lost = reason in {Reason.INSTANCE_LOST, Reason.PREEMPTED}
        instance.state = InstanceState.LOST if lost else InstanceState.FAILED
        instance.terminal_at = now
        instance.reason_code, instance.reason_message = reason.value, message
        session.add(instance)
        order_stop(session, instance.job_id, now)
    if retry:
        transition(session, instance.job_id, JobState.ALLOCATING, f"failed-{instance.id}", now,
                   data={"instance_id": instance.id, "reason": reason.value, "message": message})  # fmt: skip


def gone(session: Session, instance: Instance, now: datetime) -> None:
    """The provider confirmed the absence: billing ends, the row is final."""
    if instance.confirmed_absent_at is not None:
        return
    instance.confirmed_absent_at = now
    instance.secrets_sealed = None
    instance.terminal_at = instance.terminal_at or now
    if instance.state not in {InstanceState.SUCCEEDED, InstanceState.FAILED, InstanceState.LOST}:
        instance.state = InstanceState.STOPPED
    session.add(instance)
    record(session, instance.job_id, EventType.INSTANCE_GONE, f"gone-{instance.id}", now, {"instance_id": instance.id})
    freed(session, instance, now)


def reprice(session: Session, instance: Instance, price: Decimal, source: str, now: datetime) -> bool:
    """From now on the instance costs `price` USD per hour; what it cost before stands. Says whether that is news.

    The job's workflow is told, so that its cost limit moves.
    """
    query = select(PriceRecord).where(PriceRecord.instance_id == instance.id).order_by(col(PriceRecord.id))
    known = list(session.exec(query).all())
    if not known or known[-1].usd_per_hour == price:
        return False
    session.add(PriceRecord(instance_id=instance.id, since=now, usd_per_hour=price, source=source))
    key = f"price-{instance.id}-{len(known)}"
    data = {"instance_id": instance.id, "from_usd_hr": str(known[-1].usd_per_hour), "to_usd_hr": str(price)}
    record(session, instance.job_id, EventType.PRICE_CHANGED, key, now, data)
    inbox.put(session, instance.job_id, inbox.PRICE, now, {"instance_id": instance.id}, key=key)
    return True


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
        offer = Offer.model_validate(instance.offer)
        result[instance.id] = MeteredInstance(
            allocated_at=instance.allocated_at,
            ended_at=instance.confirmed_absent_at,
            prices=tuple(prices.get(instance.id, ())),
            unit_seconds=offer.pricing_model.unit_seconds,
            teardown_seconds=offer.teardown_seconds + drain_seconds,
        )
    return result


def locked(session: Session, attempt_id: str) -> Instance:
    """The attempt's row, locked until the transaction ends, and its job's row before it: whoever changes either takes
    them in this order, so that no two transactions wait for each other.

    Raises:
        LookupError: there is none.
    """
    if is_sqlite(session):
        return peek(session, attempt_id)
    job_id = session.exec(select(Instance.job_id).where(Instance.id == attempt_id)).one_or_none()
    if job_id is not None:
        session.exec(select(Job.id).where(Job.id == job_id).with_for_update()).one()
    return _found(session.get(Instance, attempt_id, with_for_update=True), attempt_id)


def boot_marks(session: Session, attempt_id: str) -> tuple[object, ...]:
    """What changes when the attempt's boot gets on or its job is to stop: cheap to compare, to know when to look."""
    return tuple(session.connection().execute(_BOOT_MARKS, {"attempt": attempt_id}).one())


def peek(session: Session, attempt_id: str) -> Instance:
    """The attempt's row, for reading.

    Raises:
        LookupError: there is none.
    """
    return _found(session.get(Instance, attempt_id), attempt_id)


def _found(instance: Instance | None, attempt_id: str) -> Instance:
    if instance is None:
        raise LookupError(f"no attempt {attempt_id}")
    return instance
