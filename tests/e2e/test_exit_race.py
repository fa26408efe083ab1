"""Case 7 through the whole path: an exit and a termination at the same moment, many times."""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.e2e

ROUNDS = 200
AT_ONCE = 8
_TERMINAL = {"succeeded", "failed", "terminated"}


@pytest.mark.timeout(600)
def test_an_exit_and_a_termination_at_the_same_moment_have_one_outcome() -> None:
    with running_stack("sandbox") as stack, ThreadPoolExecutor(AT_ONCE) as threads:
        rounds = list(threads.map(lambda number: _one_round(stack, number), range(ROUNDS)))
        ends = Counter(state for _, state in rounds)

        # Both outcomes, or there was no race.
        assert ends.keys() == {"succeeded", "terminated"}, ends
        for job_id, state in rounds:
            stack.until_gone(job_id)
            assert stack.state(job_id) == state
            query = "SELECT type, data FROM jobevent WHERE job_id = :id ORDER BY seq"
            changes = [data for _, data in stack.rows(query, id=job_id) if '"to":' in data]
            assert sum(f'"to":"{end}"' in data for data in changes for end in _TERMINAL) == 1, changes
            assert f'"to":"{state}"' in changes[-1], changes
            # A workload that a stop order reached before its start printed nothing.
            assert stack.output(job_id) in ([["hi"]] if state == "succeeded" else [["hi"], []])
        assert stack.workloads() == []


def _one_round(stack: Stack, number: int) -> tuple[str, str]:
    """The job and its end. Half of the terminations aim at the moment of the exit, half come at any time."""
    moment = random.Random(number)
    job_id = stack.create(["echo", "hi"])
    if number % 2:
        stack.until_state(job_id, "running", "finalizing", "succeeded")
        time.sleep(moment.uniform(0, 0.05))
    else:
        time.sleep(moment.uniform(0, 1.5))
    stack.terminate(job_id)
    return job_id, str(stack.until_terminal(job_id)["state"])
