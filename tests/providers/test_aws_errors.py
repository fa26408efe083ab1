"""What AWS's codes mean: a table, and what it means for states and for what an instance says of its end."""

from typing import Any

import pytest

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
from providers.aws.errors import AlreadyThere, InUse, TokenSpent, error_of
from providers.aws.views import instance_view
from providers.base import ProviderState

CODES: list[tuple[str, int, type[ProviderError]]] = [
    # The statuses are those that EC2 documents: capacity is a 500, a throttle a 503.
    ("InsufficientInstanceCapacity", 500, NoCapacity),
    ("InsufficientHostCapacity", 500, NoCapacity),
    ("UnfulfillableCapacity", 500, NoCapacity),
    ("SpotMaxPriceTooLow", 400, NoCapacity),
    ("Unsupported", 400, NoCapacity),
    ("InsufficientFreeAddressesInSubnet", 400, NoCapacity),
    ("VcpuLimitExceeded", 400, QuotaExceeded),
    ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
    ("InstanceLimitExceeded", 400, QuotaExceeded),
    ("AuthFailure", 401, AuthError),
    ("InvalidClientTokenId", 403, AuthError),
    ("UnrecognizedClientException", 400, AuthError),
    ("SignatureDoesNotMatch", 403, AuthError),
    ("RequestExpired", 400, AuthError),
    ("ExpiredToken", 400, AuthError),
    ("UnauthorizedOperation", 403, PermissionDenied),
    ("AccessDenied", 403, PermissionDenied),
    ("AccessDeniedException", 400, PermissionDenied),
    ("OptInRequired", 401, BillingBlocked),
    ("PendingVerification", 400, BillingBlocked),
    ("Blocked", 403, BillingBlocked),
    ("RequestLimitExceeded", 503, RateLimited),
    ("Throttling", 400, RateLimited),
    ("InternalError", 500, Ambiguous),
    ("Unavailable", 503, Ambiguous),
    ("InternalFailure", 500, Ambiguous),
    ("NobodyKnowsThis", 500, Ambiguous),
    ("NobodyKnowsThis", 0, Ambiguous),
    ("NobodyKnowsThis", 400, ProviderRejected),
    ("InvalidParameterValue", 400, ProviderRejected),
    ("InvalidAMIID.NotFound", 400, ProviderRejected),
    ("InvalidInstanceID.NotFound", 400, ProviderNotFound),
    ("InvalidVolume.NotFound", 400, ProviderNotFound),
    ("InvalidGroup.NotFound", 400, ProviderNotFound),
    ("InvalidGroup.Duplicate", 400, AlreadyThere),
    ("InvalidPermission.Duplicate", 400, AlreadyThere),
    ("DependencyViolation", 400, InUse),
    ("VolumeInUse", 400, InUse),
    ("SecurityGroupLimitExceeded", 400, QuotaExceeded),
]


def answer(code: str, status: int, message: str = "words", **headers: str) -> dict[str, Any]:
    return {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }


@pytest.mark.parametrize(("code", "status", "kind"), CODES)
def test_a_code_is_of_the_closed_set(code: str, status: int, kind: type[ProviderError]) -> None:
    error = error_of(answer(code, status), "create inst-x", ())
    assert type(error) is kind
    assert "create inst-x" in str(error)
    assert code in str(error)


@pytest.mark.parametrize(
    ("code", "dead"), [("IdempotentParameterMismatch", False), ("IdempotentInstanceTerminated", True)]
)
def test_a_token_that_was_used_is_told_apart(code: str, dead: bool) -> None:
    error = error_of(answer(code, 400), "create inst-x", ())
    assert isinstance(error, TokenSpent)
    assert error.dead is dead


def test_what_concerns_the_whole_account_says_so() -> None:
    for code, scope in (("AuthFailure", "connection"), ("InsufficientInstanceCapacity", "offer")):
        error = error_of(answer(code, 400), "create", ())
        assert isinstance(error, ProviderError)
        assert error.scope == scope


def test_an_answer_that_is_no_error_object_is_ambiguous() -> None:
    assert type(error_of({}, "create", ())) is Ambiguous


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("pending", "", ProviderState.PENDING),
        ("running", "", ProviderState.RUNNING),
        ("recalibrating", "", ProviderState.PENDING),
        ("running", "Server.SpotInstanceTermination", ProviderState.RUNNING),
        ("shutting-down", "", ProviderState.STOPPING),
        ("shutting-down", "Client.UserInitiatedShutdown", ProviderState.STOPPING),
        ("shutting-down", "Server.SpotInstanceTermination", ProviderState.INTERRUPTED),
        ("terminated", "Server.SpotInstanceTermination", ProviderState.INTERRUPTED),
        ("stopped", "Server.SpotInstanceShutdown", ProviderState.INTERRUPTED),
        ("terminated", "Server.InsufficientInstanceCapacity", ProviderState.INTERRUPTED),
        ("terminated", "Server.InternalError", ProviderState.FAILED),
        ("terminated", "Client.VolumeLimitExceeded", ProviderState.FAILED),
        ("terminated", "Client.InstanceInitiatedShutdown", ProviderState.EXITED),
        ("terminated", "Client.UserInitiatedShutdown", ProviderState.GONE),
        ("terminated", "", ProviderState.GONE),
        ("stopped", "Client.UserInitiatedShutdown", ProviderState.EXITED),
    ],
)
def test_an_instance_says_how_it_is_and_why_it_ended(state: str, reason: str, expected: ProviderState) -> None:
    described = {
        "InstanceId": "i-1", "State": {"Name": state}, "StateReason": {"Code": reason, "Message": f"{reason}: words"},
        "Tags": [{"Key": "headrace-attempt", "Value": "inst-x"}],
    }  # fmt: skip
    view = instance_view(described, "us-east-1")
    assert view.state is expected
    assert view.attempt_id == "inst-x"


@pytest.mark.parametrize("lacking", ["InstanceId", "State"])
def test_an_instance_that_cannot_be_read_is_no_instance_less(lacking: str) -> None:
    described = {"InstanceId": "i-1", "State": {"Name": "running"}}
    del described[lacking]
    with pytest.raises(Ambiguous, match="unreadable"):
        instance_view(described, "us-east-1")
