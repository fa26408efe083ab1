"""`headrace usage` against a real API server."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from domain.clock import utc_now
from domain.states import InstanceState, JobState
from store.tables import Job
from tests.cli.conftest import Headrace, Server
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def jobs(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Three jobs that ran an hour ago: each half an hour, at 1, 2 and 3 USD an hour."""
    begin = utc_now().replace(second=0, microsecond=0) - timedelta(hours=1)
    factory = Factory(server.services.db, SettableClock(begin), server.services.vault)
    acme = factory.organization("acme")
    project = factory.project(acme)
    monkeypatch.setenv("HEADRACE_API_KEY", factory.key(acme).token)
    made = []
    for number in (1, 2, 3):
        created_at = begin + timedelta(seconds=number)
        job = factory.job(JobState.RUNNING, project=project, name=f"job {number}", created_at=created_at)
        instance = factory.instance(job, InstanceState.RUNNING, allocated_at=begin)
        factory.price(instance, str(number))
        factory.price(instance, "0", since=begin + timedelta(minutes=30))
        made.append(job)
    return made


def test_a_table_for_people_and_the_sum_beside_it(headrace: Headrace, jobs: list[Job]) -> None:
    result = headrace("usage")
    assert result.code == 0, result.err
    header, *rows = result.out.splitlines()
    assert header.split() == ["JOB", "NAME", "BILLED", "COST"]
    assert [row.split()[0] for row in rows] == [job.id for job in reversed(jobs)]
    assert "job 3" in rows[0]
    assert rows[0].split()[-2:] == ["1.50", "USD"]
    assert "3 jobs, 3" in result.err


def test_a_window_by_days_and_json_for_machines(headrace: Headrace, jobs: list[Job]) -> None:
    today = datetime.now(UTC).date()
    begin = today - timedelta(days=2)
    report = json.loads(headrace("usage", "--from", begin.isoformat(), "--json").out)
    assert report["window"]["from"] == f"{begin.isoformat()}T00:00:00Z"
    assert [row["resource_id"] for row in report["data"]] == [job.id for job in reversed(jobs)]
    assert report["summary"]["total_usd"] == 3
    empty = json.loads(headrace("usage", "--from", "2026-01-01", "--to", "2026-01-02T00:30:00Z", "--json").out)
    assert (empty["data"], empty["total"]) == ([], 0)


def test_a_limit_is_told(headrace: Headrace, jobs: list[Job]) -> None:
    result = headrace("usage", "--limit", "2")
    assert len(result.out.splitlines()) == 3
    assert "1 more" in result.err
    assert "3 jobs" in result.err


def test_a_window_that_is_none_is_refused(headrace: Headrace, server: Server) -> None:
    result = headrace("usage", "--from", "yesterday")
    assert result.code != 0
    assert "from" in result.err
