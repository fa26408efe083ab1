"""What an exit report means for the job."""

import signal as signals
from dataclasses import dataclass

from domain.spec import Frozen
from domain.states import JobState, Reason


class ExitReport(Frozen):
    """What the agent says of the workload's end. `status` is the shell's (0-255, 128 + n after signal n); `signal` is
    the signal's number, 0 when the workload exited by itself. The offsets count the bytes of output in all."""

    status: int
    signal: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    oom_killed: bool | None = None
    interrupted: bool = False
    """The provider had given notice that it takes the machine back, and the workload had been told so by SIGTERM before
    it ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    state: JobState
    exit_code: int
    reason: Reason | None = None
    message: str | None = None


def judge(report: ExitReport) -> Verdict:
    """The final state that an exit, not caused by us, leads to.

    A workload that was told of an interruption and ended well has succeeded. However else it ended, but for want of
    memory, it was preempted: what it does on SIGTERM, and with which status, is its own affair.
    """
    if report.oom_killed:
        return Verdict(
            JobState.FAILED, report.status, Reason.WORKLOAD_OOM, "the workload ran out of memory and was killed"
        )
    if report.interrupted and (report.status or report.signal):
        how = f"signal {report.signal} ({_signal_name(report.signal)})" if report.signal else f"status {report.status}"
        message = f"the provider gave notice that it takes the machine back; the workload ended with {how}"
        return Verdict(JobState.FAILED, report.status, Reason.PREEMPTED, message)
    if report.signal:
        message = f"the workload was killed by signal {report.signal} ({_signal_name(report.signal)})"
        if report.signal == signals.SIGKILL:
            message += "; possibly out of memory"
        return Verdict(JobState.FAILED, report.status, Reason.WORKLOAD_SIGNALED, message)
    if report.status:
        message = f"the workload exited with status {report.status}"
        if report.status == 126:
            message += " (found, but not executable)"
        elif report.status == 127:
            message += " (command not found)"
        return Verdict(JobState.FAILED, report.status, Reason.WORKLOAD_EXIT_NONZERO, message)
    return Verdict(JobState.SUCCEEDED, 0)


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return "unknown"
