"""`kill -9` of each process in each phase of a job, and of all processes at once in some: the same end, one container,
a whole log, nothing left."""

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
    """`query` finds jobs of `{ids}` that are in the phase."""

    name: str
    query: str
    then: str = "exit 0"
    lines: int = LINES
    seconds: float = SECONDS
    jobs: int = 1
    """So many at once: a phase that lasts milliseconds is met in one of them."""
    terminated: bool = False
    end: str = "succeeded"


def in_state(state: str) -> str:
    return f"SELECT id FROM job WHERE id IN ({{ids}}) AND state = '{state}'"


DELETING = (
    "SELECT job_id FROM instance WHERE job_id IN ({ids}) "
    "AND delete_requested_at IS NOT NULL AND confirmed_absent_at IS NULL"
)
UNFINISHED = "SELECT id FROM job WHERE id IN ({ids}) AND terminal_at IS NULL"

PHASES = [
    Phase("allocating", in_state("allocating")),
    Phase("provisioning", in_state("provisioning")),
    Phase("running", in_state("running")),
    Phase("finalizing", in_state("finalizing"), then="exit 3", lines=4, seconds=0, jobs=4, end="failed"),
    Phase("deallocating", DELETING, lines=4, seconds=0, jobs=8),
    Phase("terminating", in_state("terminating"), lines=2000, seconds=200, terminated=True, end="terminated"),
]


# Only the worker has to do with the engine: the others are killed with one of them.
VICTIMS = [
    *(("sandbox", victim) for victim in ("worker", "api", "temporal", "everything")),
    *(pytest.param("podman", victim, marks=pytest.mark.containers) for victim in ("worker", "everything")),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("stack", "victim"), VICTIMS, indirect=["stack"])
def test_what_is_killed_in_any_phase_changes_nothing_for_the_job(stack: Stack, victim: str) -> None:
    jobs: dict[str, Phase] = {}
    for phase in PHASES if victim != "everything" else PHASES[1::2]:
        for _ in range(TRIES):
            made = [stack.script(counting(phase.lines, phase.seconds, phase.then)) for _ in range(phase.jobs)]
            jobs |= dict.fromkeys(made, phase)
            if phase.terminated:
                for job_id in made:
                    stack.until_state(job_id, "running")
                    stack.terminate(job_id)
            if _kill_in(phase, made, victim, stack):
                break
        else:
            raise AssertionError(f"{phase.name} was not seen, {TRIES} times")
        if stack.process is None:
            stack.start()
        # The recovery is not awaited: it goes on through the kills of the later phases.
        stack.until_ready()

    for job_id, phase in jobs.items():
        job = stack.until_terminal(job_id)
        assert job["state"] == phase.end, (phase.name, job, stack.events(job_id))
        assert_counted(stack, job_id, None if phase.terminated else phase.lines)
        if phase.end == "failed":
            assert (job["exit_code"], job["reason"]["code"]) == (3, "workload_exit_nonzero")
    assert_clean(stack, list(jobs))


def _kill_in(phase: Phase, job_ids: list[str], victim: str, stack: Stack) -> bool:
    """Kills at the first sight of the phase; False when no job was seen in it."""
    ids = ", ".join(f"'{job_id}'" for job_id in job_ids)
    deadline = time.monotonic() + 90
    while not stack.rows(phase.query.format(ids=ids)):
        if not stack.rows(UNFINISHED.format(ids=ids)) and not stack.rows(DELETING.format(ids=ids)):
            return False
        assert time.monotonic() < deadline, (phase.name, [stack.events(job_id) for job_id in job_ids])
    if victim == "everything":
        stack.kill_everything()
    else:
        stack.kill(victim)
    return True
