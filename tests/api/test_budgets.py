"""The budgets' operations, and what a create is told when one has nothing left."""

import json
from decimal import Decimal
from typing import Any

import httpx
import pytest
from meetkai_mka1 import SDK
from meetkai_mka1.errors import SDKDefaultError

from domain.roles import Role
from tests.api.conftest import JOB, Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def admin(api: Api, factory: Factory) -> httpx.Client:
    return api.with_token(factory.key(role=Role.ORG_ADMIN).token)


def create(admin: httpx.Client, amount: Any = 10, **fields: Any) -> dict[str, Any]:
    answer = admin.post("/budgets", json={"amount_usd": amount, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_budget_is_created_read_changed_and_deleted(api: Api, admin: httpx.Client) -> None:
    made = create(admin, alert_percents=[80, 50, 80])
    assert (made["amount_usd"], made["period"], made["alert_percents"]) == (10, "monthly", [50, 80])
    assert (made["project"], made["user"], made["version"]) == (None, None, 1)
    assert (made["spent_usd"], made["reserved_usd"], made["remaining_usd"], made["percent"]) == (0, 0, 10, 0)
    assert made["window"] == {"from": "2026-03-01T00:00:00Z", "to": "2026-04-01T00:00:00Z"}
    assert (made["exhausted_at"], made["alerts"], made["burn_usd_hr"]) == (None, [], 0)
    path = f"/budgets/{made['id']}"
    assert api.get(path).json() == made
    assert [b["id"] for b in api.get("/budgets").json()["data"]] == [made["id"]]
    changed = admin.put(path, json={"amount_usd": 12.5})
    assert (changed.json()["amount_usd"], changed.json()["version"], changed.headers["ETag"]) == (12.5, 2, '"2"')
    assert changed.json()["alert_percents"] == [50, 80]
    assert admin.delete(path).status_code == 204
    assert api.get(path).status_code == 404


def test_a_change_of_a_version_that_is_not_current_is_refused(admin: httpx.Client) -> None:
    path = f"/budgets/{create(admin)['id']}"
    for stale in ("2", '"7"', 'W/"1"', "*"):
        answer = admin.put(path, json={"amount_usd": 1}, headers={"If-Match": stale})
        assert (answer.status_code, answer.json()["error"]["code"]) == (412, "precondition_failed")
    assert admin.put(path, json={"amount_usd": 1}, headers={"If-Match": '"1"'}).status_code == 200
    assert admin.put(path, json={"amount_usd": 2}, headers={"If-Match": "2"}).status_code == 200


def test_one_budget_of_a_scope_and_period(admin: httpx.Client) -> None:
    create(admin)
    create(admin, user="amy")
    create(admin, period="total")
    answer = admin.post("/budgets", json={"amount_usd": 3})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "budget_exists")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("{}", "amount_usd"),
        ('{"amount_usd": -1}', "amount_usd"),
        ('{"amount_usd": "1"}', "amount_usd"),
        ('{"amount_usd": true}', "amount_usd"),
        ('{"amount_usd": null}', "amount_usd"),
        ('{"amount_usd": 1000000000.01}', "amount_usd"),
        ('{"amount_usd": 1e-19}', "amount_usd"),
        ('{"amount_usd": 9223372036854775808}', "amount_usd"),
        ('{"amount_usd": 1, "alert_percents": [0]}', "alert_percents"),
        ('{"amount_usd": 1, "alert_percents": [101]}', "alert_percents"),
        ('{"amount_usd": 1, "alert_percents": [1.5]}', "alert_percents"),
        ('{"amount_usd": 1, "alert_percents": [1,2,3,4,5,6,7,8,9,10,11]}', "alert_percents"),
        ('{"amount_usd": 1, "period": "weekly"}', "period"),
        ('{"amount_usd": 1, "project": "nothing"}', "project"),
        ('{"amount_usd": 1, "user": "' + "x" * 129 + '"}', "user"),
        ('{"amount_usd": 1, "currency": "EUR"}', "currency"),
    ],
)
def test_a_wrong_field_is_named(admin: httpx.Client, body: str, field: str) -> None:
    answer = admin.post("/budgets", content=body)
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (422, field), answer.text


@pytest.mark.parametrize("amount", ["0", "-0.0", "1e-9", "1e-18", "0.1", "123456789.123456789012345678", "1e9"])
def test_an_amount_is_kept_to_its_last_digit(admin: httpx.Client, amount: str) -> None:
    answer = admin.post("/budgets", content=f'{{"amount_usd": {amount}}}')
    assert answer.status_code == 201, answer.text
    shown = json.loads(admin.get(f"/budgets/{answer.json()['id']}").content, parse_float=Decimal)
    assert Decimal(shown["amount_usd"]) == Decimal(amount)


def test_a_key_of_a_project_sees_what_bounds_its_jobs(api: Api, admin: httpx.Client, factory: Factory) -> None:
    one, two = factory.project(name="one"), factory.project(name="two")
    everything, ones = create(admin)["id"], create(admin, project="one")["id"]
    assert {b["id"] for b in api.with_token(factory.key(project=one).token).get("/budgets").json()["data"]} == {
        everything,
        ones,
    }
    other = api.with_token(factory.key(project=two).token)
    assert {b["id"] for b in other.get("/budgets").json()["data"]} == {everything}
    assert other.get(f"/budgets/{ones}").status_code == 404


def test_lists_are_paged(admin: httpx.Client, clock: SettableClock) -> None:
    made = []
    for number in range(5):
        clock.advance(1)
        made.append(create(admin, user=f"user-{number}")["id"])
    first = admin.get("/budgets", params={"limit": 3}).json()
    second = admin.get("/budgets", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [b["id"] for b in first["data"] + second["data"]] == made
    assert (first["total"], second["next_cursor"]) == (5, None)


def test_a_budget_that_is_deleted_between_two_pages_hides_no_other(admin: httpx.Client) -> None:
    # Of one moment: their ids decide.
    made = {admin.post("/budgets", json={"amount_usd": 1, "user": f"user-{n}"}).json()["id"] for n in range(5)}
    first = admin.get("/budgets", params={"limit": 2}).json()
    assert admin.delete(f"/budgets/{first['data'][0]['id']}").status_code == 204
    second = admin.get("/budgets", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert {budget["id"] for budget in (*first["data"], *second["data"])} == made
    assert (second["total"], second["next_cursor"]) == (4, None)


def test_a_cluster_admin_looks_after_any_organizations_budgets(api: Api, factory: Factory) -> None:
    operator = api.with_token(factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN).token)
    answer = operator.post("/budgets", params={"org_id": api.key.org_id}, json={"amount_usd": 0})
    assert answer.json()["org_id"] == api.key.org_id
    assert api.create().json()["error"]["code"] == "budget_exhausted"


def test_a_create_that_a_budget_refuses_says_which_and_why(api: Api, admin: httpx.Client) -> None:
    budget = create(admin, 1)
    assert api.create(JOB).status_code == 201
    answer = api.create(JOB)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (403, "budget_exhausted")
    assert error["details"]["budget_id"] == budget["id"]
    assert "holds all that was free" in error["message"]
    assert api.get(f"/budgets/{budget['id']}").json()["reserved_usd"] == 1
    # What the budget refused left nothing behind: the same key makes the job once there is room.
    assert admin.put(f"/budgets/{budget['id']}", json={"amount_usd": 5}).status_code == 200
    limited = {**JOB, "limits": {"max_cost_usd": 2}}
    assert api.create(limited, key="again").status_code == 201
    assert api.create(limited, key="again").status_code == 200


async def test_the_official_client_is_told_as_well(api: Api, admin: httpx.Client) -> None:
    create(admin, 0)
    request: dict[str, Any] = {
        "idempotency_key": "k",
        "compute": {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 1},
        "container": {"image": "registry.example/app:1", "command": ["true"]},
    }
    with SDK(bearer_auth=api.key.token, server_url=api.url) as sdk:
        with pytest.raises(SDKDefaultError) as caught:
            sdk.compute_jobs.create_job(**request)
        assert caught.value.status_code == 403
        with pytest.raises(SDKDefaultError) as caught:
            await sdk.compute_jobs.create_job_async(**request)
        assert json.loads(caught.value.body)["error"]["code"] == "budget_exhausted"
