"""What AWS answers, in the closed set of provider errors: one table of codes, then the HTTP status.

The codes come first: EC2 answers some that are final with a 5xx (`InsufficientInstanceCapacity` is a 500,
`RequestLimitExceeded` a 503). That one is no doubt about a create: it was turned away at the door, and the client token
makes a repetition harmless if it was not.
"""

from collections.abc import Iterable, Mapping
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


class AlreadyThere(ProviderRejected):
    """What was to be made is there, by an earlier call."""


class InUse(ProviderRejected):
    """What was to be deleted is held by something else, yet."""


BY_CODE: Mapping[str, type[ProviderError]] = {
    # The type cannot be had there now, or not at all.
    "InsufficientInstanceCapacity": NoCapacity,
    "InsufficientHostCapacity": NoCapacity,
    "InsufficientReservedInstanceCapacity": NoCapacity,
    "InsufficientCapacity": NoCapacity,
    "InsufficientFreeAddressesInSubnet": NoCapacity,
    "UnfulfillableCapacity": NoCapacity,
    "SpotMaxPriceTooLow": NoCapacity,
    "Unsupported": NoCapacity,
    "VcpuLimitExceeded": QuotaExceeded,
    "MaxSpotInstanceCountExceeded": QuotaExceeded,
    "InstanceLimitExceeded": QuotaExceeded,
    "VolumeLimitExceeded": QuotaExceeded,
    "SecurityGroupLimitExceeded": QuotaExceeded,
    "AuthFailure": AuthError,
    "ExpiredToken": AuthError,
    "ExpiredTokenException": AuthError,
    "IncompleteSignature": AuthError,
    "InvalidAccessKeyId": AuthError,
    "InvalidClientTokenId": AuthError,
    "InvalidSignatureException": AuthError,
    "MissingAuthenticationToken": AuthError,
    "RequestExpired": AuthError,
    "SignatureDoesNotMatch": AuthError,
    "UnrecognizedClientException": AuthError,
    "AccessDenied": PermissionDenied,
    "AccessDeniedException": PermissionDenied,
    "UnauthorizedOperation": PermissionDenied,
    # The account is closed, not yet verified, or did not accept the terms of what it rents.
    "Blocked": BillingBlocked,
    "OptInRequired": BillingBlocked,
    "PendingVerification": BillingBlocked,
    "EC2ThrottledException": RateLimited,
    "RequestLimitExceeded": RateLimited,
    "RequestThrottled": RateLimited,
    "Throttling": RateLimited,
    "ThrottlingException": RateLimited,
    "TooManyRequestsException": RateLimited,
    "InvalidInstanceID.NotFound": ProviderNotFound,
    "InvalidVolume.NotFound": ProviderNotFound,
    "InvalidGroup.NotFound": ProviderNotFound,
    "InvalidGroup.Duplicate": AlreadyThere,
    "InvalidPermission.Duplicate": AlreadyThere,
    "DependencyViolation": InUse,
    "VolumeInUse": InUse,
    "InvalidGroup.InUse": InUse,
    "ParameterNotFound": ProviderRejected,
    "InternalError": Ambiguous,
    "InternalFailure": Ambiguous,
    "ServiceUnavailable": Ambiguous,
    "Unavailable": Ambiguous,
}
TOKEN_OF_DEAD = "IdempotentInstanceTerminated"  # noqa: S105 - a code, no secret
TOKEN_SPENT = frozenset({"IdempotentParameterMismatch", TOKEN_OF_DEAD})
DRY_RUN_PASSED = "DryRunOperation"


class TokenSpent(Exception):
    """An earlier create used this attempt's client token, with other arguments or for an instance that is dead: `dead`
    says which. Never leaves the adapter."""

    def __init__(self, message: str, *, dead: bool) -> None:
        super().__init__(message)
        self.dead = dead


def error_of(answer: Mapping[str, Any], what: str, secrets: Iterable[str]) -> ProviderError | TokenSpent:
    """The error that a parsed answer stands for. Its message holds none of `secrets`."""
    error: Mapping[str, Any] = answer.get("Error", {})
    metadata: Mapping[str, Any] = answer.get("ResponseMetadata", {})
    status, code = int(metadata.get("HTTPStatusCode", 0)), str(error.get("Code", "no code"))
    refused = refusal(
        kind_of(status, BY_CODE, (code,)),
        what,
        f"HTTP {status}",
        str(error.get("Message", "no message")),
        secrets,
        code=code,
        retry_after=metadata.get("HTTPHeaders", {}).get("retry-after"),
    )
    return TokenSpent(refused.message, dead=code == TOKEN_OF_DEAD) if code in TOKEN_SPENT else refused
