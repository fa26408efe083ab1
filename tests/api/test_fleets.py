"""Fleets by the API: hosts with keys of their own, what is told of each host, and pins that are forgotten."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import Session

from api.compute import backends
from api.services import Services
from domain.backends import backend_of
from domain.roles import Role
from settings import Settings
from store import connections, host_keys
from store.tables import Connection
from tests.api.conftest import Api
from tests.support.factory import Factory

PATH = "/api/compute/cloud/backends"
KEY = "canary-key-of-the-fleet-51"
OWN = "canary-key-of-a-host-52"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, body_timeout_seconds=3)


class Caller:
    """Calls the operations on backends with a key."""

    def __init__(self, api: Api, token: str) -> None:
        self._client, self._url = api.with_token(token), api.url + PATH

    def get(self, path: str = "", **parameters: Any) -> httpx.Response:
        return self._client.get(path if path.startswith("http") else self._url + path, params=parameters)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self._client.post(self._url + path, json=body)

    def put(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.put(self._url + path, json=body, headers=named)


@pytest.fixture
def admin(api: Api, factory: Factory) -> Caller:
    return Caller(api, factory.key(role=Role.ORG_ADMIN).token)


def add(client: Caller, *hosts: Any, name: str = "lab", **body: Any) -> httpx.Response:
    fields = {"private_key": KEY, "hosts": list(hosts), **body.pop("fields", {})}
    return client.post("", {"provider": "ssh", "name": name, "fields": fields, **body})


def report(hostname: str, status: str = "ok", **more: Any) -> dict[str, Any]:
    return {
        "hostname": hostname, "status": status, "usable": status == "ok", "message": f"about {hostname}",
        "driver": None, "engine": "docker 28.0",
        "gpus": ["NVIDIA H100 80GB HBM3 (81559 MiB)"] * 2 if status == "ok" else [],
        "vcpus": 16, "memory_gb": 64.5, "disk_gb": 200, "host_key_fingerprint": "SHA256:x", **more,
    }  # fmt: skip


def settle(api: Api, fleet_id: str, status: str, *hosts: dict[str, Any]) -> None:
    """As a worker would."""
    now = api.services.clock()

    def write(session: Session) -> None:
        number = session.get_one(Connection, fleet_id).verification
        connections.verified(session, fleet_id, number, status, "said", now, list(hosts))

    api.write(write)


def values_of(api: Api, fleet_id: str) -> Any:
    vault = api.services.vault
    return api.services.db.run_read(lambda s: connections.values_of(vault, s.get_one(Connection, fleet_id)))


def test_the_form_says_what_a_host_takes(admin: Caller) -> None:
    forms = {form["provider"]: form for form in admin.get("/catalog").json()["data"]}
    hosts = next(field for field in forms["ssh"]["fields"] if field["name"] == "hosts")
    assert (hosts["kind"], hosts["key"], hosts["max_entries"], hosts["secret"]) == ("records", "hostname", 256, False)
    port = hosts["fields"][1]
    assert (port["kind"], port["minimum"], port["maximum"], port["max_entries"]) == ("number", 1, 65_535, None)
    assert [(field["name"], field["secret"]) for field in hosts["fields"]] == [
        ("hostname", False), ("port", False), ("user", False), ("private_key", True), ("host_key", False),
        ("price_usd_hr", False), ("cpu_slots", False), ("address", False),
    ]  # fmt: skip


def test_a_key_of_a_host_is_sealed_never_shown_and_kept_where_an_edit_leaves_it_blank(api: Api, admin: Caller) -> None:
    made = add(admin, "root@192.0.2.1", {"hostname": "192.0.2.2", "port": 2222, "private_key": OWN})
    fleet_id = made.json()["id"]
    settle(api, fleet_id, "ok", report("192.0.2.1"), report("192.0.2.2"))
    shown = admin.get(f"/{fleet_id}")
    hosts = shown.json()["fields"]["hosts"]
    assert hosts == [{"hostname": "192.0.2.1", "user": "root"}, {"hostname": "192.0.2.2", "port": 2222}]
    row = api.services.db.run_read(lambda s: s.get_one(Connection, fleet_id))
    assert OWN.encode() not in row.credentials_sealed
    # What is shown may be sent back, in another order.
    edited = admin.put(f"/{fleet_id}", {"fields": {"hosts": [hosts[1], "192.0.2.3", hosts[0]]}})
    assert edited.status_code == 202, edited.text
    settle(api, fleet_id, "ok", report("192.0.2.2"))
    assert values_of(api, fleet_id) == {
        "private_key": KEY,
        "hosts": [
            {"hostname": "192.0.2.2", "port": 2222, "private_key": OWN},
            {"hostname": "192.0.2.3"},
            {"hostname": "192.0.2.1", "user": "root"},
        ],
    }
    assert "canary" not in made.text + shown.text + edited.text + admin.get().text + str(row.options)


def test_an_edit_of_what_somebody_else_edited_meanwhile_is_refused(api: Api, admin: Caller) -> None:
    fleet_id = add(admin, "192.0.2.1").json()["id"]
    settle(api, fleet_id, "ok", report("192.0.2.1"))
    seen = admin.get(f"/{fleet_id}").json()["version"]
    first, second = ({"fields": {"hosts": ["192.0.2.1", f"192.0.2.{n}"]}} for n in (2, 3))
    assert admin.put(f"/{fleet_id}", first, If_Match=f'"{seen}"').status_code == 202
    refused = admin.put(f"/{fleet_id}", second, If_Match=str(seen))
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "precondition_failed")
    assert refused.json()["error"]["details"] == {"version": seen + 1}
    assert admin.put(f"/{fleet_id}", second, If_Match=str(seen + 1)).status_code == 202


def test_a_host_that_is_not_right_is_named_with_the_limit(admin: Caller) -> None:
    answer = add(admin, "a", "b", "c", {"hostname": "d", "port": 65_536, "private_key": OWN})
    error = answer.json()["error"]
    assert (answer.status_code, error["details"]) == (422, {"field": "fields.hosts[3].port", "limit": 65_535})
    assert "canary" not in answer.text


def test_each_host_is_told_of_to_administrators_only(api: Api, admin: Caller, factory: Factory) -> None:
    fleet_id = add(admin, "192.0.2.1", "192.0.2.2").json()["id"]
    reports = (report("192.0.2.1"), report("192.0.2.2", "unreachable"))
    settle(api, fleet_id, "ok", *reports)
    shown = admin.get(f"/{fleet_id}").json()
    assert shown["verification"]["hosts"] == list(reports)
    assert (shown["host_count"], shown["gpu_count"]) == (2, 2)
    (listed,) = admin.get().json()["data"]
    assert (listed["verification"]["hosts"], listed["host_count"], listed["gpu_count"]) == (None, 2, 2)
    admin.put(f"/{fleet_id}", {"fields": {"user": "nobody"}})
    settle(api, fleet_id, "auth", report("192.0.2.1", "auth"))
    refused = admin.get(f"/{fleet_id}").json()
    assert (refused["state"], refused["host_count"], refused["gpu_count"]) == ("connected", 2, None)
    member = Caller(api, factory.key(role=Role.MEMBER).token)
    assert member.get(f"/{fleet_id}").json()["verification"]["hosts"] is None


def test_why_each_host_failed_is_told_when_none_can_be_used(api: Api, admin: Caller) -> None:
    fleet_id = add(admin, "192.0.2.1").json()["id"]
    settle(api, fleet_id, "unreachable", report("192.0.2.1", "unreachable"))
    shown = admin.get(f"/{fleet_id}").json()
    assert (shown["state"], shown["verification"]["hosts"][0]["message"]) == ("failed", "about 192.0.2.1")


def test_a_host_of_another_fleet_is_refused_and_named(api: Api, admin: Caller, factory: Factory) -> None:
    fleet_id = add(admin, "192.0.2.1").json()["id"]
    answer = add(admin, "192.0.2.1:22", name="other")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "host_in_use")
    details = {"host": "192.0.2.1", "backend": {"id": fleet_id, "name": "lab"}}
    assert answer.json()["error"]["details"] == details
    stranger = Caller(api, factory.key(factory.organization("strangers"), role=Role.ORG_ADMIN).token)
    assert add(stranger, "192.0.2.1").status_code == 202
    operator = Caller(api, factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN).token)
    assert add(operator, "192.0.2.1", cluster=True).status_code == 409


def test_a_pinned_key_is_listed_and_forgotten_and_that_is_audited(api: Api, admin: Caller) -> None:
    fleet_id = add(admin, "192.0.2.1").json()["id"]
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    api.write(lambda s: host_keys.pin(s, fleet_id, "192.0.2.1:22", key, api.services.clock()))
    (pin,) = admin.get(f"/{fleet_id}/host-keys").json()["data"]
    assert (pin["address"], pin["fingerprint"][:10]) == ("192.0.2.1:22", "SHA256:+Di")
    assert admin.post(f"/{fleet_id}/host-keys/forget", {"host": "192.0.2.9"}).status_code == 404
    assert admin.post(f"/{fleet_id}/host-keys/forget", {"host": "192.0.2.1"}).json()["data"] == []
    assert admin.get(f"/{fleet_id}/host-keys").json()["total"] == 0
    entry = admin.get(f"{api.url}/api/v1/admin/audit").json()["data"][0]
    assert (entry["action"], entry["resource"]) == ("connection.forget_host_key", fleet_id)
    assert entry["data"] == {"hosts": ["192.0.2.1:22"]}


def test_backends_are_listed_by_pages_whose_cursors_fit_no_other_caller(
    api: Api, admin: Caller, factory: Factory
) -> None:
    for number in range(3):
        add(admin, f"192.0.2.{number}", name=f"fleet {number}")
    first = admin.get(limit=2).json()
    second = admin.get(limit=2, cursor=first["next_cursor"]).json()
    assert (first["total"], len(first["data"]), len(second["data"]), second["next_cursor"]) == (3, 2, 1, None)
    assert len({row["id"] for row in first["data"] + second["data"]}) == 3
    stranger = Caller(api, factory.key(factory.organization("strangers"), role=Role.ORG_ADMIN).token)
    refused = stranger.get(cursor=first["next_cursor"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_cursor")
    assert admin.get(limit=201).status_code == 422


def test_an_edit_that_a_later_one_overtook_is_no_success(
    api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = add(admin, "192.0.2.1").json()
    settle(api, made["id"], "ok", report("192.0.2.1"))
    settled = backends._settled

    async def overtaken(services: Services, connection_id: str, asked: int) -> Connection:
        def edit(session: Session) -> None:
            row, now = session.get_one(Connection, connection_id), services.clock()
            values = {"private_key": KEY, "user": "root", "hosts": [{"hostname": "192.0.2.1"}]}
            number = connections.begin_verification(session, services.vault, row, backend_of("ssh"), values, now)
            connections.verified(session, connection_id, number, "ok", "", now)

        await services.db.write(edit)
        return await settled(services, connection_id, asked)

    monkeypatch.setattr(backends, "_settled", overtaken)
    refused = admin.put(f"/{made['id']}", {"fields": {"user": "gpu"}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "superseded")
    assert admin.get(f"/{made['id']}").json()["fields"]["user"] == "root"


def test_who_asks_for_a_verification_again_waits_for_the_one_under_way(api: Api, admin: Caller) -> None:
    path = f"/{add(admin, '192.0.2.1').json()['id']}"
    assert {admin.post(path + "/verify", {}).json()["version"] for _ in range(3)} == {1}
    settle(api, path[1:], "ok", report("192.0.2.1"))
    assert {admin.post(path + "/verify", {}).json()["version"] for _ in range(3)} == {2}
