"""The whole control plane away while jobs run and end; Temporal away while one is terminated."""

import time

import pytest

from tests.e2e.jobs import assert_clean, assert_counted, counting
from tests.support.stack import SCALED, Stack, sandbox_processes, until

pytestmark = pytest.mark.e2e

# Silence of a quarter of it counts as lost contact.
OUTAGE_SECONDS = 4 * float(SCALED["HEADRACE_CONTACT_TIMEOUT_SECONDS"])


def test_jobs_outlive_a_control_plane_that_is_away_for_long(stack: Stack) -> None:
    """One ends while everything is down, one goes on running: neither is lost, and no line of theirs is."""
    longer = stack.script(counting(80, OUTAGE_SECONDS + 8))
    shorter = stack.script(counting(20, 2, "exit 5"))
    for job_id in (longer, shorter):
        stack.until_state(job_id, "running")
    stack.kill_everything()
    time.sleep(OUTAGE_SECONDS)

    stack.start()
    ends = [stack.until_terminal(job_id) for job_id in (longer, shorter)]

    assert [(job["state"], job["exit_code"]) for job in ends] == [("succeeded", 0), ("failed", 5)]
    assert_counted(stack, longer, 80)
    assert_counted(stack, shorter, 20)
    assert_clean(stack, [longer, shorter])


@pytest.mark.parametrize("fault", ["down", "frozen"])
def test_a_termination_without_temporal_stops_the_workload_at_once(stack: Stack, fault: str) -> None:
    job_id = stack.script(counting(3000, 300))
    stack.until_state(job_id, "running")
    until(lambda: stack.output(job_id), "output", pause=0.1)
    with stack.held_down("temporal") if fault == "down" else stack.frozen("temporal"):
        answer = stack.terminate(job_id)
        until(lambda: not runs(stack, job_id), "the workload is stopped", seconds=15)
        assert stack.state(job_id) == "terminating"

    assert answer["state"] == "terminating"
    assert stack.until_terminal(job_id)["state"] == "terminated"
    assert_counted(stack, job_id, None)
    assert_clean(stack, [job_id])


def test_a_job_that_was_made_and_terminated_with_temporal_down_never_runs(stack: Stack) -> None:
    with stack.held_down("temporal"):
        job_id = stack.script(counting(10, 1))
        assert stack.terminate(job_id)["state"] == "terminating"

    assert stack.until_terminal(job_id)["state"] == "terminated"
    assert stack.instances(job_id) == []
    assert_clean(stack, [job_id])


def test_a_job_that_was_made_with_temporal_down_runs_once_it_is_back(stack: Stack) -> None:
    with stack.held_down("temporal"):
        job_id = stack.script(counting(10, 0))
        assert stack.job(job_id)["state"] == "requested"

    assert stack.until_terminal(job_id)["state"] == "succeeded"
    assert_counted(stack, job_id, 10)
    assert_clean(stack, [job_id])


def runs(stack: Stack, job_id: str) -> bool:
    """Whether the workload runs, as the machine sees it."""
    if stack.engine == "podman":
        return stack.running_containers(job_id) != []
    return any(sandbox_processes(instance["id"]) for instance in stack.instances(job_id))
