"""Events, instances and logs, on both databases."""

import threading
import time
from typing import Any

import pytest

from domain.states import EventType, InstanceState, JobState, Reason
from store.db import Database
from store.tables import Job
from store.transitions import record, transition
from tests.api.conftest import Api
from tests.conftest import BOTH_ENGINES
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture(params=BOTH_ENGINES)
def database(request: pytest.FixtureRequest) -> Database:
    opened: Database = request.getfixturevalue(f"{request.param}_database")
    return opened


def walk(api: Api, path: str, *, start: str | None = None, **parameters: Any) -> list[dict[str, Any]]:
    """Every item of a list, by its cursors; the rest of it, from the cursor `start`."""
    seen: list[dict[str, Any]] = []
    cursor: dict[str, str] = {"cursor": start} if start else {}
    while True:
        answer = api.get(path, **parameters, **cursor)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        seen += page["data"]
        assert page["total"] >= len(seen)
        if page["next_cursor"] is None:
            return seen
        cursor = {"cursor": page["next_cursor"]}


@pytest.fixture
def job(factory: Factory) -> Job:
    return factory.job(JobState.RUNNING)


class TestEvents:
    @pytest.mark.parametrize("limit", [1, 2, 7, 1000])
    def test_each_comes_once_in_both_orders(self, api: Api, job: Job, clock: SettableClock, limit: int) -> None:
        for number in range(7):
            api.write(lambda s, n=number: record(s, job.id, EventType.STATE_CHANGED, f"e{n}", clock(), {"number": n}))
        ascending = walk(api, f"/jobs/{job.id}/events", limit=limit)
        assert [event["data"]["number"] for event in ascending] == list(range(7))
        descending = walk(api, f"/jobs/{job.id}/events", limit=limit, order="desc")
        assert descending == ascending[::-1]

    def test_a_cursor_of_the_other_order_is_refused(self, api: Api, job: Job, clock: SettableClock) -> None:
        for number in range(2):
            api.write(lambda s, n=number: record(s, job.id, EventType.STATE_CHANGED, f"e{n}", clock(), {}))
        cursor = api.get(f"/jobs/{job.id}/events", limit=1).json()["next_cursor"]
        answer = api.get(f"/jobs/{job.id}/events", cursor=cursor, order="desc")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_cursor")

    def test_an_event_has_the_documented_shape(self, api: Api, job: Job, clock: SettableClock) -> None:
        api.write(lambda s: record(s, job.id, EventType.WORKLOAD_STARTED, "e", clock(), {"a": 1}))
        [event] = api.get(f"/jobs/{job.id}/events").json()["data"]
        assert event.pop("id").startswith("evt_")
        assert event == {"timestamp": "2026-03-01T12:00:00Z", "type": "workload_started", "data": {"a": 1}}

    @pytest.mark.parametrize("order", ["up", "", "ASC"])
    def test_an_unknown_order_is_refused(self, api: Api, job: Job, order: str) -> None:
        assert api.get(f"/jobs/{job.id}/events", order=order).status_code == 422


class TestInstances:
    def test_an_attempt_that_got_no_hardware_has_no_provider_id(self, api: Api, factory: Factory, job: Job) -> None:
        factory.instance(job, InstanceState.FAILED, reason_code="capacity_unavailable", reason_message="none free")
        [shown] = api.get(f"/jobs/{job.id}/instances").json()["data"]
        assert (shown["provider_id"], shown["provider_resource_type"]) == ("", "attempt")
        assert shown["reason"] == {"code": "capacity_unavailable", "message": "none free"}
        assert "price_usd_hr" not in shown

    def test_an_instance_shows_where_it_is_and_how_it_ended(
        self, api: Api, factory: Factory, job: Job, clock: SettableClock
    ) -> None:
        instance = factory.instance(
            job,
            InstanceState.FAILED,
            allocated_at=clock(),
            started_at=clock(),
            terminal_at=clock(),
            handle={"provider_id": "i-1", "resource_type": "instance", "region": "eu-1", "host": "10.0.0.9"},
            exit_report={"status": 7},
        )
        factory.price(instance, "0.10")
        [shown] = api.get(f"/jobs/{job.id}/instances").json()["data"]
        assert shown["id"] == instance.id
        assert (shown["provider_id"], shown["region"], shown["host"]) == ("i-1", "eu-1", "10.0.0.9")
        assert (shown["exit_code"], shown["price_usd_hr"], shown["spot"], shown["rank"]) == (7, 0.1, False, 0)
        assert shown["hardware"] == {"accelerator": "cpu-general", "gpu_count": 0, "gpu_memory_gb": 0}
        assert shown["started_at"] == "2026-03-01T12:00:00Z"

    def test_they_are_paged_and_filtered(self, api: Api, factory: Factory, job: Job) -> None:
        states = [InstanceState.FAILED, InstanceState.LOST, InstanceState.FAILED, InstanceState.RUNNING]
        ids = [factory.instance(job, state, number=n).id for n, state in enumerate(states, 1)]
        assert [i["id"] for i in walk(api, f"/jobs/{job.id}/instances", limit=1)] == ids
        assert [i["id"] for i in walk(api, f"/jobs/{job.id}/instances", limit=2, order="desc")] == ids[::-1]
        failed = api.get(f"/jobs/{job.id}/instances", state="failed", limit=1).json()
        assert (failed["total"], failed["data"][0]["id"]) == (2, ids[0])
        assert api.get(f"/jobs/{job.id}/instances", state="busy").json()["total"] == 0
        assert api.get(f"/jobs/{job.id}/instances", state="asleep").status_code == 422
        assert api.get(f"/jobs/{job.id}/instances", cursor=failed["next_cursor"]).status_code == 400


def say(api: Api, job: Job, *messages: str) -> None:
    api.write(lambda s: api.services.logs.append_system(s, job.id, list(messages), api.services.clock()))


class TestLogs:
    @pytest.mark.parametrize("order", ["asc", "desc"])
    @pytest.mark.parametrize("limit", [1, 2, 999, 1000])
    def test_pages_meet_each_line_once_while_lines_arrive(self, api: Api, job: Job, limit: int, order: str) -> None:
        count = 1200 if limit > 2 else 12
        say(api, job, *(f"line {n}" for n in range(count)))
        path = f"/jobs/{job.id}/logs"
        first = api.get(path, limit=limit, order=order).json()
        say(api, job, f"line {count}")
        rest = walk(api, path, start=first["next_cursor"], limit=limit, order=order)
        seen = [line["message"] for line in [*first["data"], *rest]]
        # Downwards, a line that arrives later is above where the traversal began.
        expected = range(count + 1) if order == "asc" else range(count - 1, -1, -1)
        assert seen == [f"line {n}" for n in expected]

    def test_a_system_line_has_the_documented_shape(self, api: Api, job: Job) -> None:
        say(api, job, "pulling")
        [line] = api.get(f"/jobs/{job.id}/logs").json()["data"]
        assert line == {
            "id": "log_0000000000000001",
            "timestamp": "2026-03-01T12:00:00Z",
            "source": "system",
            "stream": "stdout",
            "message": "pulling",
        }

    def test_a_line_of_the_workload_names_its_stream_and_rank(
        self, api: Api, factory: Factory, job: Job, clock: SettableClock
    ) -> None:
        instance = factory.instance(job, InstanceState.RUNNING)
        api.write(lambda s: api.services.logs.append_chunk(s, instance, "stderr", 0, b"a\nb\n", clock()))
        lines = api.get(f"/jobs/{job.id}/logs", source="user").json()
        assert lines["total"] == 2
        assert [(x["source"], x["stream"], x["message"], x["instance_rank"]) for x in lines["data"]] == [
            ("user", "stderr", "a", 0),
            ("user", "stderr", "b", 0),
        ]
        assert api.get(f"/jobs/{job.id}/logs", source="system").json()["total"] == 0

    def test_a_thousand_lines_fit_a_page_and_more_are_refused(self, api: Api, job: Job) -> None:
        say(api, job, *(str(n) for n in range(1001)))
        page = api.get(f"/jobs/{job.id}/logs", limit=1000).json()
        assert (len(page["data"]), page["total"]) == (1000, 1001)
        assert api.get(f"/jobs/{job.id}/logs", limit=1001).status_code == 422

    def test_a_cursor_of_another_order_source_or_job_is_refused(self, api: Api, factory: Factory, job: Job) -> None:
        say(api, job, "a", "b")
        cursor = api.get(f"/jobs/{job.id}/logs", limit=1).json()["next_cursor"]
        other = factory.job()
        for path, parameters in [
            (f"/jobs/{job.id}/logs", {"order": "desc"}),
            (f"/jobs/{job.id}/logs", {"source": "system"}),
            (f"/jobs/{other.id}/logs", {}),
        ]:
            assert api.get(path, cursor=cursor, **parameters).json()["error"]["code"] == "invalid_cursor"

    def test_a_follower_goes_on_after_the_line_it_knows(self, api: Api, job: Job) -> None:
        say(api, job, "one", "two")
        path = f"/jobs/{job.id}/logs"
        page = api.get(path, limit=50).json()
        assert page["next_cursor"] is None
        known = page["data"][-1]["id"]
        assert api.get(path, follow_from=known).json()["data"] == []
        say(api, job, "three")
        assert [line["message"] for line in api.get(path, follow_from=known).json()["data"]] == ["three"]

    def test_a_waiting_follower_gets_a_line_as_soon_as_it_is_stored(self, api: Api, job: Job) -> None:
        answers: list[dict[str, Any]] = []
        follower = threading.Thread(
            target=lambda: answers.append(api.get(f"/jobs/{job.id}/logs", wait=20).json()), daemon=True
        )
        follower.start()
        topic = f"logs:{job.id}"
        deadline = time.monotonic() + 10
        while not api.services.db._subscribers.get(topic) and time.monotonic() < deadline:
            time.sleep(0.005)
        started = time.monotonic()
        say(api, job, "here")
        follower.join(10)
        assert [line["message"] for line in answers[0]["data"]] == ["here"]
        assert time.monotonic() - started < 5

    def test_a_follower_of_an_ended_job_does_not_wait(self, api: Api, factory: Factory, clock: SettableClock) -> None:
        job = factory.job(JobState.TERMINATING)
        api.write(lambda s: transition(s, job.id, JobState.TERMINATED, "end", clock(), reason=Reason.USER_REQUESTED))
        started = time.monotonic()
        assert api.get(f"/jobs/{job.id}/logs", wait=20).json()["data"] == []
        assert time.monotonic() - started < 5

    def test_a_wait_ends_in_time_without_lines(self, api: Api, job: Job) -> None:
        assert api.get(f"/jobs/{job.id}/logs", wait=0.05).json() == {"data": [], "next_cursor": None, "total": 0}

    @pytest.mark.parametrize(
        "parameters",
        [
            {"follow_from": "x"},
            {"follow_from": "log_1"},
            {"follow_from": "log_0000000000000001", "order": "desc"},
            {"wait": 21},
            {"wait": -1},
            {"wait": "nan"},
            {"source": "workload"},
        ],
    )
    def test_a_bad_parameter_is_refused(self, api: Api, job: Job, parameters: dict[str, Any]) -> None:
        assert api.get(f"/jobs/{job.id}/logs", **parameters).json()["error"]["code"] == "invalid_request"
