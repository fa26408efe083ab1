"""`headrace budget` and `headrace webhook`, and the snippet of docs/webhooks.md against what is really sent."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from domain.notices import signature
from domain.roles import Role
from store import access
from tests.cli.conftest import Headrace, Server

DOCUMENT = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()


@pytest.fixture
def as_admin(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, with the key of an organization's admin in the environment."""

    def make(session: Any) -> Any:
        now = server.services.clock()
        organization = access.create_organization(session, "acme", now, enabled=True)
        return access.create_key(session, organization.id, "admin", Role.ORG_ADMIN, now)

    monkeypatch.setenv("HEADRACE_API_KEY", server.write(make).token)
    return server


def test_a_budget_is_set_changed_shown_and_deleted(headrace: Headrace, as_admin: Server) -> None:
    made = json.loads(headrace("budget", "set", "100.50", "--alert", "80", "--json").out)
    assert (made["amount_usd"], made["alert_percents"], made["period"]) == (100.5, [80], "monthly")
    changed = json.loads(headrace("budget", "set", "200", "--json").out)
    assert (changed["id"], changed["amount_usd"], changed["version"]) == (made["id"], 200, 2)
    assert changed["alert_percents"] == [80]
    assert json.loads(headrace("budget", "set", "5", "--total", "--user", "amy", "--json").out)["user"] == "amy"
    listed = headrace("budget", "list").out
    assert made["id"] in listed
    assert "user amy" in listed
    shown = headrace("budget", "get", made["id"]).out
    assert re.search(r"^amount +200\.00 USD$", shown, re.MULTILINE)
    assert headrace("budget", "delete", made["id"]).code == 0
    assert headrace("budget", "get", made["id"]).code == 5


@pytest.mark.parametrize("usd", ["-1", "ten", "nan", "1e999", "0.12345678901234567890"])
def test_what_is_no_amount_is_a_usage_error(headrace: Headrace, as_admin: Server, usd: str) -> None:
    assert headrace("budget", "set", "--", usd).code == 2


def test_a_member_may_look_and_not_set(headrace: Headrace, server: Server) -> None:
    assert headrace("budget", "list").code == 0
    assert headrace("budget", "set", "1").code == 4


def test_a_webhook_is_made_tried_changed_and_deleted(headrace: Headrace, as_admin: Server) -> None:
    made = headrace("webhook", "create", "https://hooks.example/", "--event", "job.failed")
    assert made.out.startswith("whsec_")
    webhook_id = re.search(r"wh_\w+", made.err)
    assert webhook_id is not None
    name = webhook_id.group()
    assert made.out.strip() not in headrace("webhook", "list").out
    assert "webhook.test" in headrace("webhook", "test", name).out
    [delivery] = json.loads(headrace("webhook", "deliveries", name, "--json").out)
    assert json.loads(headrace("webhook", "resend", delivery["id"], "--json").out)["id"] == delivery["id"]
    assert re.search(r"^enabled +no$", headrace("webhook", "set", name, "--disable").out, re.MULTILINE)
    assert headrace("webhook", "delete", name).code == 0
    assert headrace("webhook", "delete", name).code == 5


def test_the_snippet_of_the_document_takes_what_is_sent_and_refuses_the_rest() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(snippet, scope)
    is_genuine = scope["is_genuine"]
    sent = datetime(2026, 3, 1, tzinfo=UTC)
    now, body = sent.timestamp(), b'{"id": "whd_1"}'
    header = signature("whsec_right", sent, body)
    assert is_genuine("whsec_right", header, body, now + 299)
    assert not is_genuine("whsec_right", header, body, now + 301)
    assert not is_genuine("whsec_wrong", header, body, now)
    assert not is_genuine("whsec_right", header, body + b" ", now)
    assert not is_genuine("whsec_right", header.replace("v1=", "v0="), body, now)
    assert not is_genuine("whsec_right", f"t={int(now) + 60},{header.split(',')[1]}", body, now)
    assert not is_genuine("whsec_right", "", body, now)
