"""How a run of `ComputeJob` leaves the job's life before its natural end, and which failures mean what."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from domain.states import Reason
    from workflows.contract import FailureType

# Failures that other hardware would not heal.
_REASONS_FOR_GOOD = {
    FailureType.IMAGE_PULL_FAILED.value: Reason.IMAGE_PULL_FAILED,
    FailureType.BOOTSTRAP_FAILED.value: Reason.BOOTSTRAP_FAILED,
    FailureType.SECRET_EXPIRED.value: Reason.SECRET_EXPIRED,
}


class JobFailed(Exception):
    """The job ends as failed, for this reason."""

    def __init__(self, reason: Reason, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.details = details


class ExitCameFirst(Exception):
    """The attempt that was to be given up has exited: that has sealed the job's outcome."""


class RowsDecide(Exception):
    """The job's row has moved on without this run, by a termination or by an exit: it tells how the job ends."""


def for_good(error: ActivityError) -> JobFailed | None:
    """The end of the job, where other hardware would change nothing; None otherwise."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type not in _REASONS_FOR_GOOD:
        return None
    return JobFailed(_REASONS_FOR_GOOD[cause.type], cause.message)


def is_fenced(error: FailureError) -> bool:
    """Whether another run has claimed the job. An activity's failure is wrapped, a local activity's is not."""
    root = error.cause if isinstance(error, ActivityError) else error
    return isinstance(root, ApplicationError) and root.type == FailureType.FENCED
