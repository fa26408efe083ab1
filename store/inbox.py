"""Inputs to workflows, as rows: written in the transaction of the state change, delivered by `api.dispatcher`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Integer, bindparam, update
from sqlmodel import Session, col, select

from store.columns import UtcDateTime
from store.db import insert_once, publish
from store.tables import InboxRow

START, TERMINATE, EXIT, PRICE, CAPACITY = "start", "terminate", "exit", "price", "capacity"
BUDGET = "budget"
"""For the budget workflow of an organization: its rows have that workflow's id in place of a job's."""
VERIFY = "verify"
"""Asks a provider about a connection: its rows have the connection's id in place of a job's."""
TOPIC = "inbox"
_MOST_CHARACTERS = 500

_DUE = (
    select(InboxRow)
    .where(col(InboxRow.delivered_at).is_(None), InboxRow.due_at <= bindparam("now", type_=UtcDateTime))
    .order_by(col(InboxRow.id))
    .limit(bindparam("most", type_=Integer))
    .with_for_update(skip_locked=True)
)
_LEASE = (
    update(InboxRow)
    .where(col(InboxRow.id) == bindparam("row"))
    .values(due_at=bindparam("until"), tries=InboxRow.tries + 1)
)
_DELIVERED = (
    update(InboxRow).where(col(InboxRow.id) == bindparam("row")).values(delivered_at=bindparam("now"), last_error=None)
)


def put(
    session: Session,
    job_id: str,
    kind: str,
    now: datetime,
    payload: dict[str, Any] | None = None,
    *,
    key: str | None = None,
) -> bool:
    """Stores one input; a second one with the same key (default: the kind) is not stored. Says whether it was."""
    stored = insert_once(
        session,
        InboxRow,
        ("job_id", "dedupe_key"),
        job_id=job_id,
        kind=kind,
        dedupe_key=key or kind,
        payload=payload or {},
        created_at=now,
        due_at=now,
        tries=0,
    )
    if stored:
        publish(session, TOPIC)
    return stored


def claim_due(session: Session, now: datetime, *, limit: int, lease_seconds: float) -> list[InboxRow]:
    """Takes up to `limit` undelivered rows that are due, oldest first, and hides them from others for the lease.

    A dispatcher that dies leaves them due again; delivery is idempotent, so a second one does no harm.
    """
    rows = list(session.execute(_DUE, {"now": now, "most": limit}).scalars())
    if rows:
        leased = [{"row": row.id, "until": now + timedelta(seconds=lease_seconds)} for row in rows]
        session.connection().execute(_LEASE, leased)
    for row in rows:
        session.expunge(row)
    return rows


def mark_delivered(session: Session, ids: Sequence[int], now: datetime) -> None:
    """The rows need no further delivery."""
    session.connection().execute(_DELIVERED, [{"row": row_id, "now": now} for row_id in ids])


def mark_failed(session: Session, row_id: int, error: str, retry_at: datetime) -> None:
    """Delivery failed; it is due again at `retry_at`."""
    session.exec(
        update(InboxRow).where(col(InboxRow.id) == row_id).values(last_error=error[:_MOST_CHARACTERS], due_at=retry_at)
    )
