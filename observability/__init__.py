"""Logs, traces and metrics of the processes: set up once at the start, and a few calls for the rest of the code."""

from observability.http import instrument_api
from observability.metrics import count_log_bytes
from observability.process import Telemetry, setup
from observability.tracing import current_trace_context, use_trace_context

__all__ = [
    "Telemetry",
    "count_log_bytes",
    "current_trace_context",
    "instrument_api",
    "setup",
    "use_trace_context",
]
