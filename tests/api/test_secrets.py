"""The rules of secrets over HTTP: what is taken, what is refused, who may, and that no value is ever answered."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlmodel import select

from api.encoding import timestamp
from domain.roles import Role
from domain.states import JobState
from store.tables import AuditEntry, Organization
from store.transitions import transition
from tests.api.conftest import JOB, Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory

CANARY = "canary-7f3a-secret"


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("details", {}).get("field")


def create(api: Api, name: str = "token", **fields: Any) -> dict[str, Any]:
    answer = api.client.post("/secrets", json={"name": name, "data": {"TOKEN": CANARY}, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def using(secret: dict[str, Any], **container: Any) -> dict[str, Any]:
    reference = {"TOKEN": {"secret_id": secret["id"], "key": "TOKEN"}}
    return {**JOB, "container": {**JOB["container"], "secret_env": reference, **container}}


class TestBodies:
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"name": ""}, "name"),
            ({"name": "x" * 129}, "name"),
            ({"name": "two\nlines"}, "name"),
            ({"data": {}}, "data"),
            ({"data": None}, "data"),
            ({"data": [CANARY]}, "data"),
            ({"data": {"K": 7}}, "data.K"),
            ({"data": {"K": {"inner": CANARY}}}, "data.K"),
            ({"data": {"a b": CANARY}}, "data.a b"),
            ({"data": {"": CANARY}}, "data."),
            ({"data": {"k" * 129: CANARY}}, "data." + "k" * 64),
            ({"data": {f"K{n}": CANARY for n in range(65)}}, "data"),
            ({"data": {"K": CANARY + "x" * 65_536}}, "data"),
            ({"data": {"K": CANARY + "\0"}}, "data.K"),
            ({"data": {f"K{n}": "é" * 16_384 for n in range(2)}}, "data"),
            ({"expires_at": "tomorrow"}, "expires_at"),
            ({"expires_at": "2999-01-01T00:00:00"}, "expires_at"),
            ({"expires_at": "2999-13-01T00:00:00Z"}, "expires_at"),
            ({"expires_at": "9999-12-31T23:59:59-23:59"}, "expires_at"),
            ({"expires_at": 4_000_000_000}, "expires_at"),
            ({"surprise": CANARY}, "surprise"),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_what_is_wrong_is_named_and_no_value_repeated(self, api: Api, fields: dict[str, Any], field: str) -> None:
        body = {"name": "n", "data": {"K": CANARY}, **fields}
        answer = api.client.post("/secrets", json=body)
        assert error_of(answer) == (422, "invalid_request", field)
        assert CANARY not in answer.text
        rotated = {name: value for name, value in body.items() if name != "name"}
        if field != "name":
            answer = api.client.post(f"/secrets/{create(api)['id']}/rotate", json=rotated)
            assert error_of(answer) == (422, "invalid_request", field)
            assert CANARY not in answer.text

    def test_a_name_is_not_for_a_rotation(self, api: Api) -> None:
        answer = api.client.post(f"/secrets/{create(api)['id']}/rotate", json={"name": "n", "data": {"K": "v"}})
        assert error_of(answer) == (422, "invalid_request", "name")

    def test_the_largest_secret_is_taken(self, api: Api) -> None:
        data = {f"K{n:02}": "x" * 1021 for n in range(64)}
        assert create(api, data=data)["keys"] == sorted(data)
        assert create(api, "empty", data={"EMPTY": ""})["keys"] == ["EMPTY"]

    @pytest.mark.parametrize(("seconds", "status"), [(-1, 422), (0, 422), (1, 201)])
    def test_it_expires_in_the_future(self, api: Api, clock: SettableClock, seconds: int, status: int) -> None:
        expires_at = timestamp(clock() + timedelta(seconds=seconds))
        body = {"name": "n", "data": {"K": "v"}, "expires_at": expires_at}
        answer = api.client.post("/secrets", json=body)
        assert answer.status_code == status
        if status == 201:
            assert answer.json()["expires_at"] == expires_at
        else:
            assert error_of(answer)[2] == "expires_at"

    def test_a_time_of_another_zone_is_answered_in_utc(self, api: Api) -> None:
        assert create(api, expires_at="2999-01-01T02:00:00.5+02:00")["expires_at"] == "2999-01-01T00:00:00.500000Z"

    @pytest.mark.parametrize("body", ["[]", "7", '"x"', "null"])
    def test_a_body_that_is_no_object_is_refused(self, api: Api, body: str) -> None:
        assert error_of(api.client.post("/secrets", content=body)) == (422, "invalid_request", "body")


class TestAnswers:
    def test_no_answer_has_a_value(self, api: Api) -> None:
        secret = create(api)
        answers = [
            api.get("/secrets"),
            api.get(f"/secrets/{secret['id']}"),
            api.client.post(f"/secrets/{secret['id']}/rotate", json={"data": {"TOKEN": CANARY}}),
            api.client.post("/secrets", json={"name": "token", "data": {"TOKEN": CANARY}}),
            api.create(using(secret)),
            api.get("/jobs"),
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 409, 201, 200]
        assert not [answer.text for answer in answers if CANARY in answer.text]

    def test_a_rotation_raises_the_version_and_forgets_the_expiry(self, api: Api, clock: SettableClock) -> None:
        secret = create(api, expires_at="2999-01-01T00:00:00Z")
        clock.advance(60)
        rotated = api.client.post(f"/secrets/{secret['id']}/rotate", json={"data": {"NEW": "v"}}).json()
        assert rotated == {
            **secret,
            "version": 2,
            "keys": ["NEW"],
            "expires_at": None,
            "updated_at": timestamp(clock()),
        }

    def test_pages_hold_all_oldest_first_and_a_cursor_is_this_lists(self, api: Api) -> None:
        ids = [create(api, f"s{n}")["id"] for n in range(5)]
        seen: list[str] = []
        cursor = None
        while True:
            page = api.get("/secrets", limit=2, **({"cursor": cursor} if cursor else {})).json()
            assert page["total"] == 5
            seen += [entry["id"] for entry in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert api.get("/jobs", cursor=cursor).json()["error"]["code"] == "invalid_cursor"
        assert sorted(seen) == sorted(ids)
        assert [entry["created_at"] for entry in api.get("/secrets").json()["data"]] == sorted(
            entry["created_at"] for entry in api.get("/secrets").json()["data"]
        )

    @pytest.mark.parametrize("secret_id", ["sec_0000000000000000", "x", "%00", "job_0000000000000000", "x" * 300])
    def test_one_that_is_not_there_is_404(self, api: Api, secret_id: str) -> None:
        for answer in (
            api.get(f"/secrets/{secret_id}"),
            api.client.delete(f"/secrets/{secret_id}"),
            api.client.post(f"/secrets/{secret_id}/rotate", json={"data": {"K": "v"}}),
        ):
            assert error_of(answer)[:2] == (404, "not_found")

    def test_the_audit_log_tells_who_did_what_and_no_value(self, api: Api) -> None:
        secret = create(api)
        headers = {"X-On-Behalf-Of": "end-user-7"}
        url = f"/secrets/{secret['id']}"
        api.client.post(f"{url}/rotate", json={"data": {"TOKEN": CANARY, "B": CANARY}}, headers=headers)
        api.client.post(f"{url}/rotate", json={"data": {}})
        api.client.delete(url)
        entries = api.services.db.run_read(lambda s: s.exec(select(AuditEntry).order_by(AuditEntry.id)).all())
        assert [(e.action, e.resource, e.on_behalf_of, e.data) for e in entries] == [
            ("secret.create", secret["id"], None, {"name": "token", "version": 1, "keys": ["TOKEN"]}),
            ("secret.rotate", secret["id"], "end-user-7", {"name": "token", "version": 2, "keys": ["B", "TOKEN"]}),
            ("secret.delete", secret["id"], None, {"name": "token"}),
        ]


class TestWho:
    def test_another_organization_sees_nothing_and_may_take_the_name(self, api: Api, factory: Factory) -> None:
        secret = create(api)
        stranger = api.with_token(factory.key(factory.organization()).token)
        assert stranger.get("/secrets").json()["total"] == 0
        assert stranger.get(f"/secrets/{secret['id']}").status_code == 404
        assert stranger.delete(f"/secrets/{secret['id']}").status_code == 404
        assert stranger.post(f"/secrets/{secret['id']}/rotate", json={"data": {"K": "v"}}).status_code == 404
        answer = stranger.post("/jobs", json=using(secret), headers={"Idempotency-Key": "k"})
        assert error_of(answer) == (422, "secret_not_found", "container.secret_env.TOKEN.secret_id")
        assert stranger.post("/secrets", json={"name": "token", "data": {"K": "v"}}).status_code == 201

    def test_a_viewer_reads_only(self, api: Api, factory: Factory) -> None:
        secret = create(api)
        viewer = api.with_token(factory.key(role=Role.VIEWER).token)
        assert viewer.get("/secrets").status_code == viewer.get(f"/secrets/{secret['id']}").status_code == 200
        for answer in (
            viewer.post("/secrets", json={"name": "n", "data": {"K": "v"}}),
            viewer.post(f"/secrets/{secret['id']}/rotate", json={"data": {"K": "v"}}),
            viewer.delete(f"/secrets/{secret['id']}"),
        ):
            assert error_of(answer)[:2] == (403, "forbidden")

    def test_a_projects_key_shares_the_organizations_secrets(self, api: Api, factory: Factory) -> None:
        secret = create(api)
        project = api.with_token(factory.key(project=factory.project()).token)
        answer = project.post("/jobs", json=using(secret), headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201

    def test_a_disabled_organization_reads_and_deletes(self, api: Api) -> None:
        secret = create(api)

        def disable(session: Any) -> None:
            row = session.get_one(Organization, api.key.org_id)
            row.enabled = False
            session.add(row)

        api.write(disable)
        for answer in (
            api.client.post("/secrets", json={"name": "n", "data": {"K": "v"}}),
            api.client.post(f"/secrets/{secret['id']}/rotate", json={"data": {"K": "v"}}),
        ):
            assert error_of(answer)[:2] == (403, "tenant_disabled")
        assert api.get(f"/secrets/{secret['id']}").status_code == 200
        assert api.client.delete(f"/secrets/{secret['id']}").status_code == 204
        assert api.get(f"/secrets/{secret['id']}").status_code == 404


class TestJobs:
    def test_a_key_that_the_secret_lacks_is_named(self, api: Api) -> None:
        secret = create(api)
        reference = {"T": {"secret_id": secret["id"], "key": "OTHER"}}
        answer = api.create(using(secret, secret_env=reference))
        assert error_of(answer) == (422, "secret_key_not_found", "container.secret_env.T.key")

    def test_a_pull_secret_needs_user_name_password_and_a_registry(self, api: Api) -> None:
        token, login = create(api), create(api, "login", data={"username": "u", "password": "p"})
        answer = api.create(using(token, image_pull_secret=token["id"]))
        assert error_of(answer) == (422, "secret_key_not_found", "container.image_pull_secret")
        answer = api.create(using(token, image_pull_secret=login["id"], image="app:1"))
        assert error_of(answer) == (422, "invalid_request", "container.image")
        assert api.create(using(token, image_pull_secret=login["id"])).status_code == 201
        answer = api.client.post(f"/secrets/{login['id']}/rotate", json={"data": {"username": "u", "token": "t"}})
        assert error_of(answer)[:2] == (409, "secret_key_in_use")
        assert answer.json()["error"]["details"]["keys"] == ["password"]

    def test_an_expired_secret_is_taken_for_the_launch_decides(self, api: Api, clock: SettableClock) -> None:
        secret = create(api, expires_at=timestamp(clock() + timedelta(seconds=1)))
        clock.advance(2)
        assert api.create(using(secret)).status_code == 201

    def test_a_job_that_is_run_again_uses_the_secret_too(self, api: Api, clock: SettableClock) -> None:
        secret = create(api)
        job_id = api.create(using(secret)).json()["id"]
        api.write(lambda s: transition(s, job_id, JobState.FAILED, "end", clock()))
        again = api.client.post(f"/jobs/{job_id}/rerun", headers={"Idempotency-Key": "again"})
        assert again.status_code == 201
        assert error_of(api.client.delete(f"/secrets/{secret['id']}"))[:2] == (409, "secret_in_use")
        api.write(lambda s: transition(s, again.json()["id"], JobState.FAILED, "end", clock()))
        assert api.client.delete(f"/secrets/{secret['id']}").status_code == 204
        answer = api.client.post(f"/jobs/{job_id}/rerun", headers={"Idempotency-Key": "once more"})
        assert error_of(answer) == (422, "secret_not_found", "container.secret_env.TOKEN.secret_id")
        # What was made before is answered, whatever has become of its secret.
        replay = api.client.post(f"/jobs/{job_id}/rerun", headers={"Idempotency-Key": "again"})
        assert (replay.status_code, replay.json()["id"]) == (200, again.json()["id"])
