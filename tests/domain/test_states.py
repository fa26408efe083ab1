"""The job's state machine, and what an exit report means."""

import pytest

from domain.outcome import ExitReport, judge
from domain.states import TERMINAL, JobState, Reason, may_become, sources_of


class TestTransitions:
    def test_nothing_leaves_a_terminal_state(self) -> None:
        assert {(a, b) for a in TERMINAL for b in JobState if may_become(a, b)} == set()

    def test_no_state_becomes_itself(self) -> None:
        assert not any(may_become(state, state) for state in JobState)

    def test_every_live_state_but_a_sealed_one_can_be_terminated(self) -> None:
        expected = set(JobState) - TERMINAL - {JobState.FINALIZING, JobState.TERMINATING}
        assert sources_of(JobState.TERMINATING) == expected

    def test_a_sealed_outcome_can_only_succeed_or_fail(self) -> None:
        assert {s for s in JobState if may_become(JobState.FINALIZING, s)} == {JobState.SUCCEEDED, JobState.FAILED}

    def test_what_is_terminating_ends_terminated_and_nothing_else_does(self) -> None:
        assert {s for s in JobState if may_become(JobState.TERMINATING, s)} == {JobState.TERMINATED}
        assert sources_of(JobState.TERMINATED) == {JobState.TERMINATING}

    def test_a_terminal_state_is_reachable_from_everywhere(self) -> None:
        for state in set(JobState) - TERMINAL:
            seen, front = {state}, [state]
            while front:
                current = front.pop()
                following = {s for s in JobState if may_become(current, s)} - seen
                seen |= following
                front += following
            assert seen & TERMINAL

    def test_sources_and_targets_agree(self) -> None:
        for wanted in JobState:
            assert sources_of(wanted) == {s for s in JobState if may_become(s, wanted)}

    def test_terminal_is_what_terminal_says(self) -> None:
        assert {s for s in JobState if s.terminal} == {JobState.SUCCEEDED, JobState.FAILED, JobState.TERMINATED}


class TestJudge:
    def test_status_0_succeeds(self) -> None:
        verdict = judge(ExitReport(status=0))
        assert (verdict.state, verdict.exit_code, verdict.reason) == (JobState.SUCCEEDED, 0, None)
        assert judge(ExitReport(status=0, interrupted=True)) == verdict

    @pytest.mark.parametrize(
        ("report", "reason", "message"),
        [
            (ExitReport(status=1), Reason.WORKLOAD_EXIT_NONZERO, "exited with status 1"),
            (ExitReport(status=126), Reason.WORKLOAD_EXIT_NONZERO, "126 (found, but not executable)"),
            (ExitReport(status=127), Reason.WORKLOAD_EXIT_NONZERO, "127 (command not found)"),
            (ExitReport(status=143), Reason.WORKLOAD_EXIT_NONZERO, "exited with status 143"),
            (ExitReport(status=143, signal=15), Reason.WORKLOAD_SIGNALED, "signal 15 (SIGTERM)"),
            (ExitReport(status=139, signal=11), Reason.WORKLOAD_SIGNALED, "signal 11 (SIGSEGV)"),
            (ExitReport(status=137, signal=9), Reason.WORKLOAD_SIGNALED, "SIGKILL); possibly out of memory"),
            (ExitReport(status=227, signal=99), Reason.WORKLOAD_SIGNALED, "signal 99 (unknown)"),
            (ExitReport(status=137, signal=9, oom_killed=True), Reason.WORKLOAD_OOM, "ran out of memory"),
            (ExitReport(status=143, signal=15, interrupted=True), Reason.PREEMPTED, "signal 15 (SIGTERM)"),
            (ExitReport(status=1, interrupted=True), Reason.PREEMPTED, "ended with status 1"),
            (ExitReport(status=137, oom_killed=True, interrupted=True), Reason.WORKLOAD_OOM, "ran out of memory"),
        ],
    )
    def test_everything_else_fails_with_its_reason(self, report: ExitReport, reason: Reason, message: str) -> None:
        verdict = judge(report)
        assert (verdict.state, verdict.exit_code, verdict.reason) == (JobState.FAILED, report.status, reason)
        assert verdict.message is not None
        assert message in verdict.message
