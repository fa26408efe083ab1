"""Job and instance states, their allowed transitions, and the closed set of reason codes.

`_ALLOWED` is the whole state machine; `store.transitions` applies it as a compare-and-set.
"""

from enum import StrEnum


class JobState(StrEnum):
    """States of a job as the seed documents them."""

    REQUESTED = "requested"
    ALLOCATING = "allocating"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    FINALIZING = "finalizing"
    TERMINATING = "terminating"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TERMINATED = "terminated"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.TERMINATED})

# `allocating` follows `provisioning` when the next offer is tried; nothing leaves a terminal state.
_ALLOWED: dict[JobState, frozenset[JobState]] = {
    JobState.REQUESTED: frozenset({JobState.ALLOCATING, JobState.TERMINATING, JobState.FAILED}),
    JobState.ALLOCATING: frozenset({JobState.PROVISIONING, JobState.TERMINATING, JobState.FAILED}),
    JobState.PROVISIONING: frozenset({JobState.ALLOCATING, JobState.RUNNING, JobState.TERMINATING, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.ALLOCATING, JobState.FINALIZING, JobState.TERMINATING, JobState.FAILED}),
    # An exit that won running -> finalizing seals the outcome: a terminate only cuts the drain.
    JobState.FINALIZING: frozenset({JobState.SUCCEEDED, JobState.FAILED}),
    JobState.TERMINATING: frozenset({JobState.TERMINATED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.TERMINATED: frozenset(),
}


def may_become(current: JobState, wanted: JobState) -> bool:
    """Whether `current -> wanted` is a transition of the job's state machine."""
    return wanted in _ALLOWED[current]


def sources_of(wanted: JobState) -> frozenset[JobState]:
    """The states from which `wanted` can be reached in one transition."""
    return frozenset(state for state, targets in _ALLOWED.items() if wanted in targets)


class InstanceState(StrEnum):
    """States of an instance as the API shows them. `stopped` and `lost` with a confirmed absence are final."""

    REQUESTED = "requested"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a job ended as it did, or is ending. Closed and documented (docs/reasons.md)."""

    USER_REQUESTED = "user_requested"
    MAX_RUNTIME_EXCEEDED = "max_runtime_exceeded"
    MAX_COST_EXCEEDED = "max_cost_exceeded"
    BUDGET_EXHAUSTED = "budget_exhausted"
    CAPACITY_UNAVAILABLE = "capacity_unavailable"
    QUOTA_EXCEEDED = "quota_exceeded"
    PROVIDER_AUTH_FAILED = "provider_auth_failed"
    PROVIDER_ERROR = "provider_error"
    IMAGE_PULL_FAILED = "image_pull_failed"
    BOOTSTRAP_FAILED = "bootstrap_failed"
    PROVISIONING_TIMEOUT = "provisioning_timeout"
    WORKLOAD_EXIT_NONZERO = "workload_exit_nonzero"
    WORKLOAD_SIGNALED = "workload_signaled"
    WORKLOAD_OOM = "workload_oom"
    INSTANCE_LOST = "instance_lost"
    PREEMPTED = "preempted"
    SECRET_EXPIRED = "secret_expired"  # noqa: S105 - a reason code, not a secret
    INTERNAL_ERROR = "internal_error"


class EventType(StrEnum):
    """Types of job events. The first three are the seed's; clients must ignore the ones they do not know."""

    PROVIDER_ALLOCATED = "provider_allocated"
    WORKLOAD_STARTED = "workload_started"
    WORKLOAD_EXITED = "workload_exited"
    JOB_CREATED = "job_created"
    STATE_CHANGED = "state_changed"
    OFFER_REJECTED = "offer_rejected"
    AGENT_CONNECTED = "agent_connected"
    AGENT_FAULT = "agent_fault"
    NONCE_REFUSED = "nonce_refused"
    LAUNCH_REFUSED = "launch_refused"
    SSH_OPENED = "ssh_opened"
    SSH_UNAVAILABLE = "ssh_unavailable"
    TERMINATION_REQUESTED = "termination_requested"
    INTERRUPTION_RISK = "interruption_risk"
    INTERRUPTION_NOTICED = "interruption_noticed"
    LATE_EXIT = "late_exit"
    CONTACT_LOST = "contact_lost"
    DELETE_ACCEPTED = "delete_accepted"
    DELETE_RETRIED = "delete_retried"
    INSTANCE_GONE = "instance_gone"
    PRICE_CHANGED = "price_changed"
    SANDBOXED = "sandboxed"
    RECOVERED = "recovered"
