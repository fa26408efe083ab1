"""The agent routes alone, as the Unix socket serves them. The public listener includes the same router."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.requests import ClientDisconnect

from api.agent.routes import router
from api.boundary import Boundary
from api.errors import invalid
from api.limits import BodyLimits
from api.services import Services
from domain.errors import RequestError
from observability.http import no_http_telemetry


def create_agent_app(services: Services) -> FastAPI:
    """An application with the agent routes and nothing else. Errors are one line of text: `code: message`."""
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=no_http_telemetry()
    )
    app.state.services = services
    app.include_router(router)
    app.add_middleware(BodyLimits, timeout_seconds=services.settings.body_timeout_seconds)
    app.add_middleware(Boundary)

    @app.exception_handler(RequestError)
    async def refused(_request: Request, error: RequestError) -> Response:
        return _line(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> Response:
        return _line(invalid(error, skip=1))

    @app.exception_handler(OperationalError)
    @app.exception_handler(InterfaceError)
    async def database_down(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("unavailable: the database does not answer\n", 503)

    @app.exception_handler(ClientDisconnect)
    async def went_away(_request: Request, _error: ClientDisconnect) -> Response:
        return PlainTextResponse("client_disconnected: the body ended early\n", 400)

    return app


def _line(error: RequestError) -> Response:
    return PlainTextResponse(f"{error.code}: {error.message}\n", error.status)
