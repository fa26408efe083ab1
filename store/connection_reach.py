"""Which connections somebody may rent with. All runs inside `Database.read` or `Database.write`."""

from dataclasses import dataclass

from sqlalchemy import or_
from sqlmodel import Session, col, select

from domain.roles import Role
from store.access import DEFAULT_PROJECT, Principal
from store.connections import CLUSTER, ConnectionState, is_stored
from store.tables import Connection, Project


@dataclass(frozen=True, slots=True)
class Reach:
    """The connections that somebody may use; those that the settings configure (this machine) are everyone's."""

    stored: frozenset[str] | None
    """None: all."""

    def __contains__(self, connection_id: object) -> bool:
        return self.stored is None or not is_stored(str(connection_id)) or connection_id in self.stored


EVERYTHING = Reach(None)


def reach_of_job(session: Session, org_id: str, project_id: str) -> Reach:
    """The connections of a job's ancestors: the cluster, its organization, its project."""
    query = select(Connection.id).where(
        col(Connection.scope).in_([CLUSTER, org_id, project_id]), Connection.state == ConnectionState.CONNECTED
    )
    return Reach(frozenset(session.exec(query).all()))


def reach_of_org(session: Session, org_id: str) -> Reach:
    """The connections that jobs of the organization may use, in any of its projects."""
    query = select(Connection.id).where(
        or_(col(Connection.org_id).is_(None), col(Connection.org_id) == org_id),
        Connection.state == ConnectionState.CONNECTED,
    )
    return Reach(frozenset(session.exec(query).all()))


def reach_of_principal(session: Session, principal: Principal) -> Reach:
    """Those of the jobs that this key creates where it names no project."""
    if principal.project_id is not None:
        return reach_of_job(session, principal.org_id, principal.project_id)
    default = select(Project.id).where(Project.org_id == principal.org_id, Project.name == DEFAULT_PROJECT)
    return reach_of_job(session, principal.org_id, session.exec(default).first() or "")


def reach_of_lists(session: Session, principal: Principal) -> Reach:
    """Those that an administrator is shown."""
    return EVERYTHING if principal.role is Role.CLUSTER_ADMIN else reach_of_org(session, principal.org_id)


def may_still_use(session: Session, connection_id: str) -> bool:
    """Whether something new may be rented. Locked until the transaction ends: who removes it sees what was minted."""
    if not is_stored(connection_id):
        return True
    found = session.get(Connection, connection_id, with_for_update={"read": True}, populate_existing=True)
    return found is not None and found.state == ConnectionState.CONNECTED
