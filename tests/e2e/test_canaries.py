"""Case 23: secrets of users and of the installation, in no form, in no place where they must not be, whatever fails."""

import asyncio
import base64
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import psycopg
import pytest
from google.protobuf.json_format import MessageToDict
from psycopg import sql
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from store.payload_codec import ENCODING
from tests.security.canaries import Canary, ProcessWatch, search_texts, search_tree
from tests.support.postgres import TestServer
from tests.support.stack import HOST_IMAGE, Stack, job_body, running_stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# The key files and the credentials are where the installation's own secrets belong.
KEPT_SECRETS = ("master.key", "credentials.json")


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    """The address of a fake cloud, as a process of its own: its faults repeat whole requests in their messages."""
    process = subprocess.Popen(
        [sys.executable, "-m", "providers.fake.server"], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().rpartition(" ")[2].strip()
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("podman", "sqlite"), marks=pytest.mark.containers),
        pytest.param(("sandbox", "postgres"), marks=pytest.mark.postgres),
    ],
    ids="-".join,
)
def stack(request: pytest.FixtureRequest, cloud: str) -> Iterator[Stack]:
    engine, database = request.param
    environment = {"HEADRACE_FAKE_PROVIDER_URL": cloud, "HEADRACE_LOG_LEVEL": "debug"}
    if engine == "podman":
        request.getfixturevalue("host_image")
    if database == "postgres":
        server: TestServer = request.getfixturevalue("postgres_server")
        environment["HEADRACE_DATABASE_URL"] = server.create(empty=True)
    with running_stack(engine, **environment) as stack:
        yield stack
        assert stack.workloads() == []


def test_no_secret_is_anywhere_but_where_it_belongs(stack: Stack, cloud: str) -> None:
    env, script, registry, stored, pull = (
        Canary.fresh(name) for name in ("env", "script", "registry password", "stored secret", "pull secret")
    )
    planted = [env, script, registry, stored, pull]
    master = (stack.data_dir / "master.key").read_text().strip().partition(":")[2]
    own = [Canary("API key", stack.credentials["api_key"]), Canary("master key", master)]
    secret_container = {
        "env": {"TOKEN": env.text},
        "script_b64": base64.b64encode(
            f'# {script.text}\necho "token: $STORED"; env | grep ^STORED= >&2\n'
            "for i in $(seq 1 60); do echo line $i; sleep 0.1; done; exit 3".encode()
        ).decode(),
        "registry_credential": {"username": "robot", "password": registry.text},
    }
    answers: dict[str, str] = {}
    secret_id = _secret(stack, "stored", {"TOKEN": stored.text}, answers)
    pull_id = _secret(stack, "pull", {"username": "robot", "password": pull.text}, answers)
    secret_container["secret_env"] = {"STORED": {"secret_id": secret_id, "key": "TOKEN"}}
    with ProcessWatch([*planted, *own], pause_seconds=0.05) as watch:
        jobs = [
            _job_whose_worker_dies_in_each_phase(stack, secret_container, answers),
            *_jobs_that_fail_at_the_provider(stack, cloud, secret_container, pull_id),
        ]
        _refused_requests(stack, secret_container, answers)
        for job_id in jobs:
            stack.until_terminal(job_id)
            stack.until_gone(job_id)
    known = {"jobs": jobs, "secrets": [secret_id, pull_id], "tenants": [stack.credentials["org_id"]]}
    for role in (None, "viewer", "member", "org_admin"):
        _everything_that_can_be_got(stack, role, known, answers)

    histories = _exports(stack)
    assert watch.samples > 10
    assert len(histories) > len(jobs)
    everything = {**answers, **histories, **_database_dump(stack), "supervisor": stack.said()}
    assert not watch.sightings
    assert search_texts([*planted, *own], everything) == []
    assert search_tree([*planted, *own], stack.data_dir, but=KEPT_SECRETS) == []
    log = stack.call("GET", f"/jobs/{jobs[0]}/logs", params={"source": "user", "limit": 1000}).json()["data"]
    assert {"token: ***", "STORED=***"} <= {line["message"] for line in log}
    # The search itself works: where a secret belongs, it is found.
    assert search_tree(own, stack.data_dir) != []


def _job_whose_worker_dies_in_each_phase(stack: Stack, container: dict[str, object], answers: dict[str, str]) -> str:
    """Its activities run a second time. Meanwhile the container is looked at."""
    job_id = stack.create(container=container, placement={"providers": ["local"]})
    for phase in ("provisioning", "running"):
        stack.until_state(job_id, phase, "running")
        stack.kill("worker")
        stack.pid("worker")
        stack.until_ready()
    until(lambda: stack.output(job_id), "output", pause=0.1)
    if stack.engine == "podman":
        (name,) = stack.containers(job=job_id)
        answers[f"inspect {name}"] = stack.podman("inspect", name)
        answers[f"logs {name}"] = stack.podman("logs", name)
    stack.until_state(job_id, "finalizing", "failed", "succeeded")
    stack.kill("worker")
    stack.pid("worker")
    return job_id


def _secret(stack: Stack, name: str, data: dict[str, str], answers: dict[str, str]) -> str:
    """Stored, rotated to the same values, and refused a second time."""
    body = {"name": name, "data": data}
    made = stack.call("POST", "/secrets", json=body)
    assert made.status_code == 201, made.text
    rotated = stack.call("POST", f"/secrets/{made.json()['id']}/rotate", json={"data": data})
    assert rotated.status_code == 200, rotated.text
    for number, answer in enumerate((made, rotated, stack.call("POST", "/secrets", json={**body, "surprise": data}))):
        answers[f"secret {name} {number}"] = answer.text
    return str(made.json()["id"])


def _everything_that_can_be_got(
    stack: Stack, role: str | None, known: dict[str, list[str]], answers: dict[str, str]
) -> None:
    """Every GET of the API that needs no id, or the id of something known; as the admin, or by a key of that role."""
    headers = {}
    if role is not None:
        made = stack.call("POST", "/../admin/keys", json={"owner": role, "role": role})
        assert made.status_code == 201, made.text
        headers["Authorization"] = f"Bearer {made.json()['token']}"
    got = 0
    for path, operations in stack.call("GET", "/../../../openapi.json").json()["paths"].items():
        if "get" not in operations or not path.startswith("/api/v1/") or path.count("{") > 1:
            continue
        kind = path.removeprefix("/api/v1/").split("/")[1]
        for named in known.get(kind, []) if "{" in path else [""]:
            whole = re.sub(r"\{[^}]*\}", named, path)
            answer = stack.call("GET", whole.replace("/api/v1", "/..", 1), headers=headers)
            answers[f"GET {whole} as {role}"] = answer.text
            got += answer.status_code == 200
    assert got > 5 * len(known["jobs"])


def _jobs_that_fail_at_the_provider(stack: Stack, cloud: str, container: dict[str, object], pull_id: str) -> list[str]:
    """Two whose image cannot be pulled with their passwords, two whose provider repeats its requests in its errors."""
    refused = {**container, "image": "127.0.0.1:9/org/private:v1"}
    local = stack.create(container=refused, placement={"providers": ["local"]})
    for operation in ("create", "get", "delete"):
        fault = {"operation": operation, "answer": "echo"}
        httpx.post(f"{cloud}/admin/faults", json=fault, trust_env=False).raise_for_status()
    fake = {
        "image": HOST_IMAGE,
        "env": container["env"],
        "registry_credential": container["registry_credential"],
        "command": ["fake", json.dumps({"run_seconds": 1})],
    }
    stored = {**fake, "registry_credential": None, "image_pull_secret": pull_id, "secret_env": container["secret_env"]}
    by_secret = {**refused, "registry_credential": None, "image_pull_secret": pull_id}
    return [
        local,
        stack.create(container=by_secret, placement={"providers": ["local"]}),
        stack.create(container=fake, placement={"providers": ["fake"]}),
        stack.create(container=stored, placement={"providers": ["fake"]}),
    ]


def _refused_requests(stack: Stack, container: dict[str, object], answers: dict[str, str]) -> None:
    """Requests that are wrong somewhere are answered without what is secret in them."""
    wrong: list[dict[str, object]] = [
        {**container, "image": "UPPER CASE"},
        {**container, "command": ["true"]},
        {**container, "registry_credential": {"username": 7, "password": container["registry_credential"]}},
        {**container, "env": {"1BAD": container["env"]}},
        {**container, "surprise": container["env"]},
    ]
    for number, bad in enumerate(wrong):
        answer = stack.post(job_body(container=bad))
        assert answer.status_code == 422, answer.text
        answers[f"refused request {number}"] = answer.text


def _database_dump(stack: Stack) -> dict[str, str]:
    url = stack.environment.get("HEADRACE_DATABASE_URL")
    if url is None:
        with sqlite3.connect(stack.data_dir / "headrace.db") as database:
            return {"sqlite dump": "\n".join(database.iterdump())}
    dump = {}
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))) as rows:
                dump[f"postgres table {table}"] = b"".join(bytes(row) for row in rows).decode()
    return dump


def _exports(stack: Stack) -> dict[str, str]:
    """Every workflow's history, as Temporal keeps it and as an operator reads it."""

    async def export() -> dict[str, str]:
        client = await stack.temporal()
        found: dict[str, str] = {}
        async for name, events in _histories(client):
            found[f"history of {name}"] = json.dumps(events)
            found[f"decoded history of {name}"] = "\n".join(await _decoded(client, events))
        return found

    return asyncio.run(export())


async def _histories(client: Client) -> AsyncIterator[tuple[str, list[object]]]:
    async for workflow in client.list_workflows():
        history = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).fetch_history()
        yield f"{workflow.id} {workflow.run_id}", [MessageToDict(event) for event in history.events]


async def _decoded(client: Client, events: list[object]) -> list[str]:
    """The plain text of every sealed payload, wherever it stands in the events."""
    codec = client.data_converter.payload_codec
    assert codec is not None
    sealed = list(_payloads(events))
    assert sealed, "a history without payloads"
    return [payload.data.decode() for payload in await codec.decode(sealed)]


def _payloads(node: object) -> Iterator[Payload]:
    if isinstance(node, dict):
        metadata = node.get("metadata")
        if isinstance(metadata, dict) and metadata.get("encoding") == base64.b64encode(ENCODING).decode():
            yield Payload(
                metadata={key: base64.b64decode(value) for key, value in metadata.items()},
                data=base64.b64decode(node["data"]),
            )
            return
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _payloads(inner)
