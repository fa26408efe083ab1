"""`headrace org|tenant|project|key|audit` against a real API server."""

import csv
import io
import json

import pytest

from domain.roles import Role
from store.access import create_key, create_organization
from tests.cli.conftest import Headrace, Server

SUBMIT = ("job", "submit", "--image", "registry.example/app:1", "--vcpus", "1", "--", "true")


@pytest.fixture
def operator(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The environment's key is a cluster admin's, of an organization of its own."""

    def make(session):
        now = server.services.clock()
        organization = create_organization(session, "operators", now, enabled=True)
        return create_key(session, organization.id, "root", Role.CLUSTER_ADMIN, now)

    monkeypatch.setenv("HEADRACE_API_KEY", server.write(make).token)
    return server


def record(text: str) -> dict[str, str]:
    return {name: value.strip() for name, value in (line.split("  ", 1) for line in text.splitlines())}


def test_from_a_new_organization_to_a_job_of_its_first_key(
    headrace: Headrace, operator: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = headrace("org", "create", "acme", "--max-live-jobs", "1", "--time-zone", "Europe/Berlin")
    assert made.code == 0, made.err
    assert record(made.out)["live jobs"] == "1"
    assert record(made.out)["enabled"] == "no"
    key = headrace("key", "create", "--org", "acme", "--owner", "Ada", "--role", "org_admin", "--expires-in-days", 1)
    assert key.code == 0, key.err
    token = key.out.strip()
    assert token.startswith("hr_")
    assert token not in key.err
    monkeypatch.setenv("HEADRACE_API_KEY", token)
    refused = headrace(*SUBMIT)
    assert (refused.code, "tenant_disabled" in refused.err) == (4, True)
    assert headrace("org", "enable", "acme").code == 4
    assert [line.split()[1] for line in headrace("org", "list").out.splitlines()[1:]] == ["acme"]


def test_caps_are_set_shown_and_lifted(headrace: Headrace, operator: Server) -> None:
    headrace("org", "create", "acme", "--enabled", "--provider-anonymity", "on")
    for group in ("org", "tenant"):
        assert headrace(group, "set", "acme", "--max-live-jobs", "0", "--max-live-volumes", "7").code == 0
        shown = record(headrace(group, "get", "acme").out)
        assert (shown["live jobs"], shown["live volumes"], shown["live services"]) == ("0", "7", "unlimited")
        assert shown["provider anonymity"] == "on"
        assert headrace(group, "set", "acme", "--max-live-jobs", "unlimited").code == 0
        assert record(headrace(group, "get", "acme").out)["live jobs"] == "unlimited"
    assert json.loads(headrace("org", "disable", "acme", "--json").out)["enabled"] is False
    assert [o["name"] for o in json.loads(headrace("tenant", "list", "--only", "disabled", "--json").out)] == ["acme"]


@pytest.mark.parametrize(
    "words",
    [
        ("org", "set", "acme", "--max-live-jobs", "-1"),
        ("org", "set", "acme", "--max-live-jobs", "many"),
        ("org", "set", "acme", "--provider-anonymity", "maybe"),
        ("org", "list", "--only", "some"),
        ("org", "get", "a/b"),
        ("key", "create", "--owner", "x", "--role", "king"),
        ("audit", "export", "--format", "xml"),
        ("audit", "list", "--since", "yesterday"),
    ],
)
def test_what_is_wrong_is_a_usage_error(headrace: Headrace, operator: Server, words: tuple[str, ...]) -> None:
    assert headrace(*words).code == 2


def test_an_organization_that_is_not_there_is_not_found(headrace: Headrace, operator: Server) -> None:
    assert headrace("org", "get", "nowhere").code == 5


def test_projects_are_made_and_listed(headrace: Headrace, operator: Server) -> None:
    assert headrace("project", "create", "research").code == 0
    assert headrace("project", "create", "research").code == 11
    listed = headrace("project", "list", "--org", "operators").out
    assert [line.split()[0] for line in listed.splitlines()] == ["NAME", "default", "research"]


def test_a_key_is_listed_and_revoked(headrace: Headrace, operator: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(headrace("key", "create", "--owner", "Bob", "--name", "laptop", "--json").out)
    assert (made["role"], made["name"]) == ("member", "laptop")
    assert made["id"] in headrace("key", "list", "--owner", "Bob").out
    assert made["token"] not in headrace("key", "list", "--json").out
    for _ in range(2):
        assert headrace("key", "revoke", made["id"]).code == 0
    assert made["id"] not in headrace("key", "list").out
    assert "revoked 20" in headrace("key", "list", "--all", "--owner", "Bob").out
    monkeypatch.setenv("HEADRACE_API_KEY", made["token"])
    assert headrace("job", "list").code == 4


def test_the_audit_log_is_shown_and_exported(headrace: Headrace, operator: Server) -> None:
    headrace("project", "create", "research")
    headrace("key", "create", "--owner", '=HYPERLINK("x")')
    assert "project.create" in headrace("audit", "list").out
    lines = [json.loads(line) for line in headrace("audit", "export").out.splitlines()]
    assert [line["action"] for line in lines] == ["project.create", "key.create"]
    made = json.loads(headrace("key", "create", "--owner", "=1+1", "--role", "cluster_admin", "--json").out)
    table = list(csv.DictReader(io.StringIO(headrace("audit", "export", "--format", "csv").out)))
    assert [row["action"] for row in table] == ["project.create", "key.create", "key.create"]
    assert json.loads(table[2]["data"])["owner"] == "=1+1"
    assert table[2]["resource"] == made["id"]
    only = headrace("audit", "export", "--action", "project.create", "--org", "operators").out
    assert len(only.splitlines()) == 1


def test_a_formula_is_no_formula_any_more(
    headrace: Headrace, operator: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = headrace("key", "create", "--owner", "=1+1", "--role", "cluster_admin").out.strip()
    monkeypatch.setenv("HEADRACE_API_KEY", token)
    headrace("project", "create", "research")
    table = list(csv.DictReader(io.StringIO(headrace("audit", "export", "--format", "csv").out)))
    assert table[-1]["owner"] == "'=1+1"
