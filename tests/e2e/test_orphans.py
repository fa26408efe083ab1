"""Containers that no row explains go, everybody else's stay. And two stacks on one machine."""

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.ids import new_attempt_id, new_id
from tests.e2e.jobs import assert_clean, assert_counted, counting
from tests.support.stack import HOST_IMAGE, SCALED, Stack, running_stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.containers]

GRACE = float(SCALED["HEADRACE_ORPHAN_GRACE_SECONDS"])


class HeldStarts:
    """A `podman` in front of the real one, which waits before it makes a container while `flag` exists."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.flag, self.waiting = directory, directory / "hold", directory / "waiting"
        real = subprocess.run(["which", "podman"], capture_output=True, text=True, check=True).stdout.strip()
        program = directory / "podman"
        program.write_text(
            f"#!/bin/bash\nif [[ $1 == run && $* != *probe* && -e {self.flag} ]]; then\n"
            f'  touch {self.waiting}\n  while [[ -e {self.flag} ]]; do sleep 0.05; done\nfi\nexec {real} "$@"\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(scope="module")
def starts(host_image: str, tmp_path_factory: pytest.TempPathFactory) -> HeldStarts:
    return HeldStarts(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="module")
def stack(starts: HeldStarts) -> Iterator[Stack]:
    with running_stack("podman", PATH=f"{starts.directory}:{os.environ['PATH']}") as stack:
        yield stack
        assert stack.workloads() == []


@pytest.fixture(scope="module")
def neighbour(host_image: str) -> Iterator[Stack]:
    """Another stack on the same machine."""
    with running_stack("podman") as stack:
        yield stack
        assert stack.workloads() == []


def test_a_container_with_our_label_that_no_row_explains_goes_and_others_stay(stack: Stack) -> None:
    attempt, made = new_attempt_id(), time.monotonic()
    ours = _by_hand(stack, {"owner": stack.owner_id, "attempt": attempt, "job": new_id("job"), "org": "org_x"})
    foreign = [
        _by_hand(stack, {"owner": "hr-somebody-else", "attempt": new_attempt_id(), "job": "job_x", "org": "org_x"}),
        _by_hand(stack, {}),
    ]
    live = stack.script(counting(3000, 300))
    try:
        stack.until_state(live, "running")
        until(lambda: ours not in stack.containers(), "the orphan is removed", seconds=60, pause=0.2)
        assert time.monotonic() - made >= GRACE
        for name in foreign:
            assert name in stack.podman("ps", "--format={{.Names}}", f"--filter=name={name}").split()
        assert stack.state(live) == "running"
    finally:
        stack.podman("rm", "--force", "--time=0", *foreign)
        stack.terminate(live)
    stack.until_terminal(live)
    assert_clean(stack, [live])


def test_a_container_that_a_killed_worker_makes_behind_the_deletion_goes(stack: Stack, starts: HeldStarts) -> None:
    """The engine's client outlives the worker, and makes the container only after its absence was confirmed."""
    starts.flag.touch()
    job_id = stack.script("echo must not run")
    until(starts.waiting.exists, "the engine is asked for the container")
    stack.kill("worker")
    stack.terminate(job_id)
    assert stack.until_terminal(job_id)["state"] == "terminated"
    stack.until_gone(job_id)
    assert stack.containers(job=job_id) == []

    starts.flag.unlink()
    until(lambda: stack.containers_ever_made(job_id), "the container appears", pause=0.1)
    until(lambda: not stack.containers(job=job_id), "the orphan is removed", pause=0.2)
    assert stack.output(job_id) == []
    assert stack.job(job_id)["state"] == "terminated"
    starts.waiting.unlink()


def test_a_worker_killed_while_the_container_is_made_ends_with_that_container(stack: Stack, starts: HeldStarts) -> None:
    starts.flag.touch()
    job_id = stack.script(counting(10, 1))
    until(starts.waiting.exists, "the engine is asked for the container")
    stack.kill("worker")
    stack.pid("worker")
    starts.flag.unlink()

    assert stack.until_terminal(job_id)["state"] == "succeeded"
    assert_counted(stack, job_id, 10)
    assert_clean(stack, [job_id])
    starts.waiting.unlink()


@pytest.mark.timeout(300)
def test_two_stacks_on_one_machine_leave_each_others_containers_alone(stack: Stack, neighbour: Stack) -> None:
    mine, theirs = stack.script(counting(150, 15)), neighbour.script(counting(150, 15))
    for one, job_id in ((stack, mine), (neighbour, theirs)):
        one.until_state(job_id, "running")
    assert stack.containers() != neighbour.containers()
    stopped = stack.script(counting(3000, 300))
    stack.until_state(stopped, "running")
    stack.terminate(stopped)
    stack.kill_everything()
    # The other one's reconcile looks at the machine, several times, while these containers have no stack.
    time.sleep(GRACE + 2)
    assert len(stack.containers(job=mine)) == 1
    stack.start()

    for one, job_id in ((stack, mine), (neighbour, theirs)):
        assert one.until_terminal(job_id)["state"] == "succeeded"
        assert_counted(one, job_id, 150)
        assert_clean(one, [job_id])
    assert stack.until_terminal(stopped)["state"] == "terminated"
    assert_clean(stack, [stopped])
    answer = neighbour.call("GET", f"/jobs/{mine}")
    assert answer.status_code == 404


def _by_hand(stack: Stack, labels: dict[str, str]) -> str:
    """A container that the control plane did not make; its name."""
    name = f"e2e-{new_attempt_id()}"
    stack.podman(
        "run", "--detach", "--pull=never", "--network=none", f"--name={name}",
        *(f"--label=headrace.{key}={value}" for key, value in labels.items()), HOST_IMAGE, "sleep", "600",
    )  # fmt: skip
    return name
