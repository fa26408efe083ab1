"""One envelope for every error: `{"error": {"code", "message", "request_id", "details"?}}`.

Routes raise `domain.errors`; the handlers here render them by class, and whatever the framework raises too.
"""

from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.encoding import dotted, json_response
from domain.errors import HeadraceError, InvalidRequest, RequestError, TooManyRequests, Unavailable

logger = structlog.get_logger(__name__)

_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type"}
_BOUNDS = ("max_length", "min_length", "le", "lt", "ge", "gt", "max_digits", "decimal_places")
_SHOWN_PROBLEMS = 10
_UNKNOWN = "unknown field"


def envelope(
    status: int,
    code: str,
    message: str,
    request_id: str,
    details: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """The answer for an error."""
    error: dict[str, Any] = {"code": code, "message": message, "request_id": request_id}
    if details:
        error["details"] = details
    return json_response({"error": error}, status, headers)


def render(error: RequestError, request_id: str) -> Response:
    """The answer for a refusal of ours."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 503:
        headers["Retry-After"] = "1"
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status in {408, 413}:
        # What is left of the body is not worth reading.
        headers["Connection"] = "close"
    return envelope(error.status, error.code, error.message, request_id, error.details, headers)


def internal_error(request_id: str) -> Response:
    """The answer for a defect: the log has the rest under the request id."""
    return envelope(500, "internal_error", f"an internal error; the log names it by {request_id}", request_id)


def request_id_of(request: Request) -> str:
    """The id that `api.boundary` gave the request."""
    request_id: str = request.state.request_id
    return request_id


def invalid(error: ValidationError | RequestValidationError, skip: int = 0) -> InvalidRequest:
    """What pydantic found, as our error: the first problem's field and limit, and up to ten problems in all.

    `skip` drops leading parts of the location (FastAPI's `query`, `path`). Input is never echoed: it may be secret.
    """
    # A misspelt name is also a missing one: the name that was written says more.
    problems = sorted((_problem(entry, skip) for entry in _entries(error)), key=lambda p: p["message"] != _UNKNOWN)
    first = problems[0]
    refusal = InvalidRequest(f"{first['field']}: {first['message']}", field=first["field"], limit=first.get("limit"))
    if len(problems) > 1:
        refusal.details = {**(refusal.details or {}), "problems": problems[:_SHOWN_PROBLEMS]}
    return refusal


def install(app: FastAPI) -> None:
    """Registers the handlers."""

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return render(error, request_id_of(request))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return render(invalid(error, skip=1), request_id_of(request))

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, f"http_{error.status_code}")
        message = f"{request.method} {request.url.path[:200]}: {str(error.detail).lower()}"
        return envelope(error.status_code, code, message, request_id_of(request), headers=dict(error.headers or {}))

    @app.exception_handler(OperationalError)
    @app.exception_handler(InterfaceError)
    async def database_down(request: Request, error: Exception) -> Response:
        logger.error("database_unavailable", error=str(error.__cause__ or error)[:500])
        return render(
            Unavailable("the database does not answer; nothing was changed, try again"), request_id_of(request)
        )

    @app.exception_handler(ClientDisconnect)
    async def client_went_away(request: Request, _error: ClientDisconnect) -> Response:
        return envelope(400, "client_disconnected", "the body ended early", request_id_of(request))


def _entries(error: ValidationError | RequestValidationError) -> Sequence[Any]:
    if isinstance(error, ValidationError):
        return error.errors(include_url=False, include_input=False)
    return error.errors()


def _problem(entry: Any, skip: int) -> dict[str, Any]:
    context = entry.get("ctx") or {}
    problem: dict[str, Any] = {"field": dotted(tuple(part for part in entry["loc"][skip:] if part != "[key]"))}
    cause = context.get("error")
    if isinstance(cause, HeadraceError):
        problem["message"] = str(cause)
    elif entry["type"] == "extra_forbidden":
        problem["message"] = _UNKNOWN
    elif entry["type"] == "missing":
        problem["message"] = "required"
    else:
        problem["message"] = str(entry["msg"]).removeprefix("Value error, ")
    limit = next((context[name] for name in _BOUNDS if name in context), getattr(cause, "limit", None))
    if limit is not None:
        problem["limit"] = limit
    return problem
