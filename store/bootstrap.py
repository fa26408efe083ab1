"""The first start: the installation's identity, an organization, a project and an admin key to begin with."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from domain.ids import OrgId, new_owner_id
from domain.roles import Role
from store import audit
from store.access import DEFAULT_PROJECT, Principal, create_key, create_organization
from store.db import Database
from store.tables import Installation, Organization, Project

DEFAULT_ORGANIZATION = "default"
ADMIN = "admin"
OPERATOR = "operator"
"""Who acts in the audit log where a command works on the database itself."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What the first start made. The key is stored only as a hash: whoever gets this must keep it."""

    owner_id: str
    org_id: OrgId
    project_id: str
    api_key: str = field(repr=False)


def first_start(db: Database, now: datetime) -> Bootstrap | None:
    """Creates the installation with its organization and project `default` and a cluster admin's key, all or nothing.

    Returns None when it exists already: of several processes that start at once, one creates it.
    """
    try:
        return db.run_write(lambda session: _create(session, now))
    except IntegrityError:
        # Another process has just inserted the one row of `installation`; any other conflict is an error.
        if db.run_read(_installation) is None:
            raise
        return None


def new_admin_key(db: Database, now: datetime) -> Bootstrap:
    """Another cluster admin's key of the organization `default`, for when the first one was lost.

    Raises:
        LookupError: there was no first start.
    """

    def create(session: Session) -> Bootstrap:
        installation = _installation(session)
        organization = session.exec(select(Organization).where(Organization.name == DEFAULT_ORGANIZATION)).one_or_none()
        if installation is None or organization is None:
            raise LookupError("the database holds no installation: start Headrace once")
        project_id = session.exec(
            select(Project.id).where(Project.org_id == organization.id, Project.name == DEFAULT_PROJECT)
        ).one()
        return _with_key(session, installation.owner_id, organization.id, project_id, now)

    return db.run_write(create)


def owner_id(session: Session) -> str:
    """What marks this installation's resources at providers.

    Raises:
        LookupError: there was no first start.
    """
    installation = _installation(session)
    if installation is None:
        raise LookupError("the database holds no installation: start Headrace once")
    return installation.owner_id


def _create(session: Session, now: datetime) -> Bootstrap | None:
    if _installation(session) is not None:
        return None
    installation = Installation(owner_id=new_owner_id(), created_at=now)
    session.add(installation)
    session.flush()
    organization = create_organization(session, DEFAULT_ORGANIZATION, now, enabled=True)
    project_id = session.exec(select(Project.id).where(Project.org_id == organization.id)).one()
    return _with_key(session, installation.owner_id, organization.id, project_id, now)


def _with_key(session: Session, owner_id: str, org_id: str, project_id: str, now: datetime) -> Bootstrap:
    key = create_key(session, org_id, ADMIN, Role.CLUSTER_ADMIN, now)
    # Whoever reaches the database makes it, without any key: so much more must it be seen.
    operator = Principal("", key.org_id, OPERATOR, Role.CLUSTER_ADMIN, None)
    audit.write(session, operator, "key.create", key.key_id, now, {"owner": ADMIN, "role": Role.CLUSTER_ADMIN})
    return Bootstrap(owner_id, key.org_id, project_id, key.token)


def _installation(session: Session) -> Installation | None:
    return session.get(Installation, 1)
