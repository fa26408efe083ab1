"""What Google answers, in the closed set of provider errors: one table of reasons, then the HTTP status.

A reason stands in `error.details` (ErrorInfo), in `error.errors`, or as a code in a failed operation; that is where a
zone says that it has no capacity. The most specific one that the table knows counts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
)
from providers.refusals import kind_of, refusal

BY_REASON: Mapping[str, type[ProviderError]] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": NoCapacity,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": NoCapacity,
    "RESOURCE_POOL_EXHAUSTED": NoCapacity,
    "insufficientCapacity": NoCapacity,
    "IP_SPACE_EXHAUSTED": NoCapacity,
    "UNSUPPORTED_OPERATION": NoCapacity,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "quotaExceeded": QuotaExceeded,
    "limitExceeded": QuotaExceeded,
    "RATE_LIMIT_EXCEEDED": RateLimited,
    "RESOURCE_OPERATION_RATE_EXCEEDED": RateLimited,
    "operationRateExceeded": RateLimited,
    "rateLimitExceeded": RateLimited,
    "userRateLimitExceeded": RateLimited,
    "ACCESS_TOKEN_EXPIRED": AuthError,
    "ACCESS_TOKEN_TYPE_UNSUPPORTED": AuthError,
    "ACCOUNT_STATE_INVALID": AuthError,
    "CREDENTIALS_MISSING": AuthError,
    "authError": AuthError,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": PermissionDenied,
    "CONSUMER_INVALID": PermissionDenied,
    "IAM_PERMISSION_DENIED": PermissionDenied,
    "PERMISSIONS_ERROR": PermissionDenied,
    "SERVICE_DISABLED": PermissionDenied,
    "accessNotConfigured": PermissionDenied,
    "forbidden": PermissionDenied,
    "insufficientPermissions": PermissionDenied,
    "BILLING_DISABLED": BillingBlocked,
    "CONSUMER_SUSPENDED": BillingBlocked,
    "billingNotEnabled": BillingBlocked,
    "RESOURCE_NOT_FOUND": ProviderNotFound,
    "notFound": ProviderNotFound,
    "invalid": ProviderRejected,
    "resourceInUseByAnotherResource": ProviderRejected,
    "INTERNAL_ERROR": Ambiguous,
    "backendError": Ambiguous,
    "internalError": Ambiguous,
}
EXISTS = frozenset({"alreadyExists", "ALREADY_EXISTS", "RESOURCE_ALREADY_EXISTS"})

_TYPE_OF_MACHINE = re.compile(r"/(machineTypes|acceleratorTypes|diskTypes)/")
_EVERYWHERE = re.compile(r"GPUS[-_]ALL[-_]REGIONS")


class AlreadyThere(Exception):
    """A create met its own name: an earlier one made it. Never leaves the adapter."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What an answer or an operation complains of: the most specific reason comes first."""

    status: int
    reasons: tuple[str, ...]
    message: str
    retry_after: str | None = None


def complaint_of(status: int, answer: Any, headers: Mapping[str, str]) -> Complaint:
    """The complaint in the JSON of an error answer; `answer` may be anything."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    error = error if isinstance(error, Mapping) else {}
    parts = [part for name in ("details", "errors") if isinstance(part := error.get(name), list)]
    reasons = tuple(
        str(item["reason"]) for part in parts for item in part if isinstance(item, Mapping) and "reason" in item
    )
    return Complaint(status, reasons, str(error.get("message", "no message")), headers.get("Retry-After"))


def error_of(complaint: Complaint, what: str, secrets: Iterable[str]) -> ProviderError | AlreadyThere:
    """The error that a complaint stands for. Its message holds none of `secrets`."""
    code = (complaint.reasons or ("no reason",))[0]
    # What these statuses mean, no reason changes.
    reasons = () if complaint.status in (401, 429) else complaint.reasons
    kind = kind_of(complaint.status, BY_REASON, reasons)
    everywhere = kind is QuotaExceeded and _EVERYWHERE.search(complaint.message)
    error = refusal(
        kind,
        what,
        f"HTTP {complaint.status}",
        complaint.message,
        secrets,
        code=code,
        retry_after=complaint.retry_after,
        scope="connection" if everywhere else None,
    )
    return AlreadyThere(error.message) if EXISTS.intersection(complaint.reasons) else error


def of_a_create(error: ProviderError) -> ProviderError:
    """What a create does not find is what the machine is made of: a type that the zone does not have, or a mistake."""
    if not isinstance(error, ProviderNotFound):
        return error
    kind = NoCapacity if _TYPE_OF_MACHINE.search(error.message) else ProviderRejected
    return kind(error.message)


def is_done(operation: Any) -> bool:
    """Whether an operation has ended. Its status is the one of the SDK's that is an enumeration; others are texts."""
    return getattr(operation.status, "name", "") == "DONE"


def error_of_operation(operation: Any, what: str, secrets: Iterable[str]) -> ProviderError | AlreadyThere | None:
    """Why a create's operation (a `compute_v1.Operation`) failed; None if it did not, or is not done.

    One that failed has made nothing, so there is no doubt: what is wrong inside Google cannot be had there.
    """
    errors = list(operation.error.errors)
    status = int(operation.http_error_status_code or 0)
    if not is_done(operation) or not (errors or status >= 400):
        return None
    message = "; ".join(error.message or error.code for error in errors) or operation.http_error_message
    error = error_of(Complaint(status, tuple(error.code for error in errors), message), what, secrets)
    if isinstance(error, AlreadyThere):
        return error
    return NoCapacity(error.message) if isinstance(error, Ambiguous) else of_a_create(error)
