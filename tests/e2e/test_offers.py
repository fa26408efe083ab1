"""A stack polls its connections by itself, and goes on after its worker was killed."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.support.stack import Stack, running_stack, until

pytestmark = pytest.mark.e2e

QUOTE = {
    "resource_type": "job",
    "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
    "container": {"image": "registry.example/app:1"},
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack("sandbox", HEADRACE_OFFERS_INTERVAL_SECONDS="1") as stack:
        yield stack


def local(stack: Stack) -> dict[str, Any] | None:
    """How the machine's own connection does, once it was polled."""
    found: list[dict[str, Any]] = stack.call("GET", "/catalog/providers").json()["data"]
    return next((entry for entry in found if entry["provider"] == "local"), None)


def polled_at(stack: Stack) -> datetime:
    entry = until(lambda: local(stack), "local was polled")
    assert entry["healthy"], entry
    return datetime.fromisoformat(entry["last_poll_at"])


def test_a_quote_is_what_a_job_gets(stack: Stack) -> None:
    polled_at(stack)
    [offer] = stack.call("GET", "/catalog/offers", params={"accelerator": "cpu-general"}).json()["data"]
    quote = stack.call("POST", "/catalog/quotes", json=QUOTE).json()
    assert quote["available"]
    assert quote["price_usd_hr"]["min"] == offer["price_usd_hr"]

    job_id = stack.create(["true"])

    job = stack.until_terminal(job_id)
    assert (job["state"], job["price_usd_hr"]) == ("succeeded", quote["price_usd_hr"]["min"])
    stack.until_gone(job_id)


def test_polls_go_on_after_the_worker_was_killed(stack: Stack) -> None:
    before = polled_at(stack)
    until(lambda: polled_at(stack) > before, "a second poll", pause=0.2)
    stack.kill("worker")
    stack.pid("worker")
    killed = polled_at(stack)
    until(lambda: polled_at(stack) > killed, "a poll by the next worker", pause=0.2)
