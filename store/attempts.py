"""Attempts as rows: minted before the provider's create, closed by a confirmed absence."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from domain.billing import allocation_time, stopped_price
from domain.errors import ProviderRejected
from domain.ids import new_attempt_id
from domain.money import recorded
from domain.offers import Offer
from domain.states import EventType, InstanceState, JobState, Reason
from store import inbox, ledger
from store.budget_inbox import spend_changed
from store.connection_reach import may_still_use
from store.db import is_sqlite
from store.lifecycle import order_stop
from store.meters import metered as metered
from store.meters import meters_of as meters_of
from store.slots import SlotsTaken, freed, taken
from store.tables import Instance, Job, PriceRecord
from store.transitions import Outcome, record, transition


@dataclass(frozen=True, slots=True)
class OfferTaken:
    """Why an attempt was not minted: the offer is one machine, and another attempt has it, or its connection goes."""

    message: str


_BOOT_MARKS = (
    select_columns(
        col(Job.state),
        col(Job.run_token),
        col(Instance.hello_at),
        col(Instance.started_at),
        col(Instance.exited_at),
        col(Instance.delete_requested_at),
        col(Instance.reason_code),
    )
    .join(Instance, col(Instance.job_id) == col(Job.id))
    .where(col(Instance.id) == bindparam("attempt"))
)


def open_attempts(session: Session, job_id: str) -> list[Instance]:
    """The attempts of a job that are not confirmed absent, oldest first."""
    query = select(Instance).where(Instance.job_id == job_id, col(Instance.confirmed_absent_at).is_(None))
    return list(session.exec(query.order_by(col(Instance.number))).all())


def refused_for_good(session: Session, job_id: str) -> dict[str, str]:
    """The offers (by `ref`) whose provider refused the job for what it asks, each with its message, oldest first."""
    query = select(Instance).where(Instance.job_id == job_id, Instance.reason_code == ProviderRejected.kind)
    found = session.exec(query.order_by(col(Instance.number))).all()
    return {Offer.model_validate(row.offer).ref: row.reason_message or row.reason_code or "" for row in found}


def current_of(open_attempts: Sequence[Instance]) -> Instance | None:
    """The attempt that the job is on: open, not given up, no deletion asked for."""
    candidates = [a for a in open_attempts if a.delete_requested_at is None and a.terminal_at is None]
    return candidates[-1] if candidates else None


def mint(
    session: Session, job: Job, offer: Offer, now: datetime, *, slots: int | None, single_tenant: bool
) -> Instance | SlotsTaken | OfferTaken:
    """Write-ahead: the attempt exists as a row before the provider hears of it.

    An exclusive offer is the attempt's from here until its absence is confirmed.

    `slots` bounds the open attempts of the connection; with `single_tenant` they all belong to one organization.
    """
    if not may_still_use(session, offer.connection_id):
        return OfferTaken(f"the connection to {offer.provider} is being removed")
    if offer.exclusive and _is_taken(session, offer.ref):
        return OfferTaken(f"{offer.provider_sku} of {offer.provider} was taken by another job")
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
        offer=offer.model_copy(update={"billing": offer.terms}).model_dump(mode="json"),
        exclusive_ref=offer.ref if offer.exclusive else None,
        state=InstanceState.REQUESTED,
        created_at=now,
    )
    session.add(instance)
    session.flush()
    spend_changed(session, job.org_id, f"minted-{instance.id}", now)
    return instance


def _is_taken(session: Session, ref: str) -> bool:
    """Whether an open attempt has the exclusive offer. Whoever mints in the same transaction has it for sure."""
    if not is_sqlite(session):
        session.connection().exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"offer:{ref}",))
    held = select(Instance.id).where(Instance.exclusive_ref == ref, col(Instance.confirmed_absent_at).is_(None))
    return session.exec(held).first() is not None


def refused(session: Session, instance: Instance, kind: str, message: str, now: datetime) -> None:
    """The provider created nothing: the attempt is over and was never billed."""
    instance.state = InstanceState.FAILED
    instance.reason_code, instance.reason_message = kind, message
    instance.create_settled_at = instance.terminal_at = instance.confirmed_absent_at = now
    session.add(instance)
    offer_rejected(session, instance, kind, message, now)
    spend_changed(session, instance.org_id, f"refused-{instance.id}", now)
    freed(session, instance, now)


def offer_rejected(session: Session, instance: Instance, kind: str, message: str, now: datetime) -> None:
    """Notes why the attempt's offer was not taken: the class of the provider's refusal, or `price` for our own."""
    record(session, instance.job_id, EventType.OFFER_REJECTED, f"rejected-{instance.id}", now,
           {"instance_id": instance.id, "provider": instance.provider, "sku": instance.offer["provider_sku"],
            "class": kind, "message": message})  # fmt: skip


def allocated(
    session: Session,
    instance: Instance,
    handle: dict[str, Any],
    price: Decimal,
    price_source: str,
    now: datetime,
    created_at: datetime | None = None,
) -> Outcome:
    """The provider's create answered: billing runs, and the job is provisioning.

    `created_at` is when the provider says that it made the instance, where it says so: it is charged from then on.
    """
    if instance.allocated_at is None:
        instance.state = InstanceState.STARTING
    found(session, instance, handle, price, price_source, now, created_at)
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
        values={"allocated_at": first or instance.allocated_at},
    )


def found(
    session: Session,
    instance: Instance,
    handle: dict[str, Any],
    price: Decimal,
    price_source: str,
    now: datetime,
    created_at: datetime | None = None,
) -> None:
    """The attempt has this instance, and is charged for it from its creation on, whatever becomes of the attempt."""
    instance.handle = handle
    instance.create_settled_at = now
    if instance.allocated_at is None:
        instance.allocated_at = allocation_time(created_at, instance.created_at, now)
        session.add(
            PriceRecord(
                instance_id=instance.id,
                since=instance.allocated_at,
                usd_per_hour=recorded(price),
                source=price_source,
            )
        )
        spend_changed(session, instance.org_id, f"allocated-{instance.id}", now)
    session.add(instance)


def give_up(session: Session, instance: Instance, reason: Reason, message: str, now: datetime, *, retry: bool) -> None:
    """The attempt failed; its hardware is still to be deleted. With `retry` the job goes back to allocating."""
    if instance.terminal_at is None:
        lost = reason in {Reason.INSTANCE_LOST, Reason.PREEMPTED}
        instance.state = InstanceState.LOST if lost else InstanceState.FAILED
        instance.terminal_at = now
        instance.reason_code, instance.reason_message = reason.value, message
        session.add(instance)
        order_stop(session, instance.job_id, now)
        # One that was only told of it runs on until it is deleted.
        if reason is Reason.PREEMPTED and instance.exit_report is None:
            stopped(session, instance, now)
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
    ledger.close(session, instance, now)
    spend_changed(session, instance.org_id, f"gone-{instance.id}", now)
    freed(session, instance, now)


def reprice(session: Session, instance: Instance, price: Decimal, source: str, now: datetime) -> bool:
    """From now on the instance costs `price` USD per hour; what it cost before stands. Says whether that is news.

    The job's workflow is told, so that its cost limit moves.
    """
    price = recorded(price)
    known = _prices(session, instance)
    if not known or known[-1].usd_per_hour == price:
        return False
    key = f"price-{instance.id}-{len(known)}"
    data = {"instance_id": instance.id, "from_usd_hr": str(known[-1].usd_per_hour), "to_usd_hr": str(price)}
    record(session, instance.job_id, EventType.PRICE_CHANGED, key, now, data)
    session.add(PriceRecord(instance_id=instance.id, since=now, usd_per_hour=price, source=source))
    ledger.close(session, instance, now, until=now)
    inbox.put(session, instance.job_id, inbox.PRICE, now, {"instance_id": instance.id}, key=key)
    spend_changed(session, instance.org_id, key, now)
    return True


def stopped(session: Session, instance: Instance, now: datetime) -> bool:
    """The machine stopped by itself, or was taken back: until it is deleted it costs what its backend's terms say.

    Says whether that is news.
    """
    known = _prices(session, instance)
    if not known:
        return False
    offer = Offer.model_validate(instance.offer)
    price = stopped_price(offer.terms, known[-1].usd_per_hour, offer.stopped_usd_hr)
    return reprice(session, instance, price, "terms of a stopped machine", now)


def _prices(session: Session, instance: Instance) -> list[PriceRecord]:
    query = select(PriceRecord).where(PriceRecord.instance_id == instance.id).order_by(col(PriceRecord.id))
    return list(session.exec(query).all())


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
