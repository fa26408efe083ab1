"""What an API key may do, from least to most."""

from enum import StrEnum


class Role(StrEnum):
    """A viewer reads; a member also creates and terminates; an organization admin also manages the organization; a
    cluster admin manages everything."""

    VIEWER = "viewer"
    MEMBER = "member"
    ORG_ADMIN = "org_admin"
    CLUSTER_ADMIN = "cluster_admin"

    def includes(self, other: "Role") -> bool:
        """Whether it may do all that `other` may."""
        return _FROM_LEAST.index(self) >= _FROM_LEAST.index(other)


_FROM_LEAST = tuple(Role)
