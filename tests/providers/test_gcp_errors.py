"""What Google's reasons and codes mean: a table, and what it means for states and for how an instance ended."""

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
from providers.base import ProviderState
from providers.gcp.errors import AlreadyThere, Complaint, complaint_of, error_of, error_of_operation, of_a_create
from providers.gcp.views import end_of, instance_view

REASONS: list[tuple[int, str, type[ProviderError]]] = [
    (503, "ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity),
    (503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity),
    (400, "UNSUPPORTED_OPERATION", NoCapacity),
    (403, "quotaExceeded", QuotaExceeded),
    (403, "QUOTA_EXCEEDED", QuotaExceeded),
    (403, "limitExceeded", QuotaExceeded),
    (403, "rateLimitExceeded", RateLimited),
    (403, "userRateLimitExceeded", RateLimited),
    (429, "RATE_LIMIT_EXCEEDED", RateLimited),
    (429, "nobodyKnowsThis", RateLimited),
    (401, "authError", AuthError),
    (401, "required", AuthError),
    (401, "nobodyKnowsThis", AuthError),
    (403, "forbidden", PermissionDenied),
    (403, "accessNotConfigured", PermissionDenied),
    (403, "SERVICE_DISABLED", PermissionDenied),
    (403, "nobodyKnowsThis", PermissionDenied),
    (403, "BILLING_DISABLED", BillingBlocked),
    (403, "billingNotEnabled", BillingBlocked),
    (404, "notFound", ProviderNotFound),
    (400, "invalid", ProviderRejected),
    (400, "required", ProviderRejected),
    (400, "resourceInUseByAnotherResource", ProviderRejected),
    (412, "conditionNotMet", ProviderRejected),
    (408, "nobodyKnowsThis", Ambiguous),
    (500, "internalError", Ambiguous),
    (503, "backendError", Ambiguous),
    (502, "nobodyKnowsThis", Ambiguous),
    (0, "nobodyKnowsThis", Ambiguous),
]


@pytest.mark.parametrize(("status", "reason", "kind"), REASONS)
def test_a_reason_is_of_the_closed_set(status: int, reason: str, kind: type[ProviderError]) -> None:
    error = error_of(Complaint(status, (reason,), "words"), "create inst-x", ())
    assert type(error) is kind
    assert "create inst-x" in str(error)
    assert reason in str(error)


def test_the_details_of_an_error_are_more_specific_than_its_errors() -> None:
    answer = {
        "error": {
            "code": 403, "message": "no", "errors": [{"reason": "forbidden"}],
            "details": [{"@type": "Help"}, {"@type": "ErrorInfo", "reason": "BILLING_DISABLED"}],
        }
    }  # fmt: skip
    complaint = complaint_of(403, answer, {"Retry-After": "7"})
    assert complaint.reasons == ("BILLING_DISABLED", "forbidden")
    assert type(error_of(complaint, "create", ())) is BillingBlocked


@pytest.mark.parametrize("answer", [None, [], "x", {}, {"error": "x"}, {"error": {"errors": "x", "details": [1]}}])
def test_an_answer_that_is_no_error_object_goes_by_its_status(answer: Any) -> None:
    assert type(error_of(complaint_of(502, answer, {}), "create", ())) is Ambiguous
    assert type(error_of(complaint_of(401, answer, {}), "create", ())) is AuthError


def test_a_name_that_is_taken_is_told_apart() -> None:
    assert isinstance(error_of(Complaint(409, ("alreadyExists",), "x"), "create", ()), AlreadyThere)
    assert type(error_of(Complaint(409, ("resourceNotReady",), "x"), "create", ())) is ProviderRejected


@pytest.mark.parametrize(
    ("status", "reason", "message", "scope"),
    [
        (401, "authError", "x", "connection"),
        (503, "ZONE_RESOURCE_POOL_EXHAUSTED", "x", "offer"),
        (403, "quotaExceeded", "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 1.0 in region us-central1.", "offer"),
        (403, "quotaExceeded", "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0 globally.", "connection"),
    ],
)
def test_an_error_says_how_far_it_reaches(status: int, reason: str, message: str, scope: str) -> None:
    error = error_of(Complaint(status, (reason,), message), "create", ())
    assert isinstance(error, ProviderError)
    assert error.scope == scope


def test_what_a_create_does_not_find_is_a_type_that_the_zone_lacks_or_a_mistake() -> None:
    lacking = ProviderNotFound("The resource 'projects/p/zones/z/machineTypes/a3-highgpu-8g' was not found")
    mistaken = ProviderNotFound("The resource 'projects/p/global/networks/nowhere' was not found")
    assert type(of_a_create(lacking)) is NoCapacity
    assert type(of_a_create(mistaken)) is ProviderRejected


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity),
        ("QUOTA_EXCEEDED", QuotaExceeded),
        ("PERMISSIONS_ERROR", PermissionDenied),
        ("RESOURCE_ALREADY_EXISTS", AlreadyThere),
        ("RESOURCE_NOT_FOUND", ProviderRejected),
        ("INTERNAL_ERROR", NoCapacity),
        ("NOBODY_KNOWS_THIS", NoCapacity),
    ],
)
def test_a_failed_operation_leaves_no_doubt(code: str, kind: type[Exception]) -> None:
    error = error_of_operation(operation(errors=[{"code": code, "message": "words"}], status=503), "create", ())
    assert type(error) is kind
    assert "words" in str(error)


def test_an_operation_that_runs_or_succeeded_is_no_error() -> None:
    assert error_of_operation(operation(), "create", ()) is None
    running = operation(errors=[{"code": "QUOTA_EXCEEDED"}])
    running.status = "RUNNING"
    assert error_of_operation(running, "create", ()) is None


@pytest.mark.parametrize(
    ("status", "ended", "expected"),
    [
        ("PROVISIONING", None, ProviderState.PENDING),
        ("STAGING", None, ProviderState.STARTING),
        ("RUNNING", None, ProviderState.RUNNING),
        ("REPAIRING", None, ProviderState.PENDING),
        ("RECALIBRATING", None, ProviderState.PENDING),
        ("STOPPING", None, ProviderState.STOPPING),
        ("STOPPING", "compute.instances.preempted", ProviderState.INTERRUPTED),
        ("RUNNING", "compute.instances.preempted", ProviderState.RUNNING),
        ("TERMINATED", None, ProviderState.EXITED),
        ("TERMINATED", "compute.instances.guestTerminate", ProviderState.EXITED),
        ("TERMINATED", "compute.instances.preempted", ProviderState.INTERRUPTED),
        ("TERMINATED", "compute.instances.terminateOnHostMaintenance", ProviderState.INTERRUPTED),
        ("TERMINATED", "compute.instances.hostError", ProviderState.FAILED),
        ("TERMINATED", "stop", ProviderState.EXITED),
        ("SUSPENDED", None, ProviderState.EXITED),
    ],
)
def test_an_instance_says_how_it_is_and_its_operations_why_it_ended(
    status: str, ended: str | None, expected: ProviderState
) -> None:
    operations = [operation(kind=ended, target=42)] if ended else []
    view = instance_view(instance(status=status), end_of(operations, "hr-x", "42"))
    assert view.state is expected
    assert view.attempt_id == "inst-x"


def test_a_machine_that_shut_itself_down_on_its_notice_was_taken_back() -> None:
    taken, shut_down = operation(kind="compute.instances.preempted"), operation(kind="compute.instances.guestTerminate")
    taken.insert_time, shut_down.insert_time = "2026-11-30T12:00:00.000-08:00", "2026-11-30T12:00:20.000-08:00"
    for operations in ([taken, shut_down], [shut_down, taken]):
        ended = end_of(operations, "hr-x", "42")
        assert ended is not None
        assert ended[0] is ProviderState.INTERRUPTED


def test_the_end_of_another_instance_is_not_ours() -> None:
    others = [operation(kind="compute.instances.preempted", target=43)]
    assert end_of(others, "hr-x", "42") is None
    assert end_of(others, "hr-x", "") is None
    assert end_of(others, "hr-43", "") is not None


@pytest.mark.parametrize("lacking", ["name", "id", "zone", "status"])
def test_an_instance_that_cannot_be_read_is_no_instance_less(lacking: str) -> None:
    with pytest.raises(Ambiguous, match="unreadable"):
        instance_view(instance(**{lacking: None}))


def instance(**changes: Any) -> Any:
    from google.cloud import compute_v1

    values = {
        "name": "hr-x", "id": 42, "zone": "https://x/zones/us-central1-a", "status": "RUNNING",
        "labels": {"headrace-attempt": "inst-x"}, **changes,
    }  # fmt: skip
    return compute_v1.Instance(**{name: value for name, value in values.items() if value is not None})


def operation(errors: Any = (), status: int = 0, kind: str = "insert", target: int = 42) -> Any:
    from google.cloud import compute_v1

    found = compute_v1.Operation(
        status="DONE", operation_type=kind, target_id=target, target_link=f"https://x/instances/hr-{target}",
        error={"errors": list(errors)},
    )  # fmt: skip
    if status:
        found.http_error_status_code = status
    return found
