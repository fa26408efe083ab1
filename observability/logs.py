"""Structured logs on standard error: one JSON object a line, of our own code and of every library alike.

Job id and request id are bound as context variables (`structlog.contextvars`) by the request or the activity. Whatever
looks like a credential is masked in the finished line, wherever in it it stands.
"""

import contextlib
import logging
import re
import sys
from typing import Any, TextIO, cast

import orjson
import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"
_CREDENTIALS = (
    # API keys, bootstrap tokens, session tokens.
    (re.compile(r"\bhr_[A-Za-z0-9_-]{16,}"), f"hr_{MASK}"),
    (re.compile(r"\b(hr[bs])\.[A-Za-z0-9._-]{16,}"), rf"\1.{MASK}"),
    # Master keys, as the setting holds them.
    (re.compile(r"\b(k[0-9a-f]{8}):[A-Za-z0-9+/]{43}="), rf"\1:{MASK}"),
    (re.compile(r"\b([Bb]earer|[Bb]asic) [A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    # The password of a URL.
    (re.compile(r"(://[^/\s:@\"]*):[^/\s@\"]+@"), rf"\1:{MASK}@"),
)
_QUIET = ("alembic", "asyncio", "botocore", "httpcore", "httpx", "opentelemetry", "urllib3")


def redact(text: str) -> str:
    """`text` with every known form of a credential masked."""
    for pattern, replacement in _CREDENTIALS:
        text = pattern.sub(replacement, text)
    return text


def configure(log_format: str, level: str) -> None:
    """Routes structlog and the standard library's loggers into one stream. `log_format`: `json` or `console`."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
        structlog.processors.format_exc_info,
    ]
    final: list[Processor] = [_renderer(log_format), _redact_line]
    stream = _Lossy(sys.stderr)
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, stream)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, _add_temporal_context],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Lossy:
    """A stream that loses what cannot be written: with a full disk or a reader that went away, a line of the log is not
    worth the work that it tells of."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _renderer(log_format: str) -> Processor:
    if log_format == "console":
        return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return structlog.processors.JSONRenderer(serializer=_to_json)


def _to_json(event: EventDict, **_options: Any) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _redact_line(_logger: WrappedLogger, _method: str, line: EventDict) -> str:
    # After the renderer the "event" is the finished line.
    return redact(str(line))


def _add_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
    return event


def _add_temporal_context(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Temporal's loggers name the workflow in a field of the record: a job's workflow has the job's id."""
    record: logging.LogRecord = event["_record"]
    context = getattr(record, "temporal_workflow", None) or getattr(record, "temporal_activity", None) or {}
    if "workflow_id" in context:
        event.setdefault("job_id", context["workflow_id"])
    return event
