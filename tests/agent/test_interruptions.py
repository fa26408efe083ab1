"""A machine that its provider takes back: what the workload and the control plane are told, and what comes of it."""

import contextlib
import os
import signal

import httpx
import pytest
from sqlmodel import Session

from domain.clock import utc_now
from domain.outcome import ExitReport
from domain.spec import Workload
from domain.states import JobState
from store.lifecycle import agent_exit
from tests.agent.site import Attempt, Site, until

SAVES = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
DIES = "echo ready; exec sleep 60"
FAILS = "trap 'echo cannot save; exit 3' TERM; echo ready; while :; do sleep 0.05; done"


async def tell(attempt: Attempt) -> None:
    """What the host agent does on notice, twice: it cannot know whether it was heard."""
    await until(lambda: attempt.output() == b"ready\n", what="the workload runs")
    assert attempt.process is not None
    os.kill(attempt.process.pid, signal.SIGUSR1)
    with contextlib.suppress(ProcessLookupError):  # it may have ended
        os.kill(attempt.process.pid, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("script", "result", "output", "state"),
    [
        (SAVES, (0, 0), b"ready\nsaved\n", JobState.FINALIZING),
        (DIES, (143, 15), b"ready\n", JobState.RUNNING),
        (FAILS, (3, 0), b"ready\ncannot save\n", JobState.RUNNING),
    ],
    ids=["saves", "dies", "fails"],
)
async def test_a_workload_that_is_told_ends_as_it_likes_and_only_success_seals_its_job(
    site: Site, script: str, result: tuple[int, int], output: bytes, state: JobState
) -> None:
    attempt = await site.run("bash", "-c", script)
    await tell(attempt)
    assert await attempt.result() == result
    assert attempt.output() == output
    row = await attempt.row()
    assert row.exit_report is not None
    assert row.exit_report["interrupted"] is True
    assert (await attempt.job_row()).state == state
    assert (await attempt.events())[-1].type in ("workload_exited", "state_changed")


async def test_a_workload_that_was_told_of_nothing_fails_by_itself(site: Site) -> None:
    attempt = await site.run("bash", "-c", "kill -TERM $$")
    assert await attempt.result() == (143, 15)
    row = await attempt.row()
    assert row.exit_report is not None
    assert row.exit_report["interrupted"] is False
    assert (await attempt.job_row()).state == JobState.FINALIZING


async def post(attempt: Attempt, query: str = "", token: str | None = None) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(attempt.site.settings.agent_socket))
    headers = {"Authorization": f"Bearer {token or attempt.token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://headrace", headers=headers) as client:
        return await client.post(f"/agent/v1/notice{query}")


async def test_a_notice_is_an_event_and_a_line_however_often_it_comes(site: Site) -> None:
    attempt = site.attempt(Workload(argv=("true",)))
    for query in ("?kind=risk", "?kind=risk", "?at=2026-11-30T23:00:00Z", "", "?at=2026-11-30T23:01:00Z"):
        assert (await post(attempt, query)).status_code == 200
    assert [line.message for line in await attempt.lines("system")] == [
        "the provider may take this machine back: it is at an elevated risk of interruption",
        "the provider takes this machine back at 2026-11-30T23:00:00+00:00: the workload gets SIGTERM",
    ]
    told = [(event.type, event.data.get("at")) for event in await attempt.events()]
    assert told == [("interruption_risk", None), ("interruption_noticed", "2026-11-30T23:00:00+00:00")]


@pytest.mark.parametrize("query", ["?at=soon", "?at=2026-11-30T23:00:00", "?kind=joke"])
async def test_a_notice_that_cannot_be_read_is_refused(site: Site, query: str) -> None:
    attempt = site.attempt(Workload(argv=("true",)))
    assert (await post(attempt, query)).status_code == 422
    assert await attempt.events() == []


async def test_a_notice_is_taken_from_an_attempt_that_runs_only(site: Site) -> None:
    attempt = site.attempt(Workload(argv=("true",)))
    assert (await post(attempt, token="hrb.somebody.else")).status_code == 401

    def end(session: Session) -> None:
        agent_exit(session, session.merge(attempt.instance), ExitReport(status=0), utc_now())

    await site.services.db.write(end)
    assert (await post(attempt)).status_code == 409
    assert await attempt.lines("system") == []
