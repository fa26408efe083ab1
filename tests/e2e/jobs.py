"""Jobs whose log tells whether anything was lost, doubled or run twice, and what must hold once they have ended."""

from collections.abc import Sequence

from domain.states import TERMINAL
from tests.support.stack import Stack

_TERMINAL = {state.value for state in TERMINAL}


def counting(lines: int, seconds: float, then: str = "exit 0") -> str:
    """A script that numbers its lines on both streams, spread evenly over the time."""
    pause = seconds / max(1, lines)
    return (
        f"for i in $(seq 1 {lines}); do echo out $i; echo err $i >&2; "
        f"{f'sleep {pause:.3f}' if pause else ':'}; done; {then}"
    )


def assert_counted(stack: Stack, job_id: str, lines: int | None) -> None:
    """The log holds every numbered line once, in order; with None, those up to where the job was killed."""
    for stream, word in (("stdout", "out"), ("stderr", "err")):
        found = stack.output(job_id, stream)
        wanted = [f"{word} {i}" for i in range(1, (len(found) if lines is None else lines) + 1)]
        # The last line of a killed job may have been cut by the kill.
        assert found == wanted or (lines is None and found[:-1] == wanted[:-1]), (job_id, stream, found)


def assert_clean(stack: Stack, job_ids: Sequence[str]) -> None:
    """After any fault: one attempt and one container for each job, one terminal event and it is the last, no second
    agent, and nothing is left on the machine."""
    for job_id in job_ids:
        stack.until_gone(job_id)
        instances, events = stack.instances(job_id), stack.events(job_id)
        assert len(instances) <= 1, instances
        changes = [event["data"]["to"] for event in events if "to" in event["data"]]
        assert [state in _TERMINAL for state in changes].count(True) == 1, events
        assert changes[-1] == stack.job(job_id)["state"], events
        assert "nonce_refused" not in {event["type"] for event in events}, events
        if stack.engine == "podman":
            assert stack.containers_ever_made(job_id) <= 1, events
    attempts = [instance["id"] for job_id in job_ids for instance in stack.instances(job_id)]
    assert not [name for name in stack.workloads() if any(attempt in name for attempt in attempts)]
