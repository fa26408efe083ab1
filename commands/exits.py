"""Exit codes of `headrace`, and the error that carries one. `docs/cli.md` repeats the table; a test compares them."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from domain.states import Reason


class ExitCode(IntEnum):
    """What a script can learn from the exit status alone."""

    OK = 0, "success; for a job: it succeeded"
    JOB_FAILED = 1, "the job's own workload failed: non-zero exit, signal, or out of memory"
    USAGE = 2, "wrong arguments, an unreadable job file, or a request that the server refuses as invalid"
    UNREACHABLE = 3, "no server answers at the API's address"
    UNAUTHORIZED = 4, "no credentials, a key that is unknown or revoked, or one that may not do this"
    NOT_FOUND = 5, "no such job, accelerator or other resource, or no such file of a stack"
    TERMINATED = 6, "the job was terminated by a user"
    JOB_TIMED_OUT = 7, "the job reached max_runtime_hours"
    JOB_OUT_OF_MONEY = 8, "the job reached max_cost_usd, or its organization's budget is used up"
    JOB_NO_CAPACITY = 9, "no hardware was to be had, or the provider's quota is used up"
    JOB_INFRASTRUCTURE = 10, "the job failed for a reason outside its workload: image, provider, lost machine, platform"
    SERVER_ERROR = 11, "the server answered, and could not serve the request (409, 429, 5xx)"
    STACK_FAILED = 12, "the embedded stack could not start, or the data directory is in use"
    REPLAY_FAILED = 13, "the history does not replay with this code"
    WAIT_TIMED_OUT = 124, "--timeout ran out before the job ended; the job goes on"
    INTERRUPTED = 130, "interrupted by Ctrl-C; a job that was watched goes on"

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        """An integer that knows its meaning."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


def describe_exit_codes() -> str:
    """The table for `--help`, one code a line."""
    return "\n".join(f"{code.value:>4}  {code.meaning}" for code in ExitCode)


_CLASS_OF_REASON: Mapping[str, ExitCode] = {
    Reason.WORKLOAD_EXIT_NONZERO: ExitCode.JOB_FAILED,
    Reason.WORKLOAD_SIGNALED: ExitCode.JOB_FAILED,
    Reason.WORKLOAD_OOM: ExitCode.JOB_FAILED,
    Reason.USER_REQUESTED: ExitCode.TERMINATED,
    Reason.MAX_RUNTIME_EXCEEDED: ExitCode.JOB_TIMED_OUT,
    Reason.MAX_COST_EXCEEDED: ExitCode.JOB_OUT_OF_MONEY,
    Reason.BUDGET_EXHAUSTED: ExitCode.JOB_OUT_OF_MONEY,
    Reason.CAPACITY_UNAVAILABLE: ExitCode.JOB_NO_CAPACITY,
    Reason.QUOTA_EXCEEDED: ExitCode.JOB_NO_CAPACITY,
}


def of_job(job: Mapping[str, Any]) -> ExitCode:
    """The class of a terminal job: by its reason, else by its state. Unknown reasons count as infrastructure."""
    if job["state"] == "succeeded":
        return ExitCode.OK
    code = str((job.get("reason") or {}).get("code"))
    if code in _CLASS_OF_REASON:
        return _CLASS_OF_REASON[code]
    return ExitCode.TERMINATED if job["state"] == "terminated" else ExitCode.JOB_INFRASTRUCTURE


class CommandError(Exception):
    """Ends a command: one sentence of what is wrong, hints of what to do, and the exit code. `excerpt` holds lines of
    another program's output, `details` what the server said for machines."""

    def __init__(
        self,
        message: str,
        *,
        code: ExitCode,
        hints: tuple[str, ...] = (),
        excerpt: tuple[str, ...] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hints = hints
        self.excerpt = excerpt
        self.details = details or {}
