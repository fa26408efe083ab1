"""The edge between provider errors and Temporal: one table from class to failure type and retryability."""

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from domain.errors import (
    AuthError,
    BillingBlocked,
    BootstrapFailed,
    ImagePullFailed,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
)
from domain.states import Reason
from workflows.contract import FailureType

_MESSAGE_CHARACTERS = 2_000
_FINAL: dict[type[ProviderError], str] = {
    ImagePullFailed: FailureType.IMAGE_PULL_FAILED,
    BootstrapFailed: FailureType.BOOTSTRAP_FAILED,
    ProviderRejected: ProviderRejected.kind,
}

# Of a boot: the instance is not there any more, or could not be had after all.
_NOT_THERE = (NoCapacity, QuotaExceeded, ProviderNotFound)

# These disable the connection, until a poll of its offers succeeds again.
BLOCKS = (AuthError, PermissionDenied, BillingBlocked)

# Why the job failed when this was the last word of the last offer.
REASONS: dict[str, Reason] = {
    "no_capacity": Reason.CAPACITY_UNAVAILABLE,
    "quota_exceeded": Reason.QUOTA_EXCEEDED,
    "auth": Reason.PROVIDER_AUTH_FAILED,
    "permission": Reason.PROVIDER_AUTH_FAILED,
    "billing": Reason.PROVIDER_AUTH_FAILED,
}

_LAUNCH: dict[Reason, FailureType] = {
    Reason.SECRET_EXPIRED: FailureType.SECRET_EXPIRED,
    Reason.IMAGE_PULL_FAILED: FailureType.IMAGE_PULL_FAILED,
    Reason.BOOTSTRAP_FAILED: FailureType.BOOTSTRAP_FAILED,
}


def bounded(message: str) -> str:
    """A provider's message may be megabytes; a Temporal payload may not."""
    return message if len(message) <= _MESSAGE_CHARACTERS else message[:_MESSAGE_CHARACTERS] + "... (shortened)"


def to_application_error(error: ProviderError) -> ApplicationError:
    """The failure that the workflow sees; those that repeating cannot change are not retried."""
    for cls, failure_type in _FINAL.items():
        if isinstance(error, cls):
            # The user's doing, told to the user: nothing that an operator should find in the worker's log.
            return ApplicationError(
                bounded(error.message),
                type=failure_type,
                non_retryable=True,
                category=ApplicationErrorCategory.BENIGN,
            )
    return ApplicationError(bounded(error.message), type=error.kind)


def boot_error(error: ProviderError) -> ApplicationError:
    """The failure of a boot: one whose instance is not there is not tried again, but the next offer is."""
    if isinstance(error, _NOT_THERE):
        return ApplicationError(bounded(error.message), type=FailureType.INSTANCE_GONE, non_retryable=True)
    return to_application_error(error)


def cannot_launch(reason: Reason, message: str) -> ApplicationError:
    """The failure of a launch that no other hardware would make succeed, such as for want of a secret."""
    return ApplicationError(
        bounded(message), type=_LAUNCH[reason], non_retryable=True, category=ApplicationErrorCategory.BENIGN
    )


def retry_after_seconds(error: ProviderError, default: float) -> float:
    """How long to wait before the next call: the provider's word where it gave one, at most a minute."""
    if isinstance(error, RateLimited) and error.retry_after_seconds is not None:
        return min(error.retry_after_seconds, 60)
    return default
