"""When processes of a kind were there to be reached, as stretches of time.

An agent's silence counts as lost contact only for the time in which an API replica could have heard it. A stretch ends
at its last beat, never later: time that is not proven is not counted, so that no healthy machine is given up because
the control plane was away.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, update
from sqlmodel import Session, col, select

from store.tables import Liveness

API, WORKER = "api", "worker"
ALIVE_SECONDS = 15.0
"""A kind is taken for alive this long after its last beat."""


def beat(session: Session, lease_id: str, kind: str, now: datetime, ttl_seconds: float = ALIVE_SECONDS) -> None:
    """The process that holds `lease_id` is there. Extends its stretch, or begins a new one when its last beat is more
    than `ttl_seconds` ago: it may have stood still in between. Call it several times in `ttl_seconds`."""
    latest = session.exec(
        select(Liveness.id)
        .where(col(Liveness.id).startswith(_prefix(lease_id), autoescape=True), Liveness.kind == kind)
        .where(Liveness.until >= now - timedelta(seconds=ttl_seconds))
        .order_by(col(Liveness.until).desc())
        .limit(1)
    ).first()
    if latest is None:
        stretch_id = f"{_prefix(lease_id)}{now.timestamp():.6f}"
        session.add(Liveness(id=stretch_id, kind=kind, since=now, until=now))
        session.flush()
        return
    # A beat that was delayed must not shorten the stretch.
    session.exec(update(Liveness).where(col(Liveness.id) == latest, col(Liveness.until) < now).values(until=now))


def alive(session: Session, kind: str, now: datetime, within_seconds: float = ALIVE_SECONDS) -> bool:
    """Whether any process of `kind` gave a beat in the last `within_seconds`."""
    recent = select(Liveness.id).where(Liveness.kind == kind, Liveness.until >= now - timedelta(seconds=within_seconds))
    return session.exec(recent.limit(1)).first() is not None


def reachable_seconds(session: Session, kind: str, since: datetime, until: datetime) -> float:
    """For how long in [since, until] at least one process of `kind` was there: the length of the stretches' union."""
    stretches = session.exec(
        select(Liveness.since, Liveness.until)
        .where(Liveness.kind == kind, Liveness.until > since, Liveness.since < until)
        .order_by(col(Liveness.since))
    ).all()
    total = timedelta(0)
    counted_to = since
    for begin, end in stretches:
        begin, end = max(begin, counted_to), min(end, until)
        if end > begin:
            total += end - begin
            counted_to = end
    return total.total_seconds()


def prune(session: Session, before: datetime) -> int:
    """Forgets the stretches that ended before `before`; says how many."""
    return session.exec(delete(Liveness).where(col(Liveness.until) < before)).rowcount


def _prefix(lease_id: str) -> str:
    return f"{lease_id}@"
