"""The one tree of errors that crosses layers.

    HeadraceError
    ├── RequestError            a caller's mistake or a refusal; the API renders it (code, status, field)
    │   ├── InvalidRequest      422
    │   ├── InvalidCursor       400
    │   ├── NotAuthenticated    401
    │   ├── Forbidden           403
    │   ├── NotFound            404
    │   ├── Conflict            409
    │   ├── PreconditionFailed  412
    │   ├── PreconditionRequired 428
    │   ├── TooManyRequests     429
    │   └── NotImplementedYet   501
    └── ProviderError           what a backend answered; the closed set that `providers.base` may raise
        ├── NoCapacity, QuotaExceeded            move on to the next offer
        ├── AuthError, PermissionDenied, BillingBlocked   disable the connection
        ├── ProviderRejected    the request itself is wrong for this backend
        ├── ImagePullFailed, BootstrapFailed     the workload's image is at fault
        ├── RateLimited         wait, then again
        ├── Ambiguous           it may have happened: look it up before anything else
        └── ProviderNotFound

Messages say what failed, for which id, what was wanted, what was found, and the next step; never a secret.
"""

from typing import Any, ClassVar


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose."""


class RequestError(HeadraceError):
    """A request that is refused. `code` is the stable, documented error code; `status` the HTTP status."""

    status: ClassVar[int] = 400
    default_code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, code: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.details = details


class InvalidRequest(RequestError):
    """422: a field is wrong. `field` is its dotted path; `limit` is the bound that it broke, when there is one; what
    else there is to tell is in `details`."""

    status = 422

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: Any = None,
        code: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        told = {"field": field, "limit": limit, **(details or {})}
        super().__init__(message, code=code, details={k: v for k, v in told.items() if v is not None} or None)
        self.field = field
        self.limit = limit


class BadRequest(RequestError):
    """400: the request as a whole cannot be read (a missing header, a body that is not JSON)."""


class InvalidCursor(RequestError):
    """400: a cursor that was tampered with, or belongs to another order, filter or resource."""

    default_code = "invalid_cursor"


class NotAuthenticated(RequestError):
    """401: no key, or one that is unknown or revoked."""

    status = 401
    default_code = "unauthenticated"


class Forbidden(RequestError):
    """403: the key is known, and may not do this (`forbidden`, `tenant_disabled`)."""

    status = 403
    default_code = "forbidden"


class NotFound(RequestError):
    """404: it does not exist, or it belongs to another organization."""

    status = 404
    default_code = "not_found"


class Conflict(RequestError):
    """409: the request contradicts the state of the resource."""

    status = 409
    default_code = "conflict"


class PreconditionFailed(RequestError):
    """412: the version in `If-Match` is not the current one."""

    status = 412
    default_code = "precondition_failed"


class PreconditionRequired(RequestError):
    """428: the header `If-Match` is wanted."""

    status = 428
    default_code = "precondition_required"


class PayloadTooLarge(RequestError):
    """413: the body is larger than the API takes."""

    status = 413
    default_code = "payload_too_large"


class RequestTimeout(RequestError):
    """408: the body did not arrive in time."""

    status = 408
    default_code = "request_timeout"


class NotImplementedYet(RequestError):
    """501: a documented operation that this version does not have."""

    status = 501
    default_code = "not_implemented"


class TooManyRequests(RequestError):
    """429: `retry_after_seconds` is when to try again, in whole seconds."""

    status = 429
    default_code = "rate_limited"

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(RequestError):
    """503: a part that the request needs is down; the message names it. Safe to repeat."""

    status = 503
    default_code = "unavailable"


class ProviderError(HeadraceError):
    """What a backend answered. `scope` is where it holds: an offer id, a region, or the whole connection."""

    kind: ClassVar[str] = "provider_error"

    def __init__(self, message: str, *, scope: str = "offer", retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.scope = scope
        self.retry_after_seconds = retry_after_seconds


class NoCapacity(ProviderError):
    """The offer cannot be had now. Placement goes to the next one."""

    kind = "no_capacity"


class QuotaExceeded(ProviderError):
    """The account's quota refuses it. Placement goes to the next offer."""

    kind = "quota_exceeded"


class AuthError(ProviderError):
    """The credentials are wrong or expired. The connection is disabled."""

    kind = "auth"


class PermissionDenied(ProviderError):
    """The credentials are right and lack a permission. The connection is disabled."""

    kind = "permission"


class BillingBlocked(ProviderError):
    """The account cannot be charged. The connection is disabled."""

    kind = "billing"


class ProviderRejected(ProviderError):
    """The backend refuses the request for what it says; repeating it changes nothing."""

    kind = "rejected"


class ImagePullFailed(ProviderError):
    """The image does not exist, cannot be read with these credentials, or does not fit."""

    kind = "image_pull_failed"


class BootstrapFailed(ProviderError):
    """The instance started and the agent could not: the message says what the image lacks."""

    kind = "bootstrap_failed"


class RateLimited(ProviderError):
    """Too many calls; `retry_after_seconds` is the backend's word, or None."""

    kind = "rate_limited"


class Ambiguous(ProviderError):
    """A 5xx, a timeout or a reset: it may have happened. Look the attempt up before trying again."""

    kind = "ambiguous"


class ProviderNotFound(ProviderError):
    """The backend says that there is no such thing."""

    kind = "not_found"
