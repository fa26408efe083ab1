"""What a backend refuses, in the closed set of provider errors: the reading that is the same for all of them.

A backend brings a table of its codes. The code counts, then the HTTP status; what neither names is `ProviderRejected`
(4xx: repeating it changes nothing) or `Ambiguous` (everything else: it may have happened). The message is masked, then
bounded.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    RateLimited,
)
from domain.masking import mask

MESSAGE_CHARACTERS = 500
_CODE_CHARACTERS = 64

Kind = type[ProviderError]
BY_STATUS: Mapping[int, Kind] = {
    401: AuthError,
    402: BillingBlocked,
    403: PermissionDenied,
    404: ProviderNotFound,
    408: Ambiguous,
    429: RateLimited,
}
_CONNECTION_WIDE = (AuthError, PermissionDenied, BillingBlocked, RateLimited)


def kind_of(status: int, by_code: Mapping[str, Kind] | None = None, codes: Iterable[str] = ()) -> Kind:
    """The kind of the first of `codes` that the table knows, or of the status; 0 is no status."""
    known = next((by_code[code] for code in codes if code in by_code), None) if by_code else None
    return known or BY_STATUS.get(status) or (ProviderRejected if 400 <= status < 500 else Ambiguous)


def refusal(
    kind: Kind,
    what: str,
    how: str,
    words: str,
    secrets: Iterable[str],
    *,
    code: str = "",
    retry_after: str | None = None,
    scope: str | None = None,
) -> ProviderError:
    """An error of the kind: `what` was tried, `how` the answer came (`HTTP 503`), the backend's code and its `words`.

    Holds none of `secrets`. `retry_after` is the header of that name. `scope` is by default the connection for what
    every call on it would meet, and the offer for the rest.
    """
    # Masked before it is cut: half a secret is one too.
    said = mask(words, secrets)[:MESSAGE_CHARACTERS]
    named = mask(code, secrets)[:_CODE_CHARACTERS]
    return kind(
        f"{what}: {how}{', ' if named else ''}{named}: {said}",
        scope=scope or ("connection" if issubclass(kind, _CONNECTION_WIDE) else "offer"),
        retry_after_seconds=_seconds(retry_after),
    )


def _seconds(retry_after: str | None) -> float | None:
    """From either form of the header; None when it is absent or unreadable."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
