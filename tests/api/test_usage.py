"""GET /usage: windows, sums, pages, and who sees what."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from domain.roles import Role
from domain.states import InstanceState, JobState
from store import attempts
from store.tables import Instance, Job
from tests.api.conftest import Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def running(factory: Factory, clock: SettableClock, price: str = "0.44", **columns: Any) -> tuple[Job, Instance]:
    job = factory.job(JobState.RUNNING, allocated_at=clock(), started_at=clock(), **columns)
    instance = factory.instance(job, InstanceState.RUNNING, allocated_at=clock(), started_at=clock())
    factory.price(instance, price)
    return job, instance


def gone(api: Api, clock: SettableClock, instance: Instance) -> None:
    api.write(lambda s: attempts.gone(s, attempts.locked(s, instance.id), clock()))


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 422, answer.text
    return str(answer.json()["error"]["details"]["field"])


def test_a_live_and_a_finished_job_are_reported_in_cents(api: Api, factory: Factory, clock: SettableClock) -> None:
    first, ended = running(factory, clock, name="one")
    clock.advance(1560)
    gone(api, clock, ended)
    second, _ = running(factory, clock, price="0.6")
    clock.advance(61)
    answer = api.get("/usage")
    clock.advance(-61)
    assert answer.json() == {
        "window": {"from": text(clock() + timedelta(minutes=1, days=-30)), "to": text(clock() + timedelta(minutes=1))},
        "granularity": "minute",
        "summary": {"total_usd": 0.2, "job_usd": 0.2, "service_usd": 0, "volume_usd": 0},
        "data": [
            {"resource_type": "job", "resource_id": second.id, "name": "", "billable_seconds": 60, "accrued_usd": 0.01},
            {
                "resource_type": "job",
                "resource_id": first.id,
                "name": "one",
                "billable_seconds": 1560,
                "accrued_usd": 0.19,
            },
        ],
        "volume_ledger_granularity": "hour",
        "volume_allocation": "uniform_proration",
        "volume_usage_complete": True,
        "volume_usage_complete_through": text(clock() + timedelta(minutes=1)),
        "next_cursor": None,
        "total": 2,
    }


def test_the_summary_is_the_rounded_exact_sum_of_the_rows(api: Api, factory: Factory, clock: SettableClock) -> None:
    """Three times a third of a cent is a cent, although each row shows none."""
    for _ in range(3):
        running(factory, clock, price="0.2")
    clock.advance(60)
    answer = api.get("/usage").json()
    assert [row["accrued_usd"] for row in answer["data"]] == [0, 0, 0]
    assert answer["summary"]["total_usd"] == 0.01


def test_windows_that_follow_each_other_add_up(api: Api, factory: Factory, clock: SettableClock) -> None:
    clock.advance(17)
    running(factory, clock, price="6")
    clock.advance(3600)
    begin, cut, end = (datetime(2026, 3, 1, 12, minute, tzinfo=UTC) for minute in (0, 20, 55))
    windows = [(begin, cut), (cut, end), (begin, end)]
    totals = [api.get("/usage", **{"from": text(a), "to": text(b)}).json()["summary"]["total_usd"] for a, b in windows]
    assert totals == [2.0, 3.5, 5.5]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"from": "2026-03-01T11:00:01Z"}, "from"),
        ({"from": "2026-03-01T11:00:00.5Z"}, "from"),
        ({"from": "2026-03-01T11:00:00.000000001Z"}, "from"),
        ({"to": "2026-03-01T11:59:59.999999Z"}, "to"),
        ({"to": "2026-03-01T12:01:00Z"}, "to"),
        ({"to": "2026-03-01T13:01:00+01:00"}, "to"),
        ({"from": "2026-03-01T11:00:00Z", "to": "2026-03-01T10:59:00Z"}, "from"),
        ({"from": "2026-03-01T11:00:00Z", "to": "2026-03-01T11:00:00Z"}, "from"),
        ({"from": "2026-03-01T11:00:00"}, "from"),
        ({"from": "2026-03-01"}, "from"),
        ({"from": "1772362800"}, "from"),
        ({"from": "0001-01-01T00:00:00+10:00"}, "from"),
        ({"from": "1999-12-31T23:59:00Z"}, "from"),
        ({"to": "9999-12-31T23:59:00-10:00"}, "to"),
        ({"from": "2026-02-30T00:00:00Z"}, "from"),
        ({"from": ""}, "from"),
        ({"from": "x" * 65}, "from"),
        ({"resource_type": "node"}, "resource_type"),
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
    ],
)
def test_a_window_that_is_none_is_refused_with_its_field(api: Api, parameters: dict[str, str], field: str) -> None:
    assert refused(api.get("/usage", **parameters)) == field


@pytest.mark.parametrize(
    "to",
    ["2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "2026-03-01t12:00:00.000000z", "2026-03-01T17:30:00+05:30"],
)
def test_a_minute_may_be_written_in_any_zone(api: Api, clock: SettableClock, to: str) -> None:
    clock.advance(59)
    assert api.get("/usage", to=to).json()["window"]["to"] == "2026-03-01T12:00:00Z"


def test_pages_keep_the_window_of_the_first(api: Api, factory: Factory, clock: SettableClock) -> None:
    jobs = []
    for _ in range(5):
        jobs.append(running(factory, clock)[0].id)
        clock.advance(1)
    clock.advance(120)
    first = api.get("/usage", limit=2).json()
    clock.advance(600)
    running(factory, clock)
    clock.advance(600)
    seen, page = list(first["data"]), first
    while page["next_cursor"]:
        page = api.get("/usage", limit=2, cursor=page["next_cursor"]).json()
        assert (page["window"], page["summary"], page["total"]) == (first["window"], first["summary"], 5)
        seen += page["data"]
    assert [row["resource_id"] for row in seen] == jobs[::-1]


def test_a_cursor_of_another_window_or_type_is_refused(api: Api, factory: Factory, clock: SettableClock) -> None:
    for _ in range(2):
        running(factory, clock)
    clock.advance(120)
    cursor = api.get("/usage", limit=1).json()["next_cursor"]
    assert cursor
    for other in ({"resource_type": "job"}, {"from": "2026-03-01T00:00:00Z"}, {"to": "2026-03-01T12:01:00Z"}):
        answer = api.get("/usage", cursor=cursor, **other)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_cursor")


def test_other_types_have_no_rows(api: Api, factory: Factory, clock: SettableClock) -> None:
    running(factory, clock)
    clock.advance(3600)
    for kind in ("service", "volume"):
        answer = api.get("/usage", resource_type=kind).json()
        assert (answer["data"], answer["total"], answer["summary"]["total_usd"]) == ([], 0, 0)


def test_who_sees_what(api: Api, factory: Factory, clock: SettableClock) -> None:
    """A project's key its project, a member and a viewer the organization, another organization nothing of it."""
    own = factory.project(factory.default_organization())
    job, instance = running(factory, clock, project=own)
    running(factory, clock)
    clock.advance(600)
    scoped = api.with_token(factory.key(role=Role.VIEWER, project=own).token)
    stranger = api.with_token(factory.key(factory.organization(), role=Role.CLUSTER_ADMIN).token)
    for _ in range(2):
        assert api.get("/usage").json()["total"] == 2
        assert [row["resource_id"] for row in scoped.get("/usage").json()["data"]] == [job.id]
        assert scoped.get("/usage").json()["summary"]["total_usd"] == 0.07
        assert stranger.get("/usage").json()["total"] == 0
        gone(api, clock, instance)
    assert api.with_token(None).get("/usage").status_code == 401
