"""Organizations, projects, keys and the audit log: what administrators may, and what nobody may."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.services import Services
from domain.roles import Role
from store.db import Database
from store.vault import Vault
from tests.api.conftest import JOB, PREFIX, Api, served
from tests.support.clock import SettableClock
from tests.support.factory import Factory

ADMIN = "/api/v1/admin"


@pytest.fixture
def client(api: Api) -> Callable[[str], httpx.Client]:
    """A client of the Admin API with a token."""
    return lambda token: httpx.Client(
        base_url=api.url + ADMIN, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
    )


@pytest.fixture
def admin(client: Callable[[str], httpx.Client], factory: Factory) -> httpx.Client:
    """An admin of the organization of the factory's rows."""
    return client(factory.key(role=Role.ORG_ADMIN, owner="Ada").token)


@pytest.fixture
def operator(client: Callable[[str], httpx.Client], factory: Factory) -> httpx.Client:
    """A cluster admin, of an organization of its own."""
    return client(factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN, owner="Root").token)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


class TestOrganizations:
    def test_one_is_created_listed_by_name_and_got(self, operator: httpx.Client) -> None:
        made = operator.post("/organizations", json={"name": "acme", "max_live_jobs": 2})
        assert made.status_code == 201
        body = made.json()
        assert (body["name"], body["enabled"], body["max_live_jobs"]) == ("acme", False, 2)
        assert operator.get(f"/organizations/{body['org_id']}").json() == body
        assert operator.get("/organizations", params={"name": "acme"}).json()["data"] == [body]
        assert code(operator.post("/organizations", json={"name": "acme"})) == (409, "organization_name_conflict")
        assert operator.get("/projects", params={"org_id": body["org_id"]}).json()["data"][0]["name"] == "default"

    def test_an_admin_sees_its_own_and_creates_none(
        self, admin: httpx.Client, operator: httpx.Client, api: Api
    ) -> None:
        other = operator.post("/organizations", json={"name": "acme"}).json()["org_id"]
        assert [o["org_id"] for o in admin.get("/organizations").json()["data"]] == [api.key.org_id]
        assert admin.get(f"/organizations/{api.key.org_id}").status_code == 200
        assert code(admin.get(f"/organizations/{other}")) == (404, "not_found")
        assert code(admin.post("/organizations", json={"name": "mine"})) == (403, "forbidden")


class TestProjects:
    def test_one_is_created_once_and_used_by_a_job(self, admin: httpx.Client, api: Api) -> None:
        made = admin.post("/projects", json={"name": "research"})
        assert (made.status_code, made.json()["org_id"]) == (201, api.key.org_id)
        assert code(admin.post("/projects", json={"name": "research"})) == (409, "project_name_conflict")
        assert api.create({**JOB, "project": "research"}).json()["project"] == "research"

    def test_pages_of_them_hold_each_once_by_name(self, admin: httpx.Client) -> None:
        for name in ("c", "a", "b"):
            admin.post("/projects", json={"name": name})
        names, cursor = [], None
        while True:
            page = admin.get("/projects", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
            names += [project["name"] for project in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert names == ["a", "b", "c", "default"]

    def test_members_list_them_and_a_key_of_a_project_sees_that_one(
        self, client: Callable[[str], httpx.Client], factory: Factory, api: Api
    ) -> None:
        project = factory.project(name="research")
        assert client(api.key.token).get("/projects").json()["total"] == 2
        seen = client(factory.key(project=project).token).get("/projects").json()
        assert (seen["total"], seen["data"][0]["name"]) == (1, "research")
        assert code(client(api.key.token).post("/projects", json={"name": "x"})) == (403, "forbidden")

    def test_another_organization_is_not_there(self, admin: httpx.Client, factory: Factory) -> None:
        other = factory.organization().id
        assert code(admin.post("/projects", json={"name": "x", "org_id": other})) == (404, "not_found")
        assert code(admin.get("/projects", params={"org_id": other})) == (404, "not_found")


class TestKeys:
    def test_the_token_is_shown_once_and_works(
        self, admin: httpx.Client, client: Callable[[str], httpx.Client], api: Api, clock: SettableClock
    ) -> None:
        made = admin.post("/keys", json={"owner": "Bob", "role": "member", "name": "laptop"})
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        body = made.json()
        token = body.pop("token")
        assert api.with_token(token).post("/jobs", json=JOB, headers={"Idempotency-Key": "k"}).status_code == 201
        assert admin.get(f"/keys/{body['id']}").json() == body
        assert body in admin.get("/keys").json()["data"]
        assert token not in admin.get("/keys").text + admin.get("/audit").text
        assert (body["owner"], body["role"], body["name"], body["project"]) == ("Bob", "member", "laptop", None)

    def test_a_revoked_key_is_refused_and_stays_in_the_list(self, admin: httpx.Client, api: Api) -> None:
        revoked = admin.post(f"/keys/{api.key.key_id}/revoke")
        assert revoked.status_code == 200
        assert revoked.json()["revoked_at"] is not None
        assert api.get("/jobs").status_code == 401
        assert admin.post(f"/keys/{api.key.key_id}/revoke").json() == revoked.json()
        listed = admin.get("/keys", params={"active": False}).json()
        assert [key["id"] for key in listed["data"]] == [api.key.key_id]
        actions = [entry["action"] for entry in admin.get("/audit").json()["data"]]
        assert actions.count("key.revoke") == 1

    def test_an_expired_key_is_refused_from_its_moment_on(
        self, admin: httpx.Client, api: Api, clock: SettableClock
    ) -> None:
        at = clock()
        clock.advance(-60)
        body = {"owner": "Bob", "role": "viewer", "expires_at": at.isoformat()}
        token = admin.post("/keys", json=body).json()["token"]
        assert api.with_token(token).get("/jobs").status_code == 200
        clock.advance(60)
        assert api.with_token(token).get("/jobs").status_code == 401
        assert admin.get("/keys", params={"active": True, "owner": "Bob"}).json()["total"] == 0
        refused = admin.post("/keys", json=body)
        assert refused.json()["error"]["details"]["field"] == "expires_at"

    @pytest.mark.parametrize("role", list(Role))
    def test_nobody_makes_or_revokes_a_key_above_its_own_role(
        self, client: Callable[[str], httpx.Client], factory: Factory, role: Role
    ) -> None:
        mine = client(factory.key(role=role).token)
        for other in Role:
            may = role.includes(Role.ORG_ADMIN) and role.includes(other)
            made = mine.post("/keys", json={"owner": "x", "role": other})
            assert made.status_code == (201 if may else 403), (role, other)
            theirs = factory.key(role=other)
            assert mine.post(f"/keys/{theirs.key_id}/revoke").status_code == (200 if may else 403), (role, other)

    def test_keys_of_another_organization_are_not_there(self, admin: httpx.Client, factory: Factory) -> None:
        organization = factory.organization()
        theirs = factory.key(organization)
        assert code(admin.get(f"/keys/{theirs.key_id}")) == (404, "not_found")
        assert code(admin.post(f"/keys/{theirs.key_id}/revoke")) == (404, "not_found")
        assert code(admin.get("/keys", params={"org_id": organization.id})) == (404, "not_found")
        new = {"owner": "x", "role": "member", "org_id": organization.id}
        assert code(admin.post("/keys", json=new)) == (404, "not_found")
        assert theirs.key_id not in admin.get("/keys").text

    def test_a_cluster_admin_makes_keys_anywhere(self, operator: httpx.Client, factory: Factory) -> None:
        organization = factory.organization()
        made = operator.post("/keys", json={"owner": "x", "role": "org_admin", "org_id": organization.id})
        assert made.json()["org_id"] == organization.id
        unknown = operator.post("/keys", json={"owner": "x", "role": "member", "org_id": "org_unknown"})
        assert code(unknown) == (404, "not_found")

    def test_a_key_of_a_project_names_it_and_is_no_admins(self, admin: httpx.Client, factory: Factory) -> None:
        factory.project(name="research")
        made = admin.post("/keys", json={"owner": "x", "role": "member", "project": "research"})
        assert made.json()["project"] == "research"
        refused = admin.post("/keys", json={"owner": "x", "role": "org_admin", "project": "research"})
        assert refused.json()["error"]["details"]["field"] == "project"
        assert admin.post("/keys", json={"owner": "x", "role": "member", "project": "no"}).status_code == 404

    def test_pages_hold_each_key_once_the_newest_first(self, admin: httpx.Client, clock: SettableClock) -> None:
        made = []
        for number in range(5):
            clock.advance(number % 2)
            made.append(admin.post("/keys", json={"owner": "Bob", "role": "viewer"}).json())
        seen, cursor = [], None
        while True:
            parameters = {"limit": 2, "owner": "Bob", **({"cursor": cursor} if cursor else {})}
            page = admin.get("/keys", params=parameters).json()
            assert page["total"] == 5
            seen += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert {key["id"] for key in seen} == {key["id"] for key in made}
        assert [key["created_at"] for key in seen] == sorted((key["created_at"] for key in made), reverse=True)


def test_a_revocation_is_effective_at_once_in_every_process(
    postgres_url: str, vault: Vault, clock: SettableClock, settings: Any
) -> None:
    """Two API processes, as two applications with connections of their own, both warm with the key."""
    from store.logs.blobs import open_blob_store
    from store.logs.store import LogStore

    databases = [Database(postgres_url), Database(postgres_url)]
    factory = Factory(databases[0], clock, vault)
    boss, victim = factory.key(role=Role.ORG_ADMIN), factory.key()
    apps = [
        create_app(Services(settings, db, vault, LogStore(db, open_blob_store(settings.segment_url), clock), clock))
        for db in databases
    ]
    with served(apps[0]) as first, served(apps[1]) as second:
        mine = httpx.Client(headers={"Authorization": f"Bearer {victim.token}"}, timeout=60, trust_env=False)
        for url in (first, second) * 3:
            assert mine.get(f"{url}{PREFIX}/jobs").status_code == 200
        headers = {"Authorization": f"Bearer {boss.token}"}
        revoke = f"{first}{ADMIN}/keys/{victim.key_id}/revoke"
        assert httpx.post(revoke, headers=headers, timeout=60, trust_env=False).status_code == 200
        for url in (first, second):
            assert mine.get(f"{url}{PREFIX}/jobs").status_code == 401
    for database in databases:
        database.close()


class TestAudit:
    def test_every_operation_leaves_one_entry_and_a_repeat_none(
        self, admin: httpx.Client, operator: httpx.Client, api: Api, client: Callable[[str], httpx.Client]
    ) -> None:
        org_id = api.key.org_id
        named = {"X-On-Behalf-Of": "end-user-7", "X-Request-Id": "req-1"}
        job = api.create(JOB, key="1", **named).json()["id"]
        api.create(JOB, key="1", **named)
        for _ in range(2):
            api.client.post(f"/jobs/{job}/terminate", headers=named)
            api.client.post(f"/jobs/{job}/rerun", headers={"Idempotency-Key": "2"})
            httpx.put(
                f"{api.url}{PREFIX}/tenants/{org_id}",
                json={"max_live_jobs": 7},
                headers=dict(operator.headers),
                timeout=60,
                trust_env=False,
            )
        admin.post("/projects", json={"name": "research"})
        admin.post("/projects", json={"name": "research"})
        key = admin.post("/keys", json={"owner": "Bob", "role": "viewer"}).json()["id"]
        entries = admin.get("/audit", params={"order": "asc"}).json()["data"]
        assert [(entry["action"], entry["owner"]) for entry in entries] == [
            ("job.create", "someone"),
            ("job.terminate", "someone"),
            ("job.rerun", "someone"),
            ("tenant.put", "Root"),
            ("project.create", "Ada"),
            ("key.create", "Ada"),
        ]
        first = entries[0]
        assert (first["resource"], first["on_behalf_of"], first["request_id"]) == (job, "end-user-7", "req-1")
        assert (first["key_id"], first["role"], first["org_id"]) == (api.key.key_id, "member", org_id)
        assert entries[2]["data"] == {"project": "default", "of": job}
        assert entries[3]["data"] == {"max_live_jobs": 7}
        assert entries[5]["resource"] == key

    def test_it_is_read_by_filters_and_pages_within_one_traversal(self, admin: httpx.Client, api: Api) -> None:
        for number in range(5):
            api.create(JOB, key=str(number))
        page = admin.get("/audit", params={"action": "job.create", "limit": 3}).json()
        assert (len(page["data"]), page["total"]) == (3, 5)
        rest = admin.get("/audit", params={"action": "job.create", "limit": 3, "cursor": page["next_cursor"]}).json()
        assert len({entry["id"] for entry in page["data"] + rest["data"]}) == 5
        other = admin.get("/audit", params={"order": "asc", "action": "job.create", "cursor": page["next_cursor"]})
        assert code(other) == (400, "invalid_cursor")
        resource = page["data"][0]["resource"]
        assert admin.get("/audit", params={"resource": resource}).json()["total"] == 1
        now = page["data"][0]["timestamp"]
        assert admin.get("/audit", params={"since": now}).json()["total"] == 5
        assert admin.get("/audit", params={"until": now}).json()["total"] == 0
        wrong = admin.get("/audit", params={"since": "yesterday"})
        assert wrong.json()["error"]["details"]["field"] == "since"

    def test_an_admin_reads_its_own_organizations_and_a_cluster_admin_all(
        self, admin: httpx.Client, operator: httpx.Client, api: Api, factory: Factory
    ) -> None:
        other = factory.organization()
        operator.post("/projects", json={"name": "research", "org_id": other.id})
        api.create(JOB)
        assert {entry["org_id"] for entry in admin.get("/audit").json()["data"]} == {api.key.org_id}
        assert {entry["org_id"] for entry in operator.get("/audit").json()["data"]} == {api.key.org_id, other.id}
        assert operator.get("/audit", params={"org_id": other.id}).json()["total"] == 1
        assert code(admin.get("/audit", params={"org_id": other.id})) == (404, "not_found")

    def test_a_member_does_not_read_it(self, client: Callable[[str], httpx.Client], api: Api) -> None:
        assert code(client(api.key.token).get("/audit")) == (403, "forbidden")
