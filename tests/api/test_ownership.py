"""Who may do what: every operation, as every kind of caller. What is another's does not exist; who only reads writes
nothing; a key of a project sees that project's jobs.

A new operation fails `test_every_operation_is_in_the_table` until it has a row.
"""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from api.agent import create_agent_app
from api.agent import router as agent_router
from api.app import create_app
from api.limits import MAX_BODY_BYTES
from api.services import Services
from domain.backends import backend_of
from domain.budgets import BudgetPeriod
from domain.roles import Role
from settings import Settings
from store import budgets, connections, host_keys, webhooks
from store.tables import Webhook
from tests.api.conftest import JOB, Api, anonymous
from tests.support.factory import Factory

OK, NO, GONE = "may", 403, 404

CALLERS = ("viewer", "member", "org_admin", "operator", "sibling", "stranger")
"""The first three are of the organization that owns the resource; `operator` is a cluster admin of another one;
`sibling` a member whose key is limited to another project; `stranger` an admin of another organization."""

READ_ALL = (OK, OK, OK, OK, OK, OK)
LIST = (OK, OK, OK, OK, OK, OK)
READ = (OK, OK, OK, GONE, GONE, GONE)
WRITE = (NO, OK, OK, GONE, GONE, GONE)
CREATE = (NO, OK, OK, OK, OK, OK)
# Secrets belong to the organization, not to a project.
READ_SECRET = (OK, OK, OK, GONE, OK, GONE)
WRITE_SECRET = (NO, OK, OK, GONE, OK, GONE)
# Of the organization; whoever administers all is told of all.
READ_BACKEND = (OK, OK, OK, OK, OK, GONE)
CLUSTER = (NO, NO, NO, OK, NO, NO)
ADMIN = (NO, NO, OK, OK, NO, OK)
ADMIN_ITEM = (NO, NO, OK, OK, NO, GONE)
# Whoever administers all names the organization in `org_id`.
OWN_ADMIN_ITEM = (NO, NO, OK, GONE, NO, GONE)

TABLE: dict[str, tuple[Any, ...]] = {
    "GET /compute/catalog/accelerators": READ_ALL,
    "GET /compute/catalog/accelerators/{name}": READ_ALL,
    "GET /compute/catalog/offers": ADMIN,
    "GET /compute/catalog/providers": ADMIN,
    "POST /compute/catalog/quotes": CREATE,
    "POST /compute/jobs": CREATE,
    "GET /compute/jobs": LIST,
    "GET /compute/jobs/{id}": READ,
    "POST /compute/jobs/{id}/terminate": WRITE,
    "POST /compute/jobs/{id}/rerun": WRITE,
    "GET /compute/jobs/{id}/events": READ,
    "GET /compute/jobs/{id}/instances": READ,
    "GET /compute/jobs/{id}/logs": READ,
    "POST /compute/secrets": CREATE,
    "GET /compute/secrets": LIST,
    "GET /compute/secrets/{id}": READ_SECRET,
    "DELETE /compute/secrets/{id}": WRITE_SECRET,
    "POST /compute/secrets/{id}/rotate": WRITE_SECRET,
    "GET /compute/tenants": CLUSTER,
    "GET /compute/tenants/{org_id}": CLUSTER,
    "PUT /compute/tenants/{org_id}": CLUSTER,
    "GET /compute/usage": LIST,
    "GET /compute/pricing": LIST,
    "PUT /compute/pricing": CLUSTER,
    "POST /compute/budgets": ADMIN,
    "GET /compute/budgets": LIST,
    "GET /compute/budgets/{id}": READ_SECRET,
    "PUT /compute/budgets/{id}": OWN_ADMIN_ITEM,
    "DELETE /compute/budgets/{id}": OWN_ADMIN_ITEM,
    "POST /compute/webhooks": ADMIN,
    "GET /compute/webhooks": ADMIN,
    "GET /compute/webhooks/{id}": OWN_ADMIN_ITEM,
    "PUT /compute/webhooks/{id}": OWN_ADMIN_ITEM,
    "DELETE /compute/webhooks/{id}": OWN_ADMIN_ITEM,
    "POST /compute/webhooks/{id}/test": OWN_ADMIN_ITEM,
    "GET /compute/webhooks/{id}/deliveries": OWN_ADMIN_ITEM,
    "POST /compute/webhooks/deliveries/{id}/resend": OWN_ADMIN_ITEM,
    "GET /api/compute/cloud/backends/catalog": READ_ALL,
    "GET /api/compute/cloud/backends": LIST,
    "POST /api/compute/cloud/backends": ADMIN,
    "GET /api/compute/cloud/backends/{id}": READ_BACKEND,
    "PUT /api/compute/cloud/backends/{id}": ADMIN_ITEM,
    "POST /api/compute/cloud/backends/{id}/verify": ADMIN_ITEM,
    "DELETE /api/compute/cloud/backends/{id}": ADMIN_ITEM,
    "GET /api/compute/cloud/backends/{id}/host-keys": ADMIN_ITEM,
    "POST /api/compute/cloud/backends/{id}/host-keys/forget": ADMIN_ITEM,
    "POST /admin/organizations": CLUSTER,
    "GET /admin/organizations": ADMIN,
    "GET /admin/organizations/{org_id}": ADMIN_ITEM,
    "GET /admin/orphans": CLUSTER,
    "POST /admin/orphans/confirm": CLUSTER,
    "POST /admin/projects": ADMIN,
    "GET /admin/projects": LIST,
    "POST /admin/keys": ADMIN,
    "GET /admin/keys": ADMIN,
    "GET /admin/keys/{id}": ADMIN_ITEM,
    "POST /admin/keys/{id}/revoke": ADMIN_ITEM,
    "GET /admin/audit": ADMIN,
}

BODIES: dict[str, Any] = {
    "POST /compute/secrets": {"name": "s", "data": {"K": "1"}},
    "POST /admin/organizations": {"name": "acme"},
    "POST /admin/projects": {"name": "research"},
    "POST /admin/keys": {"owner": "Bob", "role": "viewer"},
    "PUT /compute/pricing": {"volume_storage_usd_per_gib_hour": 0.1},
    "POST /compute/budgets": {"amount_usd": 5},
    "PUT /compute/budgets/{id}": {"amount_usd": 6},
    "POST /compute/webhooks": {"url": "https://hooks.example/"},
    "PUT /compute/webhooks/{id}": {"enabled": False},
    "POST /api/compute/cloud/backends": {"provider": "runpod", "fields": {"api_key": "k"}},
    "PUT /api/compute/cloud/backends/{id}": {"name": "pods"},
    "POST /api/compute/cloud/backends/{id}/host-keys/forget": {"host": "192.0.2.1"},
    "POST /compute/jobs": JOB,
    "POST /compute/secrets/{id}/rotate": {"data": {"K": "2"}},
    "PUT /compute/tenants/{org_id}": {"max_live_jobs": 5},
}

Clients = dict[str, httpx.Client]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, body_timeout_seconds=3, public_url="https://headrace.example")


@pytest.fixture
def clients(api: Api, factory: Factory) -> Clients:
    tokens = {
        "viewer": factory.key(role=Role.VIEWER),
        "member": factory.key(role=Role.MEMBER),
        "org_admin": factory.key(role=Role.ORG_ADMIN),
        "operator": factory.key(factory.organization("operators"), role=Role.CLUSTER_ADMIN),
        "sibling": factory.key(project=factory.project(name="another")),
        "stranger": factory.key(factory.organization("strangers"), role=Role.ORG_ADMIN),
    }
    return {
        caller: httpx.Client(
            base_url=f"{api.url}/api/v1",
            headers={"Authorization": f"Bearer {key.token}", "Idempotency-Key": f"key-{caller}"},
            timeout=60,
            trust_env=False,
        )
        for caller, key in tokens.items()
    }


@pytest.fixture
def resources(api: Api, factory: Factory) -> dict[str, Callable[[], str]]:
    """What makes a new resource of the organization, by how an operation's path begins; a secret's name is its id."""
    names = iter(range(100))

    def secret() -> str:
        body = {"name": f"secret-{next(names)}", "data": {"K": "1"}}
        return str(api.client.post("/secrets", json=body).json()["id"])

    def budget() -> str:
        now, owner = api.services.clock(), f"user-{next(names)}"
        made = partial(budgets.create, owner=owner, period=BudgetPeriod.MONTHLY, amount_usd=Decimal(5))
        return str(api.write(lambda s: made(s, api.key.org_id, None, alert_percents=[], now=now)).id)

    def webhook() -> str:
        vault, now = api.services.vault, api.services.clock()
        made = api.write(lambda s: webhooks.create(s, vault, api.key.org_id, "https://hooks.example/", [], True, now))
        return str(made.webhook.id)

    def delivery() -> str:
        webhook_id, now = webhook(), api.services.clock()
        return str(api.write(lambda s: webhooks.emit_test(s, s.get_one(Webhook, webhook_id), now)).id)

    def backend() -> str:
        vault, now, name = api.services.vault, api.services.clock(), f"backend-{next(names)}"
        scope, kind, values = connections.Scope(api.key.org_id), backend_of("runpod"), {"api_key": "k"}
        made = str(api.write(lambda s: connections.connect(s, vault, scope, kind, name, values, now)).id)
        # Its first verification has ended: whoever asks for one while it goes on begins none.
        api.write(lambda s: connections.verified(s, made, 1, "ok", "", now))
        api.write(lambda s: host_keys.pin(s, made, "192.0.2.1:22", "ssh-ed25519 AAAA", now))
        return made

    return {
        "/api/compute/cloud/backends/": backend,
        "/compute/budgets/": budget,
        "/compute/webhooks/": webhook,
        "/compute/webhooks/deliveries/": delivery,
        "/compute/jobs/": lambda: str(api.create(JOB).json()["id"]),
        "/compute/secrets/": secret,
        "/compute/catalog/": lambda: "cpu-general",
        "/compute/tenants/": lambda: api.key.org_id,
        "/admin/organizations/": lambda: api.key.org_id,
        "/admin/keys/": lambda: factory.key().key_id,
    }


def fill(path: str, resources: dict[str, Callable[[], str]]) -> str:
    if "{" not in path:
        return path
    start, _, rest = path.partition("{")
    return start + resources[start if start in resources else "/compute/catalog/"]() + rest.partition("}")[2]


def at(api: Api, path: str) -> str:
    """One path is not below the others'."""
    return f"{api.url}{path}" if path.startswith("/api/") else path


def test_every_operation_is_in_the_table(api: Api) -> None:
    document = anonymous(f"{api.url}/openapi.json").json()
    operations = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if path.startswith("/api/") and operation["tags"] != ["Not implemented yet"]
    }
    assert operations == set(TABLE)


@pytest.mark.parametrize("operation", TABLE)
def test_an_operation_is_for_whom_it_is_meant(
    api: Api, clients: Clients, resources: dict[str, Callable[[], str]], operation: str
) -> None:
    method, _, path = operation.partition(" ")
    for caller, expected in zip(CALLERS, TABLE[operation], strict=True):
        # A fresh one each: what one caller ended must not be what the next one finds.
        answer = clients[caller].request(method, at(api, fill(path, resources)), json=BODIES.get(operation))
        if expected == OK:
            assert answer.status_code not in {401, 403, 500, 501}, (caller, answer.text)
            assert not answer.text.startswith('{"error":{"code":"not_found"'), (caller, answer.text)
        else:
            code = {NO: "forbidden", GONE: "not_found"}[expected]
            assert (answer.status_code, answer.json()["error"]["code"]) == (expected, code), (caller, answer.text)


@pytest.mark.parametrize("operation", TABLE)
def test_nobody_does_it_without_a_key(api: Api, resources: dict[str, Callable[[], str]], operation: str) -> None:
    method, _, path = operation.partition(" ")
    with httpx.Client(base_url=f"{api.url}/api/v1", timeout=60, trust_env=False) as nobody:
        answer = nobody.request(method, at(api, fill(path, resources)), json=BODIES.get(operation))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


# A quote makes nothing.
UNAUDITED = {"POST /compute/catalog/quotes"}
MUTATING = [operation for operation in TABLE if not operation.startswith("GET ") and operation not in UNAUDITED]


@pytest.mark.parametrize("operation", MUTATING)
def test_what_is_done_is_in_the_audit_log_and_what_is_refused_is_not(
    api: Api, clients: Clients, resources: dict[str, Callable[[], str]], operation: str
) -> None:
    method, _, path = operation.partition(" ")
    path, body = at(api, fill(path, resources)), BODIES.get(operation)
    caller = "operator" if TABLE[operation] == CLUSTER else "org_admin"
    headers = {"If-Match": "0"} if operation == "PUT /compute/pricing" else {}

    def entries() -> list[dict[str, Any]]:
        return list(clients["operator"].get("/admin/audit").json()["data"])

    before = len(entries())
    assert clients["viewer"].request(method, path, json=body, headers=headers).status_code == 403
    assert len(entries()) == before
    answer = clients[caller].request(method, path, json=body, headers={**headers, "X-On-Behalf-Of": "end-user-7"})
    assert answer.is_success, answer.text
    after = entries()
    assert len(after) == before + 1
    assert after[0]["request_id"] == answer.headers["X-Request-Id"]
    assert after[0]["on_behalf_of"] == "end-user-7"
    assert after[0]["resource"]


def test_lists_hold_what_the_caller_may_see_and_nothing_else(clients: Clients, api: Api) -> None:
    job = api.create(JOB).json()["id"]
    api.client.post("/secrets", json={"name": "s", "data": {"K": "1"}})

    def totals(path: str) -> dict[str, int]:
        return {caller: client.get(path).json()["total"] for caller, client in clients.items()}

    seen = {"viewer": 1, "member": 1, "org_admin": 1}
    assert totals("/compute/jobs") == {**seen, "operator": 0, "sibling": 0, "stranger": 0}
    assert totals("/compute/secrets") == {**seen, "operator": 0, "sibling": 1, "stranger": 0}
    assert job not in clients["stranger"].get("/admin/audit").text
    assert job in clients["operator"].get("/admin/audit").text


def test_a_key_of_a_project_creates_in_that_project_only(clients: Clients) -> None:
    sibling = clients["sibling"]
    assert sibling.post("/compute/jobs", json=JOB).json()["project"] == "another"
    answer = sibling.post("/compute/jobs", json={**JOB, "project": "default"}, headers={"Idempotency-Key": "2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_every_route_refuses_a_body_that_is_too_large(services: Services) -> None:
    too_large = {"Content-Length": str(MAX_BODY_BYTES + 1), "Expect": "100-continue"}
    public = create_app(services)
    documented = [(method.upper(), path) for path, item in public.openapi()["paths"].items() for method in item]
    agents = [(method, r.path) for r in agent_router.routes if isinstance(r, APIRoute) for method in r.methods]
    others = [("POST", "/codec/decode"), ("POST", "/codec/login"), ("GET", "/metrics")]
    for app, routes in ((public, documented + agents + others), (create_agent_app(services), agents)):
        assert routes
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://headrace", headers=too_large) as client:
            for method, path in routes:
                answer = await client.request(method, path)
                assert (answer.status_code, "payload_too_large" in answer.text) == (413, True), path
