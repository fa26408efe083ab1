"""Logs, traces and metrics of the processes: set up once at the start, and a few calls for the rest of the code.

The API's part is in `observability.http`: the worker does without FastAPI and its memory.
"""

from observability.metrics import count_log_bytes
from observability.process import Telemetry, process_telemetry, setup
from observability.tracing import current_trace_context, use_trace_context

__all__ = [
    "Telemetry",
    "count_log_bytes",
    "current_trace_context",
    "process_telemetry",
    "setup",
    "use_trace_context",
]
