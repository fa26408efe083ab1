"""Organizations as tenants: who may spend at all, how much may live at once, and settings of the whole organization.

Caps are counted from the rows in the transaction that makes something, under a lock of the organization's row, so that
no number of concurrent creates passes one. An organization without a cap is never locked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, literal_column
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from domain.errors import Conflict, Forbidden, NotFound
from domain.states import TERMINAL, JobState
from store.access import create_organization, require_name
from store.budget_inbox import spend_changed
from store.tables import Job, Organization

LIVE = tuple(state.value for state in JobState if state not in TERMINAL)

_CAP_LOCKED = (
    select_columns(col(Organization.enabled), col(Organization.max_live_jobs))
    .where(col(Organization.id) == bindparam("org_id"))
    .with_for_update()
)
_LIVE_JOBS = select_columns(func.count(literal_column("1"))).where(
    col(Job.org_id) == bindparam("org_id"), col(Job.state).in_(LIVE)
)


@dataclass(frozen=True, slots=True)
class Put:
    """What `put` left. `changed` holds the new values of what it changed: empty for a repeat."""

    organization: Organization
    created: bool
    changed: Mapping[str, Any]


def put(session: Session, org_id: str, values: Mapping[str, Any], now: datetime) -> Put:
    """Sets columns of an organization; one that does not exist is made first, not enabled, with no caps, and named like
    its id unless `values` hold a name.

    Raises:
        InvalidRequest: the id or the name is no plain name.
        Conflict: another organization has the name (`organization_name_conflict`).
    """
    # Before the database sees it: PostgreSQL refuses NUL in a way that would be a defect.
    require_name(org_id, "org_id")
    found = _locked(session, org_id)
    created = found is None
    if found is None:
        found = _create(session, org_id, values.get("name") or org_id, now)
    if "name" in values and values["name"] != found.name:
        _require_free(session, values["name"])
    changed = {name: value for name, value in values.items() if getattr(found, name) != value}
    for name, value in changed.items():
        setattr(found, name, value)
    if changed:
        # Two changes of one moment still differ in their times.
        found.updated_at = max(now, found.updated_at)
    session.add(found)
    session.flush()
    if "time_zone" in changed:
        # Its budgets' months begin and end otherwise now.
        spend_changed(session, org_id, f"zone-{found.updated_at.isoformat()}", now)
    return Put(found, created, changed)


def get(session: Session, org_id: str) -> Organization:
    """Raises NotFound when there is none of this id."""
    found = session.get(Organization, org_id)
    if found is None:
        raise NotFound(f"no organization {org_id[:64]!r}")
    return found


def listed(
    session: Session, *, enabled: bool | None, name: str | None, only: str | None, after: str | None, limit: int
) -> Sequence[Organization]:
    """Up to `limit` organizations by id, from the one that follows `after`; `only` is the one that may be seen."""
    query = select(Organization).where(*_conditions(enabled, name, only))
    if after is not None:
        query = query.where(col(Organization.id) > after)
    return session.exec(query.order_by(col(Organization.id)).limit(limit)).all()


def count(session: Session, *, enabled: bool | None, name: str | None, only: str | None) -> int:
    """How many organizations `listed` would give in all."""
    return session.exec(select(func.count()).select_from(Organization).where(*_conditions(enabled, name, only))).one()


def require_enabled(enabled: bool) -> None:
    """Raises Forbidden (`tenant_disabled`) unless it is. Judge by what the same transaction has read, so that to
    disable an organization takes effect at once."""
    if not enabled:
        raise Forbidden("this organization is not enabled for compute: ask an administrator", code="tenant_disabled")


def require_enabled_in(session: Session, org_id: str) -> None:
    """`require_enabled`, by the organization's row in this transaction."""
    require_enabled(bool(session.exec(select(Organization.enabled).where(Organization.id == org_id)).one_or_none()))


def require_room_for_a_job(session: Session, org_id: str) -> None:
    """For an organization with a cap on live jobs: locks its row until the end of the transaction.

    Raises:
        Forbidden: as many jobs are live as may be (`tenant_limit_reached`).
    """
    # The lock waits for the creates before this one; what is counted next sees their rows.
    row = session.connection().execute(_CAP_LOCKED, {"org_id": org_id}).one()
    require_enabled(row.enabled)
    if row.max_live_jobs is None:
        return
    live = session.connection().execute(_LIVE_JOBS, {"org_id": org_id}).scalar_one()
    if live >= row.max_live_jobs:
        raise Forbidden(
            f"this organization has {live} live jobs, and may have {row.max_live_jobs}",
            code="tenant_limit_reached",
            details={"field": "max_live_jobs", "limit": row.max_live_jobs},
        )


def _locked(session: Session, org_id: str) -> Organization | None:
    query = select(Organization).where(Organization.id == org_id).with_for_update()
    return session.exec(query.execution_options(populate_existing=True)).one_or_none()


def _create(session: Session, org_id: str, name: str, now: datetime) -> Organization:
    try:
        return create_organization(session, name, now, org_id=org_id)
    except Conflict:
        # A concurrent request made it, or another organization has the name.
        made = _locked(session, org_id)
        if made is None:
            raise
        return made


def _require_free(session: Session, name: str) -> None:
    require_name(name)
    if session.exec(select(Organization.id).where(Organization.name == name)).first() is not None:
        raise Conflict(f"the organization {name!r} exists already", code="organization_name_conflict")


def _conditions(enabled: bool | None, name: str | None, only: str | None) -> list[ColumnElement[bool]]:
    wanted = ((Organization.enabled, enabled), (Organization.name, name), (Organization.id, only))
    return [col(column) == value for column, value in wanted if value is not None]
