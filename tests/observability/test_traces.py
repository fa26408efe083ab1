"""One trace from the request into the activity, and what a whole process sends and logs, seen from outside of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from observability.tracing import current_trace_context, use_trace_context
from tests.observability.otlp_receiver import Receiver, running_receiver

ROOT = Path(__file__).parents[2]
JOB_ID, SECRET = "job_0123456789abcdef", "hr_" + "s" * 43


@dataclass
class Run:
    receiver: Receiver
    stored: dict[str, str]
    stderr: str

    def line(self, event: str) -> dict[str, Any]:
        """The one log line of that event."""
        lines: list[dict[str, Any]] = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        [found] = [line for line in lines if line["event"].startswith(event)]
        return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with running_receiver() as receiver:
        environment = os.environ | {
            "HEADRACE_OTEL_ENDPOINT": receiver.url + "/",
            "HEADRACE_DATA_DIR": str(tmp_path_factory.mktemp("data")),
            "PYTHONPATH": str(ROOT),
        }
        process = subprocess.run(
            [sys.executable, "-m", "tests.observability.traced_process"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        yield Run(receiver, json.loads(process.stdout.splitlines()[-1]), process.stderr)


class TestTrace:
    def test_every_step_is_a_child_of_the_step_before(self, run: Run) -> None:
        names = [
            "POST /api/v1/compute/jobs/{job_id}/start",
            "StartWorkflow:TracedWorkflow",
            "RunWorkflow:TracedWorkflow",
            "StartActivity:observed_activity",
            "RunActivity:observed_activity",
        ]
        spans = [run.receiver.span(name) for name in names]
        assert len({span.trace_id for span in spans}) == 1
        # The workflow's own start and the activity's schedule are both children of the span that started the workflow.
        request, start, workflow, schedule, activity = spans
        assert (start.parent_span_id, workflow.parent_span_id) == (request.span_id, start.span_id)
        assert schedule.parent_span_id in {start.span_id, workflow.span_id}
        assert activity.parent_span_id == schedule.span_id

    def test_the_stored_context_is_the_request_s_and_nothing_more(self, run: Run) -> None:
        request = run.receiver.span("POST /api/v1/compute/jobs/{job_id}/start")
        assert request.kind == Span.SPAN_KIND_SERVER
        assert set(run.stored) == {"traceparent"}
        assert run.stored["traceparent"].startswith(f"00-{request.trace_id.hex()}-{request.span_id.hex()}-")

    def test_the_service_is_named(self, run: Run) -> None:
        assert run.receiver.services == {"headrace-test"}

    def test_no_span_holds_the_secret(self, run: Run) -> None:
        assert not [span for span in run.receiver.spans if SECRET.encode() in span.SerializeToString()]

    def test_without_a_trace_nothing_is_stored_and_nothing_changes(self) -> None:
        assert current_trace_context() == {}
        with use_trace_context(None), use_trace_context({}):
            assert current_trace_context() == {}

    def test_a_stored_context_that_is_damaged_is_no_error(self) -> None:
        with use_trace_context({"traceparent": "nonsense"}):
            assert current_trace_context() == {}


class TestMetricsByOtlp:
    def test_requests_log_bytes_and_the_database_s_gauges_arrive(self, run: Run) -> None:
        names = {metric.name for metric in run.receiver.metrics}
        assert {"http.server.request.duration", "headrace.log.bytes", "headrace.jobs", "headrace.inbox.age"} <= names

    def test_a_request_is_counted_by_route_method_and_status_only(self, run: Run) -> None:
        metric = next(m for m in run.receiver.metrics if m.name == "http.server.request.duration")
        [point] = metric.histogram.data_points
        assert {a.key for a in point.attributes} == {
            "http.route",
            "http.request.method",
            "http.response.status_code",
        }


class TestLogs:
    def test_a_request_s_line_names_request_job_and_trace(self, run: Run) -> None:
        line = run.line("request_at_work")
        assert (line["request_id"], line["job_id"], line["level"]) == ("req_1", JOB_ID, "info")
        assert line["trace_id"] == run.stored["traceparent"].split("-")[1]

    def test_an_activity_s_line_names_its_job(self, run: Run) -> None:
        line = run.line("activity_at_work")
        assert (line["job_id"], line["activity"], line["attempt"]) == (JOB_ID, "observed_activity", 1)

    def test_a_workflow_s_line_names_its_job(self, run: Run) -> None:
        assert run.line("workflow_at_work")["job_id"] == JOB_ID

    def test_a_library_s_line_has_the_same_form(self, run: Run) -> None:
        line = run.line("library_at_work")
        assert (line["level"], line["logger"]) == ("warning", "some.library")

    def test_no_line_holds_the_secret(self, run: Run) -> None:
        assert SECRET not in run.stderr
        assert "hr_***" in run.stderr
