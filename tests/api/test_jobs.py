"""Idempotency, lists, visibility and termination, on both databases."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import event, func
from sqlmodel import Session, select

from domain.money import PricingModel
from domain.roles import Role
from domain.states import InstanceState, JobState
from store.db import Database
from store.tables import InboxRow, Instance, Job
from tests.api.conftest import JOB, Api
from tests.conftest import BOTH_ENGINES
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture(params=BOTH_ENGINES)
def database(request: pytest.FixtureRequest) -> Database:
    opened: Database = request.getfixturevalue(f"{request.param}_database")
    return opened


def count_of(api: Api, table: Any) -> int:
    return int(api.services.db.run_read(lambda s: s.exec(select(func.count()).select_from(table)).one()))


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


class TestIdempotency:
    def test_a_replay_answers_200_with_the_same_job(self, api: Api) -> None:
        first, second = api.create(key="k"), api.create(key="k")
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json() == second.json()
        assert (count_of(api, Job), count_of(api, InboxRow)) == (1, 1)

    def test_keys_in_another_order_and_other_number_forms_are_the_same_body(self, api: Api) -> None:
        one = {**JOB, "limits": {"max_cost_usd": 5, "max_runtime_hours": 0.5}}
        other = {"limits": {"max_runtime_hours": 0.50, "max_cost_usd": 5.0}, **dict(reversed(JOB.items()))}
        assert api.create(one, key="k").status_code == 201
        assert api.create(other, key="k").status_code == 200

    def test_another_body_with_the_key_is_a_conflict_and_changes_nothing(self, api: Api) -> None:
        api.create(key="k")
        assert error_of(api.create({**JOB, "name": "other"}, key="k")) == (409, "idempotency_conflict")
        assert count_of(api, Job) == 1

    def test_another_password_is_another_body(self, api: Api) -> None:
        def body(password: str) -> dict[str, Any]:
            credential = {"username": "u", "password": password}
            return {**JOB, "container": {**JOB["container"], "registry_credential": credential}}

        assert api.create(body("one"), key="k").status_code == 201
        assert api.create(body("one"), key="k").status_code == 200
        assert api.create(body("two"), key="k").status_code == 409

    def test_fifty_equal_posts_at_once_make_one_job(self, api: Api) -> None:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: api.create(key="k"), range(50)))
        assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert (count_of(api, Job), count_of(api, InboxRow)) == (1, 1)

    def test_two_organizations_may_use_the_same_key(self, api: Api, factory: Factory) -> None:
        api.create(key="k")
        other = api.with_token(factory.key(factory.organization()).token)
        assert other.post("/jobs", json=JOB, headers={"Idempotency-Key": "k"}).status_code == 201

    @pytest.mark.parametrize("key", [None, ""])
    def test_a_missing_key_is_named(self, api: Api, key: str | None) -> None:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = api.client.post("/jobs", json=JOB, headers=headers)
        assert error_of(answer) == (400, "idempotency_key_required")

    def test_the_longest_key_is_accepted_and_a_longer_one_refused(self, api: Api) -> None:
        assert api.create(key="k" * 255).status_code == 201
        answer = api.create(key="k" * 256)
        assert error_of(answer) == (422, "invalid_request")
        assert answer.json()["error"]["details"] == {"field": "Idempotency-Key", "limit": 255}

    def test_a_key_that_is_not_printable_is_refused(self, api: Api) -> None:
        answer = api.client.post("/jobs", json=JOB, headers={b"Idempotency-Key": b"a\xffb"})
        assert error_of(answer) == (422, "invalid_request")

    def test_a_replay_shows_the_job_as_it_is_now(self, api: Api) -> None:
        job = api.create(key="k").json()
        api.client.post(f"/jobs/{job['id']}/terminate")
        assert api.create(key="k").json()["state"] == "terminating"

    def test_a_replay_needs_no_enabled_organization(self, api: Api, factory: Factory) -> None:
        job = api.create(key="k").json()
        organization = factory.default_organization()

        def disable(session: Any) -> None:
            session.get_one(type(organization), organization.id).enabled = False

        api.write(disable)
        assert api.create(key="k").json()["id"] == job["id"]
        assert error_of(api.create(key="new")) == (403, "tenant_disabled")
        assert api.get(f"/jobs/{job['id']}").status_code == 200
        assert api.client.post(f"/jobs/{job['id']}/terminate").status_code == 200


class TestLists:
    def test_jobs_come_newest_first_each_once_while_new_ones_arrive(
        self, api: Api, factory: Factory, clock: SettableClock
    ) -> None:
        ids = []
        for number in range(23):
            ids.append(factory.job().id)
            # Several share an instant: the id then decides.
            if number % 3 == 0:
                clock.advance(1)
        seen: list[dict[str, Any]] = []
        cursor = None
        while True:
            parameters = {"limit": 5} | ({"cursor": cursor} if cursor else {})
            page = api.get("/jobs", **parameters).json()
            seen += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            clock.advance(1)
            factory.job()
        assert sorted(job["id"] for job in seen) == sorted(ids)
        assert [job["created_at"] for job in seen] == sorted((job["created_at"] for job in seen), reverse=True)

    def test_a_full_last_page_has_no_next_cursor(self, api: Api, factory: Factory) -> None:
        for _ in range(4):
            factory.job()
        first = api.get("/jobs", limit=2).json()
        last = api.get("/jobs", limit=2, cursor=first["next_cursor"]).json()
        assert (first["total"], len(last["data"]), last["next_cursor"]) == (4, 2, None)

    def test_a_filter_counts_and_lists_only_its_state(self, api: Api, factory: Factory) -> None:
        factory.job(JobState.RUNNING)
        wanted = {factory.job(JobState.FAILED).id, factory.job(JobState.FAILED).id}
        page = api.get("/jobs", state="failed").json()
        assert ({job["id"] for job in page["data"]}, page["total"]) == (wanted, 2)
        assert api.get("/jobs", state="ready").json() == {"data": [], "next_cursor": None, "total": 0}

    def test_a_cursor_of_another_filter_or_list_is_refused(self, api: Api, factory: Factory) -> None:
        for _ in range(3):
            job = factory.job()
        cursor = api.get("/jobs", limit=1).json()["next_cursor"]
        for path, parameters in [
            ("/jobs", {"state": "requested"}),
            (f"/jobs/{job.id}/events", {}),
            ("/catalog/accelerators", {}),
        ]:
            assert error_of(api.get(path, cursor=cursor, **parameters)) == (400, "invalid_cursor")

    def test_a_cursor_of_another_organization_is_refused(self, api: Api, factory: Factory) -> None:
        for _ in range(2):
            factory.job()
        cursor = api.get("/jobs", limit=1).json()["next_cursor"]
        other = api.with_token(factory.key(factory.organization()).token)
        assert error_of(other.get("/jobs", params={"cursor": cursor})) == (400, "invalid_cursor")

    @pytest.mark.parametrize("cursor", ["x", "", "%00", "A" * 2000, "🚀", "../../x"])
    def test_a_made_up_cursor_is_refused(self, api: Api, cursor: str) -> None:
        assert error_of(api.get("/jobs", cursor=cursor)) == (400, "invalid_cursor")

    @pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "1.5", "9223372036854775808", ""])
    def test_a_limit_out_of_bounds_is_refused(self, api: Api, limit: str) -> None:
        answer = api.get("/jobs", limit=limit)
        assert error_of(answer) == (422, "invalid_request")
        assert answer.json()["error"]["details"]["field"] == "limit"

    def test_an_unknown_state_is_refused(self, api: Api) -> None:
        assert error_of(api.get("/jobs", state="sleeping")) == (422, "invalid_request")

    def test_a_page_takes_a_fixed_number_of_queries(self, api: Api, factory: Factory, clock: SettableClock) -> None:
        for _ in range(20):
            job = factory.job(JobState.RUNNING, allocated_at=clock())
            factory.price(factory.instance(job, InstanceState.RUNNING, allocated_at=clock()), "0.44")
        statements: list[str] = []
        engine = api.services.db.engine

        def count(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            statements.append(statement)

        event.listen(engine, "before_cursor_execute", count)
        try:
            page = api.get("/jobs").json()
        finally:
            event.remove(engine, "before_cursor_execute", count)
        assert len(page["data"]) == 20
        assert len([s for s in statements if s.startswith("SELECT")]) == 5  # the key, jobs, instances, prices, count


class TestVisibility:
    @pytest.mark.parametrize("path", ["", "/events", "/instances", "/logs"])
    def test_another_organizations_job_does_not_exist(self, api: Api, factory: Factory, path: str) -> None:
        theirs = factory.job(project=factory.project(factory.organization()))
        answer = api.get(f"/jobs/{theirs.id}{path}")
        missing = api.get(f"/jobs/job_0000000000000000{path}")
        assert error_of(answer) == error_of(missing) == (404, "not_found")
        assert answer.json()["error"]["message"].replace(theirs.id, "") == missing.json()["error"]["message"].replace(
            "job_0000000000000000", ""
        )

    def test_another_organizations_job_cannot_be_terminated(self, api: Api, factory: Factory) -> None:
        theirs = factory.job(project=factory.project(factory.organization()))
        assert error_of(api.client.post(f"/jobs/{theirs.id}/terminate")) == (404, "not_found")
        assert api.services.db.run_read(lambda s: s.get_one(Job, theirs.id)).state == "requested"

    def test_a_projects_key_sees_its_projects_jobs_only(self, api: Api, factory: Factory) -> None:
        project = factory.project(name="mine")
        mine, others = factory.job(project=project), factory.job()
        client = api.with_token(factory.key(project=project).token)
        page = client.get("/jobs").json()
        assert ([job["id"] for job in page["data"]], page["total"]) == ([mine.id], 1)
        assert client.get(f"/jobs/{others.id}").status_code == 404

    @pytest.mark.parametrize(
        "job_id", ["job_x", "x" * 3000, "job_000000000000000%00", "..%2f..", "%F0%9F%9A%80", "job_' OR 1=1 --", "%ff"]
    )
    def test_a_hostile_id_is_just_not_found(self, api: Api, job_id: str) -> None:
        assert error_of(api.get(f"/jobs/{job_id}"))[0] == 404
        assert error_of(api.client.post(f"/jobs/{job_id}/terminate"))[0] == 404

    @pytest.mark.parametrize("token", [None, "x", "hr_unknown", "hr_" + "x" * 10_000, "hr_\xff"])
    def test_no_key_or_an_unknown_one_is_401(self, api: Api, token: str | None) -> None:
        client = api.with_token(None)
        headers = {} if token is None else {b"Authorization": f"Bearer {token}".encode("latin-1")}
        for method, path in [
            ("GET", "/jobs"),
            ("POST", "/jobs"),
            ("GET", "/secrets"),
            ("GET", "/catalog/accelerators"),
        ]:
            answer = client.request(method, path, headers=headers)
            assert error_of(answer) == (401, "unauthenticated")
            assert answer.headers["WWW-Authenticate"] == "Bearer"

    def test_a_viewer_reads_and_terminates_nothing(self, api: Api, factory: Factory) -> None:
        job = factory.job()
        viewer = api.with_token(factory.key(role=Role.VIEWER).token)
        assert viewer.get(f"/jobs/{job.id}").status_code == 200
        assert error_of(viewer.post(f"/jobs/{job.id}/terminate")) == (403, "forbidden")


class TestSpend:
    def test_spend_is_the_sum_over_attempts_in_whole_units_rounded_half_up(
        self, api: Api, factory: Factory, clock: SettableClock
    ) -> None:
        start = clock()
        job = factory.job(JobState.RUNNING, allocated_at=start)
        gone = factory.instance(
            job, InstanceState.STOPPED, allocated_at=start, confirmed_absent_at=start + timedelta(minutes=10)
        )
        factory.price(gone, "0.60", start)
        seconds = factory.offer(pricing_model=PricingModel.INSTANCE_SECONDS).model_dump(mode="json")
        live = factory.instance(
            job, InstanceState.RUNNING, number=2, allocated_at=start + timedelta(minutes=10), offer=seconds
        )
        factory.price(live, "2", start)
        factory.price(live, "3", start + timedelta(minutes=40))
        factory.instance(job, InstanceState.FAILED, number=3)
        clock.advance(minutes=70)
        shown = api.get(f"/jobs/{job.id}").json()
        # 10 minutes at 0.60, 30 minutes at 2, 30 minutes at 3.
        assert shown["accrued_usd"] == 2.6
        assert (shown["price_usd_hr"], shown["current_price_usd_hr"]) == (2, 3)
        assert (shown["pricing_model"], shown["attempts"]["total"]) == ("instance_seconds", 3)

    def test_spend_stands_still_once_absence_is_confirmed(
        self, api: Api, factory: Factory, clock: SettableClock
    ) -> None:
        job = factory.job(JobState.SUCCEEDED, allocated_at=clock(), exit_code=0, terminal_at=clock())
        instance = factory.instance(
            job,
            InstanceState.STOPPED,
            allocated_at=clock(),
            confirmed_absent_at=clock() + timedelta(seconds=1560),
            endpoints=[{"name": "ssh", "protocol": "ssh", "host": "h", "port": 22}],
        )
        factory.price(instance, "0.44")
        clock.advance(days=30)
        answer = api.get(f"/jobs/{job.id}")
        assert b'"accrued_usd":0.19' in answer.content
        shown = answer.json()
        assert (shown["price_usd_hr"], shown["exit_code"]) == (0.44, 0)
        assert "current_price_usd_hr" not in shown
        assert "ssh" not in shown

    def test_ssh_is_shown_once_the_workloads_sshd_serves_with_its_host_key(
        self, api: Api, factory: Factory, clock: SettableClock
    ) -> None:
        job = factory.job(JobState.RUNNING, allocated_at=clock())
        entry = {"name": "ssh", "protocol": "ssh", "host": "2001:db8::7", "port": 22022, "user": "root"}
        instance = factory.instance(job, InstanceState.RUNNING, allocated_at=clock(), endpoints=[entry])
        factory.price(instance, "0.44")
        shown = api.get(f"/jobs/{job.id}").json()
        assert "ssh" not in shown
        assert shown["endpoints"] == []

        def told(session: Session) -> None:
            row = session.get_one(Instance, instance.id)
            row.ssh_host_key = "ssh-ed25519 AAAA"
            session.add(row)

        api.services.db.run_write(told)
        expected = {
            "host": "2001:db8::7",
            "port": 22022,
            "user": "root",
            "command": "ssh -p 22022 root@2001:db8::7",
            "host_key": "ssh-ed25519 AAAA",
        }
        assert api.get(f"/jobs/{job.id}").json()["ssh"] == expected
        assert api.get(f"/jobs/{job.id}/instances").json()["data"][0]["ssh"] == expected

    def test_a_rate_is_shown_with_all_its_digits(self, api: Api, factory: Factory, clock: SettableClock) -> None:
        job = factory.job(JobState.RUNNING, allocated_at=clock())
        factory.price(
            factory.instance(job, InstanceState.RUNNING, allocated_at=clock()), str(Decimal("0.1234567890123456789"))
        )
        assert b'"price_usd_hr":0.1234567890123456789' in api.get(f"/jobs/{job.id}").content


class TestTerminate:
    def test_it_is_idempotent_and_sends_one_input(self, api: Api) -> None:
        job_id = api.create().json()["id"]
        for _ in range(3):
            answer = api.client.post(f"/jobs/{job_id}/terminate")
            assert answer.status_code == 200
            assert (answer.json()["state"], answer.json()["reason"]["code"]) == ("terminating", "user_requested")
        kinds = api.services.db.run_read(lambda s: s.exec(select(InboxRow.kind).order_by(InboxRow.id)).all())
        assert list(kinds) == ["start", "terminate"]

    @pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.TERMINATED])
    def test_a_terminal_job_stays_as_it_is(self, api: Api, factory: Factory, state: JobState) -> None:
        job = factory.job(state)
        answer = api.client.post(f"/jobs/{job.id}/terminate")
        assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (200, state.value, None)

    def test_who_asked_is_in_the_event(self, api: Api) -> None:
        job_id = api.create().json()["id"]
        api.client.post(f"/jobs/{job_id}/terminate", headers={"X-On-Behalf-Of": "end-user-7"})
        data = api.get(f"/jobs/{job_id}/events").json()["data"][-1]["data"]
        assert (data["owner"], data["on_behalf_of"]) == ("someone", "end-user-7")

    @pytest.mark.parametrize("value", ["x" * 257, "a\tb"])
    def test_a_hostile_end_user_is_refused(self, api: Api, value: str) -> None:
        answer = api.client.post("/jobs/job_0000000000000000/terminate", headers={"X-On-Behalf-Of": value})
        assert error_of(answer) == (422, "invalid_request")
