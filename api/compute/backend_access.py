"""Who sees connected backends, and who changes them."""

import re
from typing import Annotated

from fastapi import Path
from sqlmodel import Session

from domain.errors import Forbidden, NotFound
from domain.roles import Role
from store import connections
from store.access import Principal
from store.connections import Sight
from store.tables import Connection

_ID = re.compile(r"conn_[0-9A-Za-z]{16}")

BackendIdParameter = Annotated[str, Path(alias="id", examples=["conn_9f2kQxWv3bT8mLpZ"])]


def require_sight(principal: Principal) -> None:
    """Raises Forbidden for those whose organization is not told of providers; its admins know what they connected."""
    if not principal.sees_providers and not principal.role.includes(Role.ORG_ADMIN):
        raise Forbidden("this organization is not told which providers there are; ask an administrator")


def sight_of(principal: Principal, org_id: str | None) -> Sight:
    """What the caller sees of an organization's (None: of all)."""
    return Sight(org_id, principal.project_id, cluster=principal.sees_providers)


def administers(principal: Principal, connection: Connection) -> bool:
    """Whether the caller may change it, and is told what is for administrators."""
    if principal.role is Role.CLUSTER_ADMIN:
        return True
    return principal.role.includes(Role.ORG_ADMIN) and connection.org_id == principal.org_id


def find(session: Session, principal: Principal, connection_id: str, *, for_update: bool = False) -> Connection:
    """Raises NotFound where there is none that the caller sees."""
    of_org = None if principal.role is Role.CLUSTER_ADMIN else principal.org_id
    if _ID.fullmatch(connection_id):
        found = connections.find(session, connection_id, of_org, for_update=for_update)
        if _sees(principal, found):
            return found
    raise NotFound(f"no connection {connection_id[:64]!r}")


def administered(session: Session, principal: Principal, connection_id: str, *, for_update: bool = True) -> Connection:
    """The connection, for somebody who may change it; locked unless it is only to be read.

    Raises:
        NotFound: there is none that the caller sees.
        Forbidden: it is the cluster's.
    """
    found = find(session, principal, connection_id, for_update=for_update)
    if not administers(principal, found):
        raise Forbidden(f"this connection is the cluster's; it needs a key with the role {Role.CLUSTER_ADMIN}")
    return found


def _sees(principal: Principal, connection: Connection) -> bool:
    if principal.project_id is not None and connection.project_id not in {None, principal.project_id}:
        return False
    return principal.sees_providers or connection.org_id == principal.org_id
