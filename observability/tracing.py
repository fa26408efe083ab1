"""Traces from an API request through the job's workflow into its activities.

The workflow is started off the request path, by another task and perhaps another process: the request stores its trace
context on the job's row, and the dispatcher starts the workflow inside of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_HEADER = "traceparent"
EXPORT_TIMEOUT_SECONDS = 2


def current_trace_context() -> dict[str, str]:
    """The current span as `Job.trace_context` keeps it; empty outside of any span, as when tracing is off."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    # A caller's `tracestate` is not kept: it is unbounded text of a stranger.
    return {_HEADER: carrier[_HEADER]} if _HEADER in carrier else {}


@contextmanager
def use_trace_context(stored: Mapping[str, str] | None) -> Iterator[None]:
    """Spans begun inside are children of what `current_trace_context` returned; nothing changes for None or empty."""
    if not stored:
        yield
        return
    token = context.attach(_PROPAGATOR.extract(stored, context.Context()))
    try:
        yield
    finally:
        context.detach(token)


def export_traces(endpoint: str, resource: Resource) -> TracerProvider:
    """The process's tracer provider, exporting in batches to an OTLP/HTTP receiver at `endpoint`."""
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider
