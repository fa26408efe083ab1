"""Tenants through the official client and over HTTP: who may, what is kept, what is refused, and what follows."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from meetkai_mka1 import SDK
from meetkai_mka1.errors import SDKDefaultError

from domain.roles import Role
from tests.api.conftest import JOB, Api
from tests.api.test_official_client import Caller
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def operator(api: Api, factory: Factory) -> httpx.Client:
    """A cluster admin's client, of an organization of its own."""
    return api.with_token(factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN).token)


@pytest.fixture
def sdk(api: Api, factory: Factory) -> Iterator[SDK]:
    key = factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN)
    with SDK(bearer_auth=key.token, server_url=api.url) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param == "async")


async def test_a_tenant_is_put_got_changed_and_listed(sdk: SDK, call: Caller, clock: SettableClock) -> None:
    tenants = sdk.compute_tenants
    made = await call(tenants, "put_compute_tenant", org_id="acme", enabled=True, max_live_jobs=3)
    assert (made.org_id, made.enabled, made.max_live_jobs, made.max_live_volumes) == ("acme", True, 3, None)
    assert made.created_at == made.updated_at == clock()
    clock.advance(60)
    changed = await call(tenants, "put_compute_tenant", org_id="acme", max_live_jobs=None, max_live_services=0)
    assert (changed.enabled, changed.max_live_jobs, changed.max_live_services) == (True, None, 0)
    assert (changed.created_at, changed.updated_at) == (made.created_at, clock())
    assert await call(tenants, "get_compute_tenant", org_id="acme") == changed
    listed = await call(tenants, "list_compute_tenants", enabled=True, limit=2)
    assert (listed.total, len(listed.data)) == (3, 2)
    rest = await call(tenants, "list_compute_tenants", enabled=True, limit=2, cursor=listed.next_cursor)
    assert [tenant.org_id for tenant in (*listed.data, *rest.data)].count("acme") == 1
    assert rest.next_cursor is None
    assert (await call(tenants, "list_compute_tenants", enabled=False)).total == 0


async def test_only_a_cluster_admin_may(api: Api, call: Caller, factory: Factory) -> None:
    for role in set(Role) - {Role.CLUSTER_ADMIN}:
        with SDK(bearer_auth=factory.key(role=role).token, server_url=api.url) as sdk:
            for operation, arguments in (
                ("list_compute_tenants", {}),
                ("get_compute_tenant", {"org_id": api.key.org_id}),
                ("put_compute_tenant", {"org_id": api.key.org_id, "max_live_jobs": 1_000}),
            ):
                with pytest.raises(SDKDefaultError) as caught:
                    await call(sdk.compute_tenants, operation, **arguments)
                assert caught.value.status_code == 403


def test_the_fields_of_ours_are_kept_too(operator: httpx.Client) -> None:
    ours = {"name": "acme-inc", "time_zone": "Europe/Berlin", "provider_anonymity": True}
    answer = operator.put("/tenants/acme", json=ours)
    assert answer.status_code == 200
    assert ours.items() <= answer.json().items()
    assert operator.put("/tenants/acme", json={"name": None}).json()["name"] == "acme"


@pytest.mark.parametrize(
    ("body", "field", "limit"),
    [
        ({"max_live_jobs": -1}, "max_live_jobs", 0),
        ({"max_live_jobs": 2**31}, "max_live_jobs", 2**31 - 1),
        ({"max_live_jobs": 2**63}, "max_live_jobs", 2**31 - 1),
        ({"max_live_jobs": "3"}, "max_live_jobs", None),
        ({"max_live_jobs": True}, "max_live_jobs", None),
        ({"max_live_jobs": 1.5}, "max_live_jobs", None),
        ({"max_live_jobs": -0.0}, "max_live_jobs", None),
        ({"max_live_jobs": 1e-9}, "max_live_jobs", None),
        ({"enabled": None}, "enabled", None),
        ({"enabled": 1}, "enabled", None),
        ({"time_zone": "Mars/Olympus"}, "time_zone", None),
        ({"time_zone": "../../etc/passwd"}, "time_zone", None),
        ({"time_zone": "posixrules"}, "time_zone", None),
        ({"time_zone": "localtime"}, "time_zone", None),
        ({"time_zone": "right/UTC"}, "time_zone", None),
        ({"name": "a b"}, "name", None),
        ({"max_live_job": 1}, "max_live_job", None),
        ([], "body", None),
    ],
)
def test_a_wrong_field_is_named_with_its_limit(operator: httpx.Client, body: Any, field: str, limit: Any) -> None:
    answer = operator.put("/tenants/acme", json=body)
    assert answer.status_code == 422, answer.text
    details = answer.json()["error"]["details"]
    assert (details["field"], details.get("limit")) == (field, limit)
    assert operator.get("/tenants/acme").status_code == 404


@pytest.mark.parametrize("body", [b"", b"NaN", b'{"max_live_jobs": NaN}', b"{"])
def test_what_is_no_json_is_refused(operator: httpx.Client, body: bytes) -> None:
    answer = operator.put("/tenants/acme", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_an_id_or_a_name_that_is_taken_or_malformed_is_refused(operator: httpx.Client) -> None:
    assert operator.put("/tenants/-x", json={}).status_code == 422
    assert operator.get("/tenants/-x").status_code == 404
    refused = operator.put("/tenants/acme", json={"name": "operators"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "organization_name_conflict")


def test_a_disabled_organization_reads_and_terminates_and_creates_nothing(api: Api, operator: httpx.Client) -> None:
    job = api.create(key="first").json()
    assert operator.put(f"/tenants/{api.key.org_id}", json={"enabled": False}).status_code == 200
    refused = api.create(JOB)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_disabled")
    assert api.create(key="first").status_code == 200
    rerun = api.client.post(f"/jobs/{job['id']}/rerun", headers={"Idempotency-Key": "again"})
    assert (rerun.status_code, rerun.json()["error"]["code"]) == (403, "tenant_disabled")
    for path in ("/jobs", f"/jobs/{job['id']}", f"/jobs/{job['id']}/events", f"/jobs/{job['id']}/logs"):
        assert api.get(path).status_code == 200
    assert api.client.post(f"/jobs/{job['id']}/terminate").status_code == 200
    operator.put(f"/tenants/{api.key.org_id}", json={"enabled": True})
    assert api.create(JOB).status_code == 201


def test_a_cap_is_answered_with_its_field_and_limit(api: Api, operator: httpx.Client) -> None:
    operator.put(f"/tenants/{api.key.org_id}", json={"max_live_jobs": 1})
    assert api.create(JOB).status_code == 201
    refused = api.create(JOB)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_limit_reached")
    assert refused.json()["error"]["details"] == {"field": "max_live_jobs", "limit": 1}
