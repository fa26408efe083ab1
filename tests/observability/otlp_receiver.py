"""A small OTLP/HTTP receiver: keeps what it is sent, decoded."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """`spans` and `metrics` grow as processes export; `services` are the names that they gave."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: list[Metric] = []
        self.services: set[str] = set()
        self.url = ""

    def span(self, name: str) -> Span:
        """The one span of that name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                self._name(traces.resource.attributes)
                self.spans += [span for scope in traces.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self._name(metrics.resource.attributes)
                self.metrics += [metric for scope in metrics.scope_metrics for metric in scope.metrics]
        else:
            raise AssertionError(f"unexpected path {path}")

    def _name(self, attributes: object) -> None:
        self.services |= {a.value.string_value for a in attributes if a.key == "service.name"}  # type: ignore[attr-defined]


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(self.path, body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield receiver
    server.shutdown()
    server.server_close()
