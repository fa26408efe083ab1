"""What crosses between workflows, activities and the dispatcher: names, signals and values.

Values hold references and small facts only (ids, deadlines, reasons): histories stay small and free of secrets.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from domain.outcome import ExitReport, judge
from domain.states import JobState, Reason

COMPUTE_JOB = "ComputeJob"
DEALLOCATION = "Deallocation"
RECOVER = "Recover"
RECONCILE = "Reconcile"
HOUSEKEEPING = "Housekeeping"
POLL_OFFERS = "PollOffers"
BUDGET = "Budget"
VERIFY_CONNECTION = "VerifyConnection"


def deallocation_id(attempt_id: str) -> str:
    """One deletion per attempt, whoever asks for it."""
    return f"dealloc-{attempt_id}"


def verification_id(connection_id: str, number: int) -> str:
    return f"verify-{connection_id}-{number}"


def recover_id(job_id: str) -> str:
    return f"recover-{job_id}"


@dataclass(frozen=True)
class Policy:
    """Time-outs in seconds, read from the settings once and carried in the history, so that a replay knows them."""

    provisioning_timeout: float
    contact_timeout: float
    finalize_grace: float
    terminate_drain: float
    delete_accept: float
    capacity_wait: float
    max_attempts: int
    retries_on_loss: int
    """How often a lost or preempted attempt is replaced by a new one; 0 unless the job asked for it."""
    activity_timeout: float = 30
    """Silence of a worker after which its activities are run again."""


@dataclass(frozen=True)
class Resume:
    """State that continue-as-new carries over while an attempt is being followed."""

    attempt_id: str
    stream_number: int
    attempts: int
    losses: int
    rejected: tuple[str, ...]
    capacity_until: datetime
    deadline: "Deadline | None"
    preemptions: int = 0


@dataclass(frozen=True)
class JobInput:
    job_id: str
    resume: Resume | None = None


@dataclass(frozen=True)
class Claim:
    """Answer of `claim_job`. `token` fences every later write of the run."""

    token: int
    state: JobState
    policy: Policy
    open_attempts: tuple[str, ...]
    """Attempts that are not confirmed absent."""
    finalizing_attempt: str | None = None
    """The attempt whose exit has already sealed the outcome."""


@dataclass(frozen=True)
class Deadline:
    """When a limit must end the job, and which."""

    at: datetime
    reason: Reason
    message: str


@dataclass(frozen=True)
class JobRef:
    job_id: str
    token: int


@dataclass(frozen=True)
class AllocateInput:
    job_id: str
    token: int
    rejected: tuple[str, ...] = ()
    capacity_until: datetime | None = None
    """How long the job waits for capacity: the activity waits for a slot no longer. None: as long as it likes."""


class AllocationOutcome(StrEnum):
    ALLOCATED = "allocated"
    EXHAUSTED = "exhausted"
    """No offer could be had now; another round may succeed."""
    IMPOSSIBLE = "impossible"
    """No offer fits the request; waiting changes nothing."""
    TOO_DEAR = "too_dear"
    """The create answer's price breaks the limits: `attempt_id` must be deleted, its offer is not tried again."""
    STOPPED = "stopped"


@dataclass(frozen=True)
class Allocation:
    outcome: AllocationOutcome
    attempt_id: str | None = None
    offer_ref: str | None = None
    deadline: Deadline | None = None
    reason: Reason | None = None
    message: str | None = None
    details: dict[str, Any] | None = None
    """For the job's reason: why each provider was not eligible."""
    on_this_machine: bool = False
    """The backend is the host of this worker: what is deleted there is mostly gone at once."""
    in_line: bool = False
    """Exhausted for want of a slot: the signal `capacity_freed` tells of one."""


@dataclass(frozen=True)
class AttemptInput:
    job_id: str
    token: int
    attempt_id: str


class StreamOutcome(StrEnum):
    EXITED = "exited"
    PREEMPTED = "preempted"
    LOST = "lost"


@dataclass(frozen=True)
class StreamResult:
    """How following an attempt ended. `drained`: all output up to the exit is stored."""

    outcome: StreamOutcome
    drained: bool = False
    message: str = ""
    exited: bool = False
    """An exit report is there, of a workload that was preempted: of its log there may be more to come."""


def exit_result(report: ExitReport, drained: bool) -> StreamResult:
    """How following an attempt ended that has reported its exit."""
    verdict = judge(report)
    if verdict.reason is Reason.PREEMPTED:
        return StreamResult(StreamOutcome.PREEMPTED, drained, verdict.message or "", exited=True)
    return StreamResult(StreamOutcome.EXITED, drained)


@dataclass(frozen=True)
class DrainInput:
    attempt_id: str
    seconds: float


@dataclass(frozen=True)
class FailAttemptInput:
    job_id: str
    token: int
    attempt_id: str
    reason: Reason
    message: str
    retry: bool
    """Whether the job goes back to allocating."""


@dataclass(frozen=True)
class TerminationInput:
    job_id: str
    token: int
    reason: Reason
    message: str


@dataclass(frozen=True)
class SettleInput:
    """The terminal transition. `attempt_id`: by its exit report; else `reason`: failed; else terminated."""

    job_id: str
    token: int
    attempt_id: str | None = None
    reason: Reason | None = None
    message: str | None = None
    details: dict[str, Any] | None = None


@dataclass(frozen=True)
class DeallocationInput:
    job_id: str
    attempt_id: str
    drain_seconds: float = 0
    activity_timeout: float = 30


@dataclass(frozen=True)
class Deallocated:
    gone: bool


@dataclass(frozen=True)
class VerifyInput:
    """`number` is the verification's among those of the connection: a later one makes it void."""

    connection_id: str
    number: int


@dataclass(frozen=True)
class BudgetInput:
    """`longest_run_seconds`: a run that is older continues as new."""

    org_id: str
    longest_run_seconds: float = 7 * 86_400


@dataclass(frozen=True)
class BudgetPlan:
    """Answer of `review_budgets`. `next_at`: when a budget will have something to do, if nothing changes."""

    budgets: int
    next_at: datetime | None
    stopped_jobs: int = 0


@dataclass(frozen=True)
class TerminateSignal:
    """`cut_drain`: the outcome is sealed already; only the waiting for the last log bytes ends."""

    cut_drain: bool = False


@dataclass(frozen=True)
class Status:
    """Answer of the `status` query, for operators. Spend is the read model's to tell; deadlines are exact."""

    phase: str
    attempt_id: str | None
    attempts: int
    deadline: Deadline | None
    capacity_until: datetime | None
    stopping: str | None
    open_deletions: list[str] = field(default_factory=list)


class FailureType(StrEnum):
    """Types of application errors that activities raise: what an operator reads in the Temporal UI."""

    FENCED = "fenced"
    STOPPED = "stopped"
    IMAGE_PULL_FAILED = "image_pull_failed"
    BOOTSTRAP_FAILED = "bootstrap_failed"
    SECRET_EXPIRED = "secret_expired"  # noqa: S105 - a type of failure, not a secret
    LAUNCH_TIMEOUT = "launch_timeout"
    INSTANCE_GONE = "instance_gone"
    NOT_YET_GONE = "not_yet_gone"
    MAY_BE_A_COPY = "may_be_a_copy"
    AWAITING_EXIT = "awaiting_exit"
