"""`headrace backend` and `headrace orphans`: connecting with secrets that are never arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from domain.roles import Role
from store import access, connections
from store.tables import Connection
from tests.cli.conftest import Headrace, Server

SECRET = "canary-api-key-55"


@pytest.fixture
def as_operator(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, with a cluster admin's key in the environment."""

    def make(session: Any) -> Any:
        now = server.services.clock()
        organization = access.create_organization(session, "acme", now, enabled=True)
        return access.create_key(session, organization.id, "admin", Role.CLUSTER_ADMIN, now)

    monkeypatch.setenv("HEADRACE_API_KEY", server.write(make).token)
    server.services.settings.public_url = "https://headrace.example"
    return server


def verified(server: Server, connection_id: str) -> None:
    now = server.services.clock()

    def settle(session: Any) -> None:
        row = session.get_one(Connection, connection_id)
        connections.verified(session, row.id, row.verification, "ok", "", now)

    server.write(settle)


def test_a_backend_is_connected_listed_edited_and_removed(
    headrace: Headrace, as_operator: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_KEY", SECRET)
    made = headrace(
        "backend", "connect", "runpod", "--from-env", "api_key=POD_KEY", "--set", "include_community=true",
        "--cluster", "--name", "pods", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    connection_id = json.loads(made.out)["id"]
    verified(as_operator, connection_id)
    shown = headrace("backend", "get", connection_id)
    assert "include_community=True" in shown.out
    listed = headrace("backend", "list").out
    assert "connected" in listed
    assert SECRET not in made.out + shown.out + listed
    assert headrace("backend", "edit", connection_id, "--name", "others").code == 0
    assert json.loads(headrace("backend", "edit", connection_id, "--set", "include_community=false", "--json").out)
    verified(as_operator, connection_id)
    assert json.loads(headrace("backend", "get", connection_id, "--json").out)["fields"] == {"include_community": False}
    assert headrace("backend", "verify", connection_id).code == 0
    assert headrace("backend", "remove", connection_id).code == 0
    assert headrace("backend", "get", connection_id).code == 5


def test_a_secret_is_refused_as_an_argument_and_not_repeated(headrace: Headrace, as_operator: Server) -> None:
    answer = headrace("backend", "edit", "conn_1", "--set", "x")
    assert answer.code != 0
    answer = headrace(
        "backend", "connect", "aws", "--set", f"secret_access_key={SECRET}", "--from-env", "access_key_id=PATH"
    )
    assert answer.code == 2
    assert "never an argument" in answer.err
    assert SECRET not in answer.err + answer.out


def test_a_file_is_read_whole(headrace: Headrace, as_operator: Server, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{\n "type": "service_account"\n}\n')
    given = f"service_account_key={tmp_path / 'key.json'}"
    made = json.loads(headrace("backend", "connect", "gcp", "--from-file", given, "--json").out)
    assert (made["state"], made["fields"]) == ("pending", {})


def test_the_forms_are_listed_and_what_cannot_be_connected_is_refused(headrace: Headrace, as_operator: Server) -> None:
    assert "secret_access_key" in headrace("backend", "forms").out
    answer = headrace("backend", "connect", "azure", "--from-env", "client_secret=PATH")
    assert answer.code == 2
    assert "available are aws" in answer.err


def test_orphans_are_listed_and_the_database_confirmed(headrace: Headrace, as_operator: Server) -> None:
    assert "MACHINE" in headrace("orphans").out
    confirmed = headrace("orphans", "--confirm")
    assert confirmed.code == 0
    assert "confirmed" in confirmed.err
