"""Whose fault it was that an attempt ended: each kind is counted apart, since each is tried again by its own rule."""

from enum import StrEnum

from domain.states import Reason


class Fault(StrEnum):
    """Rejections go on with the next offer, up to the wait for capacity; failures of the user's workload are final;
    preemptions and losses are tried again where the job asked for it; other infrastructure up to `max_attempts`."""

    REJECTED = "rejected"
    USER_FAILURE = "user_failure"
    PREEMPTION = "preemption"
    INFRASTRUCTURE = "infrastructure"


_USERS = {
    Reason.WORKLOAD_EXIT_NONZERO,
    Reason.WORKLOAD_SIGNALED,
    Reason.WORKLOAD_OOM,
    Reason.IMAGE_PULL_FAILED,
    Reason.BOOTSTRAP_FAILED,
    Reason.SECRET_EXPIRED,
}


def fault_of(reason_code: str, *, rented: bool) -> Fault:
    """The kind of fault behind the reason for which an attempt ended. `rented`: the provider had created it."""
    if not rented or reason_code == Reason.MAX_COST_EXCEEDED:
        return Fault.REJECTED
    if reason_code in _USERS:
        return Fault.USER_FAILURE
    return Fault.PREEMPTION if reason_code == Reason.PREEMPTED else Fault.INFRASTRUCTURE
