"""The whole stack, as `headrace up` runs it: one job's trace, its metrics, and that its secrets are written nowhere."""

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.common.v1 import Payload

from settings import Settings
from store.payload_codec import EncryptingCodec
from store.temporal import connect
from store.vault import Vault
from tests.cli.stack import RunningStack, stack
from tests.observability.otlp_receiver import Receiver, running_receiver
from tests.security.canaries import Canary, ProcessWatch, Sighting, search_texts, search_tree

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ENV, REGISTRY, SCRIPT = Canary.fresh("env"), Canary.fresh("registry password"), Canary.fresh("script")
CANARIES = [ENV, REGISTRY, SCRIPT]
_TERMINAL = {"succeeded", "failed", "terminated"}


@dataclass
class Run:
    """What one job left behind, seen after the stack has stopped."""

    data_dir: Path
    receiver: Receiver
    job: dict[str, Any]
    answers: dict[str, str] = field(default_factory=dict)
    command_lines: set[Sighting] = field(default_factory=set)
    api_key: str = ""

    def process_logs(self) -> str:
        return "".join(path.read_text() for path in (self.data_dir / "logs-of-processes").glob("*.log"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    data_dir = tmp_path_factory.mktemp("stack")
    with (
        running_receiver() as receiver,
        ProcessWatch(CANARIES, pause_seconds=0.05) as watch,
        stack(data_dir, "--otel-endpoint", receiver.url) as running,
    ):
        api = httpx.Client(
            base_url=running.said["api_url"],
            headers={"Authorization": f"Bearer {running.credentials['api_key']}"},
            trust_env=False,
            timeout=30,
        )
        result = Run(data_dir, receiver, _run_job(api), api_key=running.credentials["api_key"])
        result.answers |= _answers(api, result.job["id"])
        result.answers |= asyncio.run(_history(running, result.job["id"]))
    # The stop has flushed the exporters.
    result.command_lines = watch.sightings
    return result


def _run_job(api: httpx.Client) -> dict[str, Any]:
    script = f'#!/bin/bash\nSECRET={SCRIPT.text!r}\ntest -n "$TOKEN" && echo done\n'
    body = {
        "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
        "container": {
            "image": "registry.example/app:1",
            "script_b64": base64.b64encode(script.encode()).decode(),
            "env": {"TOKEN": ENV.text},
            "registry_credential": {"username": "someone", "password": REGISTRY.text},
        },
    }
    made = api.post("/api/v1/compute/jobs", json=body, headers={"Idempotency-Key": "k", "X-Request-Id": "req-traced"})
    assert made.status_code == 201, made.text
    return _wait_until(lambda: api.get(f"/api/v1/compute/jobs/{made.json()['id']}").json(), _has_ended)


def _has_ended(job: dict[str, Any]) -> bool:
    return job["state"] in _TERMINAL


def _answers(api: httpx.Client, job_id: str) -> dict[str, str]:
    """Every answer about the job, and the metrics once the deletion has been counted."""
    job = f"/api/v1/compute/jobs/{job_id}"
    answers = {path: api.get(path).text for path in (job, f"{job}/events", f"{job}/instances", f"{job}/logs")}
    answers["/metrics"] = _wait_until(lambda: api.get("/metrics").text, lambda text: "headrace_spend_settled" in text)
    return answers


async def _history(running: RunningStack, job_id: str) -> dict[str, str]:
    """The job's history as Temporal holds it, and as an operator reads it."""
    vault = Vault.load(None, running.data_dir / "master.key")
    settings = Settings(temporal_address=running.credentials["temporal_address"])
    history = await (await connect(settings, vault)).get_workflow_handle(job_id).fetch_history()
    text = history.to_json()
    codec = EncryptingCodec(vault)
    opened = [payload.SerializeToString().decode(errors="replace") for payload in codec.open_all(_sealed(text))]
    assert opened, "a history without payloads proves nothing"
    return {"history": text, "decoded history": "\n".join(opened)}


def _sealed(text: str) -> list[Payload]:
    """All encrypted payloads of an exported history."""
    found: list[Payload] = []

    def visit(node: object) -> None:
        if isinstance(node, list):
            for inner in node:
                visit(inner)
        elif isinstance(node, dict):
            metadata = node.get("metadata")
            if "data" in node and isinstance(metadata, dict) and "encoding" in metadata:
                plain = {key: base64.b64decode(value) for key, value in metadata.items()}
                found.append(Payload(metadata=plain, data=base64.b64decode(node["data"])))
            for inner in node.values():
                visit(inner)

    visit(json.loads(text))
    return found


def _wait_until(look: Callable[[], Any], enough: Callable[[Any], bool], seconds: float = 90) -> Any:
    until = time.monotonic() + seconds
    while not enough(seen := look()):
        assert time.monotonic() < until, seen
        time.sleep(0.1)
    return seen


def test_the_job_ran(run: Run) -> None:
    assert run.job["state"] == "succeeded", run.job


class TestTrace:
    def test_it_leads_from_the_request_through_workflow_and_activities_to_the_deletion(self, run: Run) -> None:
        spans = {span.name: span for span in run.receiver.spans}
        request = spans["POST /api/v1/compute/jobs"]
        expected = {
            "StartWorkflow:ComputeJob",
            "RunWorkflow:ComputeJob",
            "RunActivity:allocate",
            "RunActivity:provision",
            "RunActivity:stream_logs",
            "RunActivity:deallocate",
        }
        assert expected <= {name for name, span in spans.items() if span.trace_id == request.trace_id}
        assert spans["StartWorkflow:ComputeJob"].parent_span_id == request.span_id
        assert run.receiver.services == {"headrace-api", "headrace-worker"}

    def test_the_small_calls_of_agents_and_probes_are_not_in_it(self, run: Run) -> None:
        names = {span.name for span in run.receiver.spans}
        assert not [name for name in names if "/agent/" in name or "/readyz" in name or "/metrics" in name]


def test_metrics_tell_of_the_job(run: Run) -> None:
    text = run.answers["/metrics"]
    assert 'headrace_jobs{state="succeeded"} 1.0' in text
    assert 'headrace_allocation_attempts_total{result="allocated"} 1.0' in text
    assert 'headrace_job_phase_duration_seconds_count{state="provisioning"} 1.0' in text
    assert 'headrace_log_bytes_total{stream="stdout"} 5.0' in text


class TestSecrets:
    def test_they_are_in_no_file_of_the_data_directory(self, run: Run) -> None:
        assert search_tree(CANARIES, run.data_dir) == []

    def test_they_are_in_no_answer_and_no_history_not_even_decoded(self, run: Run) -> None:
        assert search_texts(CANARIES, run.answers) == []

    def test_they_are_in_no_span_and_no_metric(self, run: Run) -> None:
        exported = {f"span {span.name}": span.SerializeToString() for span in run.receiver.spans}
        exported |= {f"metric {metric.name}": metric.SerializeToString() for metric in run.receiver.metrics}
        assert search_texts(CANARIES, exported) == []

    def test_they_were_on_no_command_line(self, run: Run) -> None:
        assert run.command_lines == set()

    def test_no_log_of_a_process_holds_the_api_key(self, run: Run) -> None:
        assert run.api_key not in run.process_logs()
