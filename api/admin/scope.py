"""Whose resources a request is about."""

from typing import Annotated

from fastapi import Query

from domain.errors import NotFound
from domain.roles import Role
from store.access import Principal

NO_NUL = r"^[^\x00]*$"
"""What a text must match that a database is asked for: PostgreSQL refuses NUL in a way that would be a defect."""

OrgIdQuery = Annotated[
    str | None,
    Query(
        max_length=63,
        pattern=NO_NUL,
        description="Of this organization; absent is the key's own, for a cluster admin's all.",
    ),
]


def scope(principal: Principal, org_id: str | None) -> str | None:
    """The organization whose resources are meant and may be seen; None is all of them.

    Raises:
        NotFound: it is another one than the key's own.
    """
    if principal.role is Role.CLUSTER_ADMIN:
        return org_id
    if org_id not in {None, principal.org_id}:
        raise NotFound(f"no organization {org_id!r}")
    return principal.org_id


def target(principal: Principal, org_id: str | None) -> str:
    """The organization in which something is made: the key's own unless another is named. Raises as `scope` does."""
    return scope(principal, org_id) or principal.org_id
