"""Connecting backends: what is filled in is checked, verified by a worker, sealed, and never shown again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import Session, select

from domain.backends import backend_of
from domain.roles import Role
from domain.states import InstanceState, JobState
from settings import Settings
from store import connection_reach, connections
from store.access import NewKey
from store.connections import ConnectionState, Scope
from store.tables import Connection, InboxRow, Job
from tests.api.conftest import Api
from tests.api.market import GPU, Market
from tests.support.clock import SettableClock
from tests.support.factory import Factory

SECRET = "canary-runpod-key-93ab"
PATH = "/api/compute/cloud/backends"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, body_timeout_seconds=3, public_url="https://headrace.example")


class Caller:
    def __init__(self, api: Api, key: NewKey) -> None:
        self.client = httpx.Client(
            base_url=api.url, headers={"Authorization": f"Bearer {key.token}"}, timeout=60, trust_env=False
        )

    def __call__(self, method: str, path: str = "", body: Any = None, **parameters: Any) -> httpx.Response:
        return self.client.request(method, PATH + path, json=body, params=parameters)


@pytest.fixture
def admin(api: Api, factory: Factory) -> Caller:
    return Caller(api, factory.key(role=Role.ORG_ADMIN))


@pytest.fixture
def operator(api: Api, factory: Factory) -> Caller:
    return Caller(api, factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN))


def connect(caller: Caller, *, key: str = SECRET, **body: Any) -> httpx.Response:
    return caller("POST", "", {"provider": "runpod", "fields": {"api_key": key}, **body})


def verified(api: Api, connection_id: str, status: str = "ok", message: str = "") -> None:
    """As a worker would."""
    now = api.services.clock()

    def settle(session: Session) -> None:
        row = session.get_one(Connection, connection_id)
        connections.verified(session, row.id, row.verification, status, message, now)

    api.write(settle)


def connected(api: Api, caller: Caller, **body: Any) -> str:
    connection_id = str(connect(caller, **body).json()["id"])
    verified(api, connection_id)
    return connection_id


def row_of(api: Api, connection_id: str) -> Connection:
    return api.services.db.run_read(lambda s: s.get_one(Connection, connection_id))


def test_the_catalog_has_the_nine_backends_and_says_which_can_be_connected(api: Api, admin: Caller) -> None:
    found = {form["provider"]: form for form in admin("GET", "/catalog").json()["data"]}
    assert list(found) == ["aws", "azure", "gcp", "runpod", "modal", "nebius", "oci", "vastai", "ssh"]
    assert {name for name, form in found.items() if form["available"]} >= {"aws", "gcp", "runpod"}
    aws = {field["name"]: field["secret"] for field in found["aws"]["fields"]}
    assert [name for name, secret in aws.items() if secret] == ["secret_access_key"]
    assert list(aws) == ["access_key_id", "secret_access_key", "regions", "security_group_ids", "subnet_ids"]


def test_what_is_filled_in_is_pending_and_sealed_until_a_worker_verified_it(api: Api, admin: Caller) -> None:
    answer = connect(admin, name="pods")
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    row = row_of(api, answer.json()["id"])
    assert row.credentials_sealed is None
    assert row.candidate_sealed is not None
    assert SECRET.encode() not in row.candidate_sealed
    (inbox,) = api.services.db.run_read(lambda s: s.exec(select(InboxRow)).all())
    assert (inbox.job_id, inbox.kind, inbox.payload) == (row.id, "verify", {"number": 1})
    verified(api, row.id)
    shown = admin("GET", f"/{row.id}")
    assert shown.json()["state"] == "connected"
    assert SECRET not in shown.text + admin("GET").text


def test_what_was_refused_is_wiped_and_may_be_connected_anew(api: Api, admin: Caller) -> None:
    connection_id = connect(admin, name="pods").json()["id"]
    verified(api, connection_id, "auth", "the key is not known")
    row = row_of(api, connection_id)
    assert (row.state, row.candidate_sealed, row.credentials_sealed) == (ConnectionState.FAILED, None, None)
    assert admin("GET", f"/{connection_id}").json()["verification"]["message"] == "the key is not known"
    again = connect(admin, name="pods")
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, connection_id, "pending")
    assert connect(admin, name="pods").json()["error"]["code"] == "connection_name_conflict"


def test_what_nobody_verifies_is_wiped_after_fifteen_minutes(api: Api, admin: Caller, clock: SettableClock) -> None:
    connection_id = connect(admin).json()["id"]
    clock.advance(minutes=14)
    assert api.write(lambda s: connections.expire_candidates(s, clock())) == 0
    clock.advance(minutes=2)
    vault = api.services.vault
    assert api.services.db.run_read(lambda s: connections.to_verify(s, vault, connection_id, 1, clock())) is None
    assert api.write(lambda s: connections.expire_candidates(s, clock())) == 1
    row = row_of(api, connection_id)
    assert (row.state, row.candidate_sealed) == (ConnectionState.FAILED, None)
    # An outcome that comes too late changes nothing.
    verified(api, connection_id)
    assert row_of(api, connection_id).state == ConnectionState.FAILED


def test_an_edit_keeps_a_blank_secret_and_is_in_use_only_once_verified(api: Api, admin: Caller) -> None:
    connection_id = connected(api, admin)
    vault = api.services.vault
    answer = admin("PUT", f"/{connection_id}", {"fields": {"api_key": "", "include_community": True}})
    assert (answer.status_code, answer.json()["state"]) == (202, "connected")
    assert connections.values_of(vault, row_of(api, connection_id)) == {"api_key": SECRET}
    verified(api, connection_id, "unreachable", "no answer")
    assert connections.values_of(vault, row_of(api, connection_id)) == {"api_key": SECRET}
    assert row_of(api, connection_id).revision == 1
    admin("PUT", f"/{connection_id}", {"fields": {"include_community": True}})
    verified(api, connection_id)
    assert connections.values_of(vault, row_of(api, connection_id)) == {"api_key": SECRET, "include_community": True}
    assert row_of(api, connection_id).revision == 2


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"provider": "azure", "fields": {}}, "provider", "backend_unavailable"),
        ({"provider": "nowhere", "fields": {}}, "provider", "backend_unavailable"),
        ({"provider": "runpod", "fields": {}}, "fields.api_key", "invalid_request"),
        ({"provider": "runpod", "fields": {"api_key": SECRET, "include_community": "yes"}}, "fields.include_community",
         "invalid_request"),
        ({"provider": "runpod", "fields": {"api_key": SECRET * 20}}, "fields.api_key", "invalid_request"),
        ({"provider": "runpod", "fields": {"api_key": SECRET, "endpoint": "http://169.254.169.254"}}, "fields",
         "invalid_request"),
        ({"provider": "aws", "fields": {"access_key_id": "A" * 20, "secret_access_key": SECRET,
                                        "regions": ["us-east-1.evil.example/"]}}, "fields.regions", "invalid_request"),
    ],
)  # fmt: skip
def test_a_form_that_is_not_right_is_refused(admin: Caller, body: dict[str, Any], field: str, code: str) -> None:
    answer = admin("POST", "", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["details"]["field"]) == (422, code, field)
    assert SECRET not in answer.text


def test_a_remote_backend_is_refused_while_there_is_no_public_url(api: Api, admin: Caller) -> None:
    api.services.settings.public_url = None
    answer = connect(admin)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "public_url_not_set")
    assert "HEADRACE_PUBLIC_URL" in answer.json()["error"]["message"]


def test_only_cluster_admins_connect_for_the_cluster(api: Api, admin: Caller, operator: Caller) -> None:
    assert connect(admin, cluster=True).status_code == 403
    connection_id = connected(api, operator, cluster=True)
    seen = admin("GET", f"/{connection_id}").json()
    assert (seen["scope"], seen["fields"], seen["org_id"]) == ("cluster", None, None)
    assert admin("DELETE", f"/{connection_id}").status_code == 403
    assert operator("DELETE", f"/{connection_id}").status_code == 204


def test_one_with_live_instances_is_not_removed_unless_they_are_terminated(
    api: Api, admin: Caller, factory: Factory, clock: SettableClock
) -> None:
    connection_id = connected(api, admin)
    job = factory.job(JobState.RUNNING, name="train", started_at=clock())
    instance = factory.instance(
        job, InstanceState.RUNNING, connection_id=connection_id, allocated_at=clock(), handle={"provider_id": "p"}
    )
    factory.price(instance, "1.380")
    shown = admin("GET", f"/{connection_id}").json()
    assert (shown["live_instances"], shown["hourly_cost_usd"]) == (1, 1.38)
    answer = admin("DELETE", f"/{connection_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "connection_in_use")
    assert answer.json()["error"]["details"]["jobs"] == [{"id": job.id, "name": "train"}]
    answer = admin("DELETE", f"/{connection_id}", force="terminate")
    assert (answer.status_code, answer.json()["state"]) == (202, "removing")
    assert api.services.db.run_read(lambda s: s.get_one(Job, job.id).state) == JobState.TERMINATING
    # What was rented must be given back: its credentials stay until then, for nothing new.
    assert connection_id in api.services.db.run_read(connections.revisions)
    assert not api.write(lambda s: connection_reach.may_still_use(s, connection_id))
    assert api.write(connections.finish_removals) == []

    def gone(session: Session) -> None:
        session.get_one(type(instance), instance.id).confirmed_absent_at = clock()

    api.write(gone)
    assert api.write(connections.finish_removals) == [connection_id]
    assert admin("GET", f"/{connection_id}").status_code == 404


def test_an_organization_neither_sees_nor_quotes_what_another_connected(
    api: Api, admin: Caller, factory: Factory, operator: Caller
) -> None:
    ours = connected(api, admin, name="ours")
    strangers = factory.organization("strangers")
    stranger = Caller(api, factory.key(strangers, role=Role.ORG_ADMIN))
    theirs = connected(api, stranger, name="theirs")
    project = factory.project(name="research")
    of_project = connected(api, admin, name="research's", project="research")
    market = Market(api)
    for connection_id, price in ((ours, "0.50"), (theirs, "0.10"), (of_project, "0.20")):
        offer = market.offer("runpod", "o", connection_id=connection_id, price_usd_hr=price)
        api.write(_polled(api, connection_id, offer))
    names = {caller: [row["name"] for row in caller("GET").json()["data"]] for caller in (admin, stranger, operator)}
    assert set(names[admin]) == {"ours", "research's"}
    assert names[stranger] == ["theirs"]
    assert set(names[operator]) == {"ours", "theirs", "research's"}
    assert stranger("GET", f"/{ours}").status_code == 404

    def quoted(key: NewKey) -> Any:
        body = {
            "resource_type": "job",
            "compute": {"accelerator": GPU, "gpu_count": 1, "ephemeral_disk_gb": 10},
            "container": {"image": "registry.example/app:1"},
        }
        return api.with_token(key.token).post("/catalog/quotes", json=body).json()["price_usd_hr"]["min"]

    assert quoted(factory.key()) == 0.5
    assert quoted(factory.key(project=project)) == 0.2
    assert quoted(factory.key(strangers)) == 0.1

    def listed(caller: Caller) -> set[float]:
        found = caller.client.get("/api/v1/compute/catalog/offers").json()["data"]
        return {offer["price_usd_hr"] for offer in found}

    assert listed(stranger) == {0.1}
    assert listed(admin) == {0.5, 0.2}
    assert listed(operator) == {0.5, 0.1, 0.2}
    assert len(stranger.client.get("/api/v1/compute/catalog/providers").json()["data"]) == 1


def _polled(api: Api, connection_id: str, offer: Any) -> Callable[[Session], Any]:
    from store import offers
    from tests.api.market import ABLE

    now = api.services.clock()
    return lambda s: offers.replace(s, connection_id, "runpod", ABLE, offers.Snapshot.of([offer]), 42, now)


def test_jobs_reach_what_the_cluster_their_organization_and_their_project_connected(
    api: Api, factory: Factory, clock: SettableClock
) -> None:
    vault, backend = api.services.vault, backend_of("runpod")
    project = factory.project(name="research")
    other = factory.organization("others")
    made: dict[str, str] = {}
    for name, scope in (
        ("cluster", Scope()), ("org", Scope(project.org_id)), ("project", Scope(project.org_id, project.id)),
        ("other", Scope(other.id)),
    ):  # fmt: skip
        row = api.write(
            lambda s, n=name, o=scope: connections.connect(s, vault, o, backend, n, {"api_key": n}, clock())
        )
        verified(api, row.id)
        made[name] = row.id
    reach = api.services.db.run_read(lambda s: connection_reach.reach_of_job(s, project.org_id, project.id))
    assert {name for name, id_ in made.items() if id_ in reach} == {"cluster", "org", "project"}
    reach = api.services.db.run_read(lambda s: connection_reach.reach_of_job(s, project.org_id, "another"))
    assert {name for name, id_ in made.items() if id_ in reach} == {"cluster", "org"}
    reach = api.services.db.run_read(lambda s: connection_reach.reach_of_job(s, other.id, "another"))
    assert {name for name, id_ in made.items() if id_ in reach} == {"cluster", "other"}
    assert "local" in reach


def test_readiness_tells_of_connections_that_nothing_can_be_rented_from(api: Api, admin: Caller) -> None:
    connected(api, admin)
    assert "public_url" not in httpx.get(f"{api.url}/readyz", trust_env=False).text
    api.services.settings.public_url = None
    parts = httpx.get(f"{api.url}/readyz", trust_env=False).json()["error"]["details"]["parts"]
    assert parts["public_url"]["status"] == "warning"
    assert "HEADRACE_PUBLIC_URL" in parts["public_url"]["message"]
