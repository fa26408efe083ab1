"""`kill -9` of each process, and of all at once, in each phase of a job: the same end, one container, a whole log,
nothing left."""

import time
from dataclasses import dataclass

import pytest

from tests.e2e.jobs import assert_clean, assert_counted, counting
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

LINES, SECONDS = 20, 2.0
TRIES = 5


@dataclass(frozen=True)
class Phase:
    """`query` finds the job (`:id`) while it is in the phase."""

    name: str
    query: str
    then: str = "exit 0"
    lines: int = LINES
    seconds: float = SECONDS
    terminated: bool = False
    end: str = "succeeded"


def in_state(state: str) -> str:
    return f"SELECT 1 FROM job WHERE id = :id AND state = '{state}'"


DELETING = (
    "SELECT 1 FROM instance WHERE job_id = :id AND delete_requested_at IS NOT NULL AND confirmed_absent_at IS NULL"
)

OVER = """SELECT 1 FROM job WHERE id = :id AND terminal_at IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM instance WHERE job_id = :id AND confirmed_absent_at IS NULL)"""

PHASES = [
    Phase("allocating", in_state("allocating")),
    Phase("provisioning", in_state("provisioning")),
    Phase("running", in_state("running")),
    Phase("finalizing", in_state("finalizing"), then="exit 3", lines=4, seconds=0, end="failed"),
    Phase("deallocating", DELETING, lines=4, seconds=0),
    Phase("terminating", in_state("terminating"), lines=2000, seconds=200, terminated=True, end="terminated"),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["worker", "api", "temporal", "everything"])
def test_what_is_killed_in_any_phase_changes_nothing_for_the_job(stack: Stack, victim: str) -> None:
    jobs: dict[str, Phase] = {}
    for phase in PHASES:
        hit = False
        for _ in range(TRIES):
            job_id = stack.script(counting(phase.lines, phase.seconds, phase.then))
            jobs[job_id] = phase
            if phase.terminated:
                stack.until_state(job_id, "running")
                stack.terminate(job_id)
            hit = _kill_in(phase, job_id, victim, stack)
            if stack.process is None:
                stack.start()
            stack.until_ready()
            if hit:
                break
        assert hit, f"{phase.name} was over before the kill, {TRIES} times"
        # The job's recovery is not awaited: it goes on through the kills of the later phases.

    for job_id, phase in jobs.items():
        job = stack.until_terminal(job_id)
        assert job["state"] == phase.end, (phase.name, job, stack.events(job_id))
        assert_counted(stack, job_id, None if phase.terminated else phase.lines)
        if phase.end == "failed":
            assert (job["exit_code"], job["reason"]["code"]) == (3, "workload_exit_nonzero")
    assert_clean(stack, list(jobs))


def _kill_in(phase: Phase, job_id: str, victim: str, stack: Stack) -> bool:
    """Kills at the first sight of the phase; whether the job was still in it afterwards."""
    deadline = time.monotonic() + 90
    while not stack.rows(phase.query, id=job_id):
        if stack.rows(OVER, id=job_id):
            return False
        assert time.monotonic() < deadline, (phase.name, stack.job(job_id), stack.events(job_id))
    if victim == "everything":
        stack.kill_everything()
    else:
        stack.kill(victim)
    return bool(stack.rows(phase.query, id=job_id))
