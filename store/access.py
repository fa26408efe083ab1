"""Organizations, projects and API keys: creating them, revoking keys, and telling who a bearer token is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, or_, update
from sqlalchemy import select as select_columns
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, SQLModel, col

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.ids import OrgId, new_id, new_token
from domain.roles import Role
from store.tables import ApiKey, Organization, Project
from store.vault import hash_token

DEFAULT_PROJECT = "default"
KEY_PREFIX = "hr_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

# Every request asks this, so it is built once.
_KEY_BY_HASH = (
    select_columns(
        col(ApiKey.id),
        col(ApiKey.org_id),
        col(Organization.provider_anonymity),
        col(ApiKey.owner),
        col(ApiKey.role),
        col(ApiKey.project_id),
        col(ApiKey.expires_at),
    )
    .join_from(ApiKey, Organization, col(Organization.id) == col(ApiKey.org_id))
    .where(col(ApiKey.key_hash) == bindparam("wanted_hash"), col(ApiKey.revoked_at).is_(None))
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request comes from. `project_id` is None when the key reaches all projects of its organization.

    Whether the organization is enabled is not part of it: that is read where something is spent (`store.tenants`).
    `on_behalf_of` and `request_id` are the request's, for what it creates and for the audit log.
    """

    key_id: str
    org_id: OrgId
    owner: str
    role: Role
    project_id: str | None
    provider_anonymity: bool = False
    """Whether its organization is not told which providers its jobs run on."""

    on_behalf_of: str | None = None
    request_id: str = ""

    @property
    def sees_providers(self) -> bool:
        """Whether answers may name the provider that something runs on."""
        return self.role is Role.CLUSTER_ADMIN or not self.provider_anonymity


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made; its token is never shown again."""

    key_id: str
    org_id: OrgId
    token: str = field(repr=False)


def authenticate(session: Session, token: str, now: datetime) -> Principal | None:
    """Who the bearer token belongs to; None for one that is unknown, revoked or expired."""
    if not token.startswith(KEY_PREFIX):
        return None
    row = session.connection().execute(_KEY_BY_HASH, {"wanted_hash": hash_token(token)}).one_or_none()
    if row is None or (row.expires_at is not None and row.expires_at <= now):
        return None
    return Principal(row.id, OrgId(row.org_id), row.owner, Role(row.role), row.project_id, row.provider_anonymity)


def create_organization(
    session: Session, name: str, now: datetime, *, enabled: bool = False, org_id: str | None = None
) -> Organization:
    """An organization with its project `default`; without `org_id`, with an id of our making.

    Raises:
        InvalidRequest: the name is no plain name.
        Conflict: it is taken (`organization_name_conflict`).
    """
    require_name(name)
    organization = Organization(id=org_id or new_id("org"), name=name, enabled=enabled, created_at=now, updated_at=now)
    _insert(session, organization, f"the organization {name!r} exists already", "organization_name_conflict")
    create_project(session, organization.id, DEFAULT_PROJECT, now)
    return organization


def create_project(session: Session, org_id: str, name: str, now: datetime) -> Project:
    """A project of an organization.

    Raises:
        InvalidRequest: the name is no plain name.
        Conflict: the organization has one of that name (`project_name_conflict`).
    """
    require_name(name)
    project = Project(id=new_id("prj"), org_id=org_id, name=name, created_at=now)
    _insert(session, project, f"the project {name!r} exists already", "project_name_conflict")
    return project


def create_key(
    session: Session,
    org_id: str,
    owner: str,
    role: Role,
    now: datetime,
    *,
    project_id: str | None = None,
    name: str | None = None,
    expires_at: datetime | None = None,
) -> NewKey:
    """A key of an organization, limited to one of its projects when `project_id` is given.

    Raises:
        NotFound: no such organization, or the project is not one of its own.
        InvalidRequest: an admin's key cannot be limited to a project, and an expiry lies in the future.
    """
    if project_id is not None and role.includes(Role.ORG_ADMIN):
        raise InvalidRequest(f"project: a key with the role {role} is never limited to a project", field="project")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("expires_at: must lie in the future", field="expires_at")
    if session.get(Organization, org_id) is None:
        raise NotFound(f"no organization {org_id}")
    if project_id is not None:
        project = session.get(Project, project_id)
        if project is None or project.org_id != org_id:
            raise NotFound(f"no project {project_id}")
    token = KEY_PREFIX + new_token()
    key = ApiKey(
        id=new_id("key"),
        org_id=org_id,
        project_id=project_id,
        owner=owner,
        name=name,
        expires_at=expires_at,
        role=role.value,
        key_hash=hash_token(token),
        created_at=now,
    )
    session.add(key)
    session.flush()
    return NewKey(key.id, OrgId(org_id), token)


def revoke_key(session: Session, key_id: str, now: datetime) -> bool:
    """The key is refused from the commit on. Says whether it was valid until now; a repeat changes nothing."""
    result = session.exec(
        update(ApiKey).where(col(ApiKey.id) == key_id, col(ApiKey.revoked_at).is_(None)).values(revoked_at=now)
    )
    return result.rowcount == 1


def note_use(session: Session, used: Mapping[str, datetime]) -> None:
    """Keeps when each key was last used; an earlier time never replaces a later one."""
    for key_id, at in used.items():
        unknown_or_earlier = or_(col(ApiKey.last_used_at).is_(None), col(ApiKey.last_used_at) < at)
        session.exec(update(ApiKey).where(col(ApiKey.id) == key_id, unknown_or_earlier).values(last_used_at=at))


def _insert(session: Session, row: SQLModel, problem: str, code: str) -> None:
    """Raises Conflict when one of its unique columns is taken, by a concurrent transaction too."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        raise Conflict(problem, code=code) from None


def require_name(name: str, field: str = "name") -> None:
    """Raises InvalidRequest unless it is a plain name, fit for a path and a table."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field}: {name[:80]!r} must be 1 to 63 letters, digits, dots, dashes or underscores, the first a letter "
            "or digit",
            field=field,
            limit=63,
        )
