"""Case 22: equal creates at once, and an API that dies between the job's row and its workflow's start."""

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from domain.ids import new_id
from tests.e2e.jobs import assert_clean
from tests.support.stack import Stack, job_body, running_stack

pytestmark = pytest.mark.e2e

EQUAL = 50


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack("sandbox") as stack:
        yield stack
        assert stack.workloads() == []


@pytest.mark.timeout(300)
def test_equal_creates_and_an_api_killed_before_the_workflow_starts_make_one_job(stack: Stack) -> None:
    key = new_id("k")
    body = job_body(["echo", "once"], {"env": {"B": "2", "A": "1"}}, name="one", labels={"y": "1", "x": "2"})

    def post(number: int) -> tuple[int, str]:
        answer = stack.call(
            "POST", "/jobs", content=_in_another_order(body, random.Random(number)),
            headers={"Idempotency-Key": key, "Content-Type": "application/json"},
        )  # fmt: skip
        assert answer.status_code in (200, 201), answer.text
        return answer.status_code, str(answer.json()["id"])

    with ThreadPoolExecutor(EQUAL) as threads:
        # Nothing can be started while Temporal does not answer.
        with stack.frozen("temporal"):
            first = list(threads.map(post, range(EQUAL)))
            (job_id,) = {job for _, job in first}
            assert stack.job(job_id)["state"] == "requested"
            stack.kill("api")
            stack.pid("api")
        stack.until_ready()
        second = list(threads.map(post, range(EQUAL)))

    assert sorted(status for status, _ in first) == [200] * (EQUAL - 1) + [201]
    assert set(second) == {(200, job_id)}
    assert stack.until_terminal(job_id)["state"] == "succeeded"
    assert stack.output(job_id) == ["once"]
    assert stack.rows("SELECT id FROM job") == [(job_id,)]
    assert asyncio.run(stack.workflow_runs(job_id)) == 1
    assert_clean(stack, [job_id])


def _in_another_order(value: Any, order: random.Random) -> bytes:
    """The same JSON with its keys shuffled at every level."""

    def shuffled(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        items = list(node.items())
        order.shuffle(items)
        return {key: shuffled(inner) for key, inner in items}

    return json.dumps(shuffled(value)).encode()
