"""What the ledger says that an organization's windows have cost. Each sum is looked up once, for all budgets that share
it: the database adds up what lies in a window whole, and the few entries across its edges are cut here."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, bindparam, func, literal_column
from sqlalchemy import select as select_columns
from sqlmodel import Session, SQLModel, col

from domain.budgets import Window
from domain.money import Run
from store.columns import UtcDateTime
from store.ledger import RESOURCE_TYPES, attos_of
from store.tables import ApiKey, Budget, Job, LedgerEntry

_CHUNK = 1000
_LONGEST_ENTRY = timedelta(days=1)
_LEDGER: Table = SQLModel.metadata.tables[str(LedgerEntry.__tablename__)]
_EVERYTHING: ColumnElement[str] = literal_column("''")
_RUN: list[Any] = [_LEDGER.c[name] for name in ("begins_at", "units", "unit_seconds", "usd_per_hour")]
_PARTS: list[Any] = [func.sum(_LEDGER.c[part]) for part in ("whole", "nano", "atto")]


class LedgerSums:
    """Of one organization, in one transaction. Sums are in attos."""

    def __init__(self, session: Session, org_id: str, *, by_project: bool) -> None:
        """`by_project`: whether there are budgets of projects. To tell projects apart takes twice as long."""
        self._session, self._org_id = session, org_id
        self._project = _LEDGER.c.project_id if by_project else _EVERYTHING
        self._known: dict[tuple[Window, str], Mapping[str, int]] = {}

    def of(self, budget: Budget, window: Window, open_jobs: Iterable[str]) -> int:
        """The cost within the window of all of the budget's jobs but `open_jobs`, which are its own too: of the jobs
        that are over and whose machines are gone, the ledger holds all."""
        by_project = self._by_project(window, budget.owner)
        total = by_project.get(budget.project_id, 0) if budget.project_id else sum(by_project.values())
        return total - sum(self._by_job(window, list(open_jobs)).values())

    def _by_project(self, window: Window, owner: str) -> Mapping[str, int]:
        key = (window, owner)
        if key not in self._known:
            values = {"org": self._org_id, "owner": owner}
            conditions = _of_owner() if owner else _of_all()
            self._known[key] = self._sums(window, self._project, conditions, values)
        return self._known[key]

    def _by_job(self, window: Window, job_ids: Sequence[str]) -> Mapping[str, int]:
        result: dict[str, int] = {}
        for start in range(0, len(job_ids), _CHUNK):
            values = {"jobs": job_ids[start : start + _CHUNK]}
            result |= self._sums(window, _LEDGER.c.resource_id, _of_jobs(), values)
        return result

    def _sums(
        self, window: Window, group: ColumnElement[str], conditions: tuple[ColumnElement[bool], ...], values: Any
    ) -> Mapping[str, int]:
        total: dict[str, int] = defaultdict(int)
        inside = _inside(group, conditions, window.end is not None)
        bounds = {"start": window.start, "end": window.end}
        for name, whole, nano, atto in self._session.connection().execute(inside, {**values, **bounds}):
            # A sum of no entries is NULL.
            total[name] += attos_of(int(whole or 0), int(nano or 0), int(atto or 0))
        for at in (window.start, window.end):
            if at is not None:
                bounds = {"at": at, "before": at - _LONGEST_ENTRY}
                for name, *run in self._session.connection().execute(_edge(group, conditions), {**values, **bounds}):
                    total[name] += window.cost([Run(*run)])
        return total


@cache
def _of_all() -> tuple[ColumnElement[bool], ...]:
    # The types are named because the index over times is one for each of them.
    return (_LEDGER.c.org_id == bindparam("org"), _LEDGER.c.resource_type.in_(RESOURCE_TYPES))


@cache
def _of_owner() -> tuple[ColumnElement[bool], ...]:
    of_org = col(ApiKey.org_id) == bindparam("org")
    keys = select_columns(col(ApiKey.id)).where(of_org, col(ApiKey.owner) == bindparam("owner"))
    jobs = select_columns(col(Job.id)).where(col(Job.org_id) == bindparam("org"), col(Job.key_id).in_(keys))
    return (*_of_all(), _LEDGER.c.resource_id.in_(jobs))


@cache
def _of_jobs() -> tuple[ColumnElement[bool], ...]:
    # Not the organization beside them: it would lead SQLite past the index over the jobs.
    return (_LEDGER.c.resource_id.in_(bindparam("jobs", expanding=True)),)


@cache
def _inside(group: ColumnElement[str], conditions: tuple[ColumnElement[bool], ...], ends: bool) -> Select[Any]:
    """The sums of the entries that lie in the window whole."""
    columns: list[Any] = [group, *_PARTS]
    query: Select[Any] = select_columns(*columns).where(*conditions)
    query = query.where(_LEDGER.c.begins_at >= bindparam("start", type_=UtcDateTime))
    query = query.where(_LEDGER.c.last_at < bindparam("end", type_=UtcDateTime)) if ends else query
    return query if group is _EVERYTHING else query.group_by(group)


@cache
def _edge(group: ColumnElement[str], conditions: tuple[ColumnElement[bool], ...]) -> Select[Any]:
    """The entries of which a part lies on each side of a moment: none is longer than a day."""
    at, before = bindparam("at", type_=UtcDateTime), bindparam("before", type_=UtcDateTime)
    across = (_LEDGER.c.begins_at >= before, _LEDGER.c.begins_at < at, _LEDGER.c.last_at >= at)
    return select_columns(group, *_RUN).where(*conditions, *across)
