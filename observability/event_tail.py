"""Counters and durations from the job events as they are appended: every replica of the API sees the same ones."""

from collections import OrderedDict, deque
from datetime import datetime
from typing import Protocol

from sqlmodel import Session, col, func, select

from domain.states import TERMINAL, EventType
from store.tables import JobEvent

_BATCH = 5_000
# On PostgreSQL a number is drawn before its transaction commits, so a lower one may appear after a higher one.
_OVERLAP = 500
_REMEMBERED_JOBS = 20_000


class Sink(Protocol):
    """Where the facts go."""

    def attempt(self, result: str) -> None:
        """A backend answered a create: `allocated`, or the class of its refusal."""

    def phase(self, state: str, seconds: float) -> None:
        """A job has left `state` after this time."""

    def gone(self, session: Session, instance_id: str) -> None:
        """The instance is confirmed absent: it costs nothing more."""


class EventTail:
    """Follows the events since an instant, of which at most the last few thousand at its first reading."""

    def __init__(self, sink: Sink, since: datetime) -> None:
        self._sink, self._since = sink, since
        self._last: int | None = None
        self._seen: deque[int] = deque(maxlen=_OVERLAP * 2)
        self._entered: OrderedDict[str, datetime] = OrderedDict()

    def read(self, session: Session) -> None:
        """Takes what was appended since the last reading, a bounded number of events at a time."""
        if self._last is None:
            self._last = self._begin(session)
        query = select(JobEvent).where(col(JobEvent.seq) > self._last - _OVERLAP)
        seen = set(self._seen)
        for event in session.exec(query.order_by(col(JobEvent.seq)).limit(_BATCH)).all():
            assert event.seq is not None
            if event.seq not in seen and event.at >= self._since:
                self._seen.append(event.seq)
                self._last = max(self._last, event.seq)
                self._take(session, event)

    def _begin(self, session: Session) -> int:
        """The number before the first event since then; what is older counts as seen."""
        newest = session.exec(select(func.max(JobEvent.seq))).one() or 0
        recent = select(JobEvent.seq, JobEvent.at).where(col(JobEvent.seq) > newest - _BATCH)
        older = [seq for seq, at in session.exec(recent.order_by(col(JobEvent.seq))).all() if at < self._since]
        self._seen.extend(seq for seq in older if seq is not None)
        return older[-1] or 0 if older else max(0, newest - _BATCH)

    def _take(self, session: Session, event: JobEvent) -> None:
        if event.type == EventType.PROVIDER_ALLOCATED:
            self._sink.attempt("allocated")
        elif event.type == EventType.OFFER_REJECTED:
            self._sink.attempt(str(event.data.get("class", "unknown")))
        elif event.type == EventType.INSTANCE_GONE:
            self._sink.gone(session, str(event.data["instance_id"]))
        if event.type == EventType.JOB_CREATED:
            self._enter(event.job_id, event.at)
        elif "from" in event.data and "to" in event.data:
            self._change(session, event)

    def _change(self, session: Session, event: JobEvent) -> None:
        entered = self._entered.pop(event.job_id, None) or _entered_before(session, event)
        if entered is not None:
            self._sink.phase(str(event.data["from"]), max(0.0, (event.at - entered).total_seconds()))
        if event.data["to"] not in TERMINAL:
            self._enter(event.job_id, event.at)

    def _enter(self, job_id: str, at: datetime) -> None:
        self._entered[job_id] = at
        if len(self._entered) > _REMEMBERED_JOBS:
            self._entered.popitem(last=False)


def _entered_before(session: Session, event: JobEvent) -> datetime | None:
    """When the job entered the state that `event` ends, for a job that was there before the tail began."""
    query = select(JobEvent).where(JobEvent.job_id == event.job_id, col(JobEvent.seq) < event.seq)
    for earlier in session.exec(query.order_by(col(JobEvent.seq).desc())).all():
        if earlier.type == EventType.JOB_CREATED or earlier.data.get("to") == event.data["from"]:
            return earlier.at
    return None
