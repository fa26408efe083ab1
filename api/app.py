"""The public API as an ASGI application."""

from fastapi import FastAPI

from api import admin, codec, compute, docs, errors, health
from api.agent import router as agent_router
from api.boundary import Boundary
from api.limits import BodyLimits
from api.services import Services
from observability import process_telemetry
from observability.http import http_telemetry, instrument_api


def create_app(services: Services) -> FastAPI:
    """All routes over `services`. It starts nothing: the tasks beside it are `api.server`'s."""
    telemetry = process_telemetry()
    app = FastAPI(
        title="Headrace",
        version="0.1.0",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=http_telemetry(telemetry),
    )
    app.state.services = services
    errors.install(app)
    app.include_router(compute.router)
    app.include_router(compute.cloud_router)
    app.include_router(admin.router)
    app.include_router(health.router)
    app.include_router(codec.router)
    app.include_router(agent_router)
    docs.install(app)
    app.add_middleware(BodyLimits, timeout_seconds=services.settings.body_timeout_seconds)
    app.add_middleware(Boundary)
    instrument_api(app, services, telemetry)
    return app
