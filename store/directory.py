"""Projects and keys, as those who administrate them see them. `org_id` is the one organization that may be seen; None
is all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, tuple_
from sqlmodel import Session, col, select

from domain.errors import NotFound
from store.tables import ApiKey, Project


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which keys; None is no condition. `active` ones are neither revoked nor expired at `now`."""

    org_id: str | None
    owner: str | None
    active: bool | None
    now: datetime


def projects(
    session: Session, org_id: str | None, only: str | None, *, after: tuple[str, str] | None, limit: int
) -> Sequence[Project]:
    """Up to `limit` projects by name, from the one that follows `after` (its name and id). `only` is the id of the one
    that may be seen."""
    query = select(Project).where(*_of(Project, org_id), *_only(only))
    if after is not None:
        query = query.where(tuple_(col(Project.name), col(Project.id)) > tuple_(*after))
    return session.exec(query.order_by(col(Project.name), col(Project.id)).limit(limit)).all()


def count_projects(session: Session, org_id: str | None, only: str | None) -> int:
    return session.exec(select(func.count()).select_from(Project).where(*_of(Project, org_id), *_only(only))).one()


def project_id(session: Session, org_id: str, name: str) -> str:
    """Raises NotFound when the organization has no project of this name."""
    found = session.exec(select(Project.id).where(Project.org_id == org_id, Project.name == name)).one_or_none()
    if found is None:
        raise NotFound(f"the organization {org_id} has no project {name!r}")
    return found


def keys(
    session: Session, wanted: KeyFilter, *, before: tuple[datetime, str] | None, limit: int
) -> list[tuple[ApiKey, str | None]]:
    """Up to `limit` keys with the names of their projects, the newest first, from the one that follows `before` (its
    creation and id)."""
    query = _keys().where(*_conditions(wanted))
    if before is not None:
        query = query.where(
            or_(
                col(ApiKey.created_at) < before[0],
                and_(col(ApiKey.created_at) == before[0], col(ApiKey.id) < before[1]),
            )
        )
    return list(session.exec(query.order_by(col(ApiKey.created_at).desc(), col(ApiKey.id).desc()).limit(limit)).all())


def count_keys(session: Session, wanted: KeyFilter) -> int:
    """How many keys `keys` would list in all."""
    return session.exec(select(func.count()).select_from(ApiKey).where(*_conditions(wanted))).one()


def key(session: Session, key_id: str, org_id: str | None) -> tuple[ApiKey, str | None]:
    """A key and the name of its project; raises NotFound when there is none, or it is another organization's."""
    row: tuple[ApiKey, str | None] | None
    row = session.exec(_keys().where(col(ApiKey.id) == key_id, *_of(ApiKey, org_id))).one_or_none()
    if row is None:
        raise NotFound(f"no key {key_id[:64]!r}")
    return row


def _keys() -> Any:
    return select(ApiKey, Project.name).join(Project, col(Project.id) == col(ApiKey.project_id), isouter=True)


def _conditions(wanted: KeyFilter) -> list[Any]:
    conditions: list[Any] = _of(ApiKey, wanted.org_id)
    if wanted.owner is not None:
        conditions.append(col(ApiKey.owner) == wanted.owner)
    if wanted.active is not None:
        unexpired = or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > wanted.now)
        active = and_(col(ApiKey.revoked_at).is_(None), unexpired)
        conditions.append(active if wanted.active else ~active)
    return conditions


def _of(model: type[Project] | type[ApiKey], org_id: str | None) -> list[ColumnElement[bool]]:
    return [] if org_id is None else [col(model.org_id) == org_id]


def _only(project: str | None) -> list[ColumnElement[bool]]:
    return [] if project is None else [col(Project.id) == project]
