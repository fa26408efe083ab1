"""Metrics: one meter provider a process, shown at `/metrics` and, where there is a receiver, also sent by OTLP."""

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from observability.tracing import EXPORT_TIMEOUT_SECONDS

EXPORT_INTERVAL_SECONDS = 15
_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PHASE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)

_log_bytes = metrics.get_meter("headrace").create_counter(
    "headrace.log.bytes", unit="By", description="Log bytes accepted from workloads, by stream."
)


def count_log_bytes(stream: str, count: int) -> None:
    """`count` bytes of `stdout` or `stderr` were stored."""
    _log_bytes.add(count, {"stream": stream})


def create_meter_provider(
    registry: CollectorRegistry, resource: Resource, endpoint: str | None, interval_seconds: float
) -> MeterProvider:
    """Reads into `registry`; with an `endpoint` also exports every `interval_seconds` to that OTLP/HTTP receiver."""
    readers: list[MetricReader] = [PrometheusMetricReader(registry=registry, scope_info_enabled=False)]
    if endpoint:
        exporter = OTLPMetricExporter(f"{endpoint.rstrip('/')}/v1/metrics", timeout=EXPORT_TIMEOUT_SECONDS)
        readers.append(PeriodicExportingMetricReader(exporter, interval_seconds * 1000))
    return MeterProvider(readers, resource, views=_views())


def _views() -> list[View]:
    """What a client sends (its Host header) must not become a label: it would make series without bound."""
    return [
        View(
            instrument_name="http.server.request.duration",
            attribute_keys={"http.route", "http.request.method", "http.response.status_code"},
            aggregation=ExplicitBucketHistogramAggregation(_REQUEST_BUCKETS),
        ),
        View(instrument_name="http.server.active_requests", aggregation=DropAggregation()),
        View(
            instrument_name="headrace.job.phase.duration",
            aggregation=ExplicitBucketHistogramAggregation(_PHASE_BUCKETS),
        ),
    ]
