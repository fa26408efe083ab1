"""What a process calls once, before anything else: logs, tracer, meter."""

import logging
from dataclasses import dataclass

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from domain.ids import new_id
from observability import logs
from observability.metrics import EXPORT_INTERVAL_SECONDS, create_meter_provider
from observability.tracing import export_traces
from settings import Settings


@dataclass(frozen=True)
class Telemetry:
    """The process's providers. `registry` is what `/metrics` shows; `traces` is None when nothing is exported."""

    registry: CollectorRegistry
    meters: MeterProvider
    traces: TracerProvider | None

    def shutdown(self) -> None:
        """Sends what is still held, waiting a few seconds at most for a receiver that does not answer."""
        if self.traces is not None:
            self.traces.shutdown()
        self.meters.shutdown(timeout_millis=3_000)


_process: Telemetry | None = None


def setup(
    settings: Settings, service_name: str, *, export_interval_seconds: float = EXPORT_INTERVAL_SECONDS
) -> Telemetry:
    """Configures the process (`headrace-api`, `headrace-worker`), before it connects to Temporal; a repeat changes
    nothing. With no `settings.otel_endpoint` spans cost nothing and metrics are only kept for `/metrics`."""
    global _process
    if _process is None:
        logs.configure(settings.log_format, settings.log_level)
        _forward_temporal_logs()
        _process = create(settings.otel_endpoint, service_name, export_interval_seconds)
        metrics.set_meter_provider(_process.meters)
    return _process


def process_telemetry() -> Telemetry:
    """What `setup` made; in a process without it (a test), providers that export nothing."""
    return _process or create(None, "headrace", EXPORT_INTERVAL_SECONDS)


def create(endpoint: str | None, service_name: str, export_interval_seconds: float) -> Telemetry:
    """Providers for one process. With an endpoint the tracer provider becomes the process's global one."""
    resource = Resource.create({SERVICE_NAME: service_name, SERVICE_INSTANCE_ID: new_id("proc")})
    registry = CollectorRegistry()
    meters = create_meter_provider(registry, resource, endpoint, export_interval_seconds)
    return Telemetry(registry, meters, export_traces(endpoint, resource) if endpoint else None)


def _forward_temporal_logs() -> None:
    """Temporal's core writes its warnings into our log instead of straight to the terminal."""
    forwarding = LogForwardingConfig(logging.getLogger("temporalio.core"))
    logging_config = LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logging_config)), error_if_already_set=False)
