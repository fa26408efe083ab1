"""Who calls: the bearer key, what its role may do, and on whose behalf."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.services import Services
from domain.errors import Forbidden, InvalidRequest, NotAuthenticated
from domain.roles import Role
from store.access import Principal, authenticate
from store.vault import hash_token

_bearer = HTTPBearer(auto_error=False, scheme_name="api_key", description="An API key of Headrace, `hr_...`.")
_TOKEN_LENGTH = 256
_ON_BEHALF_OF = "X-On-Behalf-Of"
_ON_BEHALF_OF_LENGTH = 256


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


# Dependencies are coroutines even where they await nothing: a plain function would be sent to a thread.
async def _services(request: Request) -> Services:
    return services_of(request)


async def authenticated(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal:
    """Whose key it is, with the request's id and end user.

    Raises:
        NotAuthenticated: there is no key, or one that is unknown, expired or revoked.
        TooManyRequests: the key's requests, or such failures of the client's address, are too many.
        InvalidRequest: the end user's id is malformed.
    """
    services = services_of(request)
    if credentials is None:
        raise _failure(request, services, "an API key is wanted: `Authorization: Bearer <key>`")
    token = credentials.credentials
    principal, now = None, services.clock()
    if len(token) <= _TOKEN_LENGTH:
        key_hash = hash_token(token)
        services.rate_limits.request(key_hash)
        principal = await services.db.read(lambda session: authenticate(session, token, now))
    if principal is None:
        raise _failure(request, services, "this API key is not known, has expired, or was revoked")
    services.rate_limits.authenticated(key_hash)
    services.key_use.note(principal.key_id, now)
    end_user = _end_user(request.headers.get(_ON_BEHALF_OF))
    return replace(principal, on_behalf_of=end_user, request_id=request.state.request_id)


def _failure(request: Request, services: Services, message: str) -> NotAuthenticated:
    """The refusal of a request without a valid key; raises TooManyRequests for an address that has had many."""
    services.rate_limits.failure(request.client.host if request.client else "")
    return NotAuthenticated(message)


async def authorized_to_write(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
    """Raises Forbidden for a role that only reads."""
    if principal.role is Role.VIEWER:
        raise Forbidden(f"a key with the role {principal.role} reads only; this needs {Role.MEMBER} or more")
    return principal


async def may_read_providers(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
    """Raises Forbidden but for cluster admins, and for organization admins whose organization is told of providers."""
    if principal.role.includes(Role.ORG_ADMIN) and principal.sees_providers:
        return principal
    if principal.role is Role.ORG_ADMIN:
        raise Forbidden("this organization is not told which providers there are; ask a cluster administrator")
    raise Forbidden(f"a key with the role {principal.role} may not do this; it needs {Role.ORG_ADMIN} or more")


def _administrating(least: Role, wanted: str) -> Callable[..., Awaitable[Principal]]:
    async def require(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
        if not principal.role.includes(least):
            raise Forbidden(f"a key with the role {principal.role} may not do this; it needs {wanted}")
        return principal

    return require


async def on_behalf_of(
    value: Annotated[
        str | None,
        Header(
            alias=_ON_BEHALF_OF,
            description=f"An external end user's id, up to {_ON_BEHALF_OF_LENGTH} printable characters; stored on "
            "what the request creates.",
        ),
    ] = None,
) -> str | None:
    """The end user whom a gateway names, checked; None when it names none."""
    return _end_user(value)


def _end_user(value: str | None) -> str | None:
    if not value:
        return None
    try:
        # Header bytes reach us as Latin-1; people's names arrive as UTF-8.
        value = value.encode("latin-1").decode()
    except UnicodeError:
        raise InvalidRequest("X-On-Behalf-Of: is not UTF-8", field="X-On-Behalf-Of") from None
    if len(value) > _ON_BEHALF_OF_LENGTH or not value.isprintable():
        raise InvalidRequest(
            f"X-On-Behalf-Of: at most {_ON_BEHALF_OF_LENGTH} printable characters",
            field="X-On-Behalf-Of",
            limit=_ON_BEHALF_OF_LENGTH,
        )
    return value


ServicesOf = Annotated[Services, Depends(_services)]
Reader = Annotated[Principal, Depends(authenticated)]
OrgAdmin = Annotated[Principal, Depends(_administrating(Role.ORG_ADMIN, f"{Role.ORG_ADMIN} or more"))]
"""Of its own organization; a cluster admin, of all."""
ClusterAdmin = Annotated[Principal, Depends(_administrating(Role.CLUSTER_ADMIN, Role.CLUSTER_ADMIN))]
ProviderReader = Annotated[Principal, Depends(may_read_providers)]
Writer = Annotated[Principal, Depends(authorized_to_write)]
OnBehalfOf = Annotated[str | None, Depends(on_behalf_of)]
