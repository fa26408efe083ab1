"""Inputs to workflows, as rows: written in the transaction of the state change, delivered by `api.dispatcher`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import update
from sqlmodel import Session, col, select

from store.db import insert_once, publish
from store.tables import InboxRow

START, TERMINATE, EXIT, PRICE = "start", "terminate", "exit", "price"
TOPIC = "inbox"
_MOST_CHARACTERS = 500


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
    due = (
        select(InboxRow)
        .where(col(InboxRow.delivered_at).is_(None), InboxRow.due_at <= now)
        .order_by(col(InboxRow.id))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = list(session.exec(due).all())
    if rows:
        session.exec(
            update(InboxRow)
            .where(col(InboxRow.id).in_([row.id for row in rows]))
            .values(due_at=now + timedelta(seconds=lease_seconds), tries=InboxRow.tries + 1)
        )
    for row in rows:
        session.expunge(row)
    return rows


def mark_delivered(session: Session, ids: Sequence[int], now: datetime) -> None:
    """The rows need no further delivery."""
    session.exec(update(InboxRow).where(col(InboxRow.id).in_(ids)).values(delivered_at=now, last_error=None))


def mark_failed(session: Session, row_id: int, error: str, retry_at: datetime) -> None:
    """Delivery failed; it is due again at `retry_at`."""
    session.exec(
        update(InboxRow).where(col(InboxRow.id) == row_id).values(last_error=error[:_MOST_CHARACTERS], due_at=retry_at)
    )
