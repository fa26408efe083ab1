"""The API's part: a span and a duration for each request, the job's id in its log lines, and `/metrics`."""

import asyncio
import hmac
import re
from typing import Protocol

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send

from domain.clock import Clock
from domain.errors import NotAuthenticated
from observability.process import Telemetry
from observability.sampling import DatabaseMetrics
from settings import Settings
from store.db import Database

# Probes, scrapes and the many small calls of agents would bury the requests of users.
_UNTRACED = ("/healthz", "/readyz", "/metrics", "/agent/v1/")
_JOB_PATH = re.compile(r"/jobs/(job_[0-9A-Za-z]{1,32})(?:/|$)")


class ObservedServices(Protocol):
    """The part of `api.services.Services` that is needed here."""

    @property
    def settings(self) -> Settings: ...

    @property
    def db(self) -> Database: ...

    @property
    def clock(self) -> Clock: ...


def http_telemetry(telemetry: Telemetry) -> TelemetryConfig:
    """For `FastAPI(telemetry=...)`: every request is measured and, where traces are exported, a span."""
    return {
        "meter_provider": telemetry.meters,
        "metrics": True,
        "tracer_provider": telemetry.traces,
        "tracing": telemetry.traces is not None,
        "operation_spans": False,
        "logs": False,
        "exclude": lambda scope: scope["path"].startswith(_UNTRACED),
    }


def no_http_telemetry() -> TelemetryConfig:
    """For `FastAPI(telemetry=...)` of an application whose requests are neither measured nor traced."""
    return {"metrics": False, "tracing": False, "logs": False}


def instrument_api(app: FastAPI, services: ObservedServices, telemetry: Telemetry) -> None:
    """Adds the route `/metrics` and binds the job's id to the log lines of a request. `telemetry` is what the
    application was made with, see `http_telemetry`."""
    DatabaseMetrics(services.db, services.clock, telemetry.meters)
    token = services.settings.metrics_token

    async def metrics(request: Request) -> Response:
        if token is not None and not _bears(request, token.get_secret_value()):
            raise NotAuthenticated("/metrics needs the token of HEADRACE_METRICS_TOKEN")
        # Collecting reads the database: not in the event loop.
        text = await asyncio.to_thread(generate_latest, telemetry.registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.add_route("/metrics", metrics, include_in_schema=False)
    app.add_middleware(JobLogContext)


class JobLogContext:
    """Whatever is logged while a request about a job is served names that job."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _JOB_PATH.search(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        with structlog.contextvars.bound_contextvars(job_id=found[1]):
            await self._app(scope, receive, send)


def _bears(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
