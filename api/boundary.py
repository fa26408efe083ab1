"""The outermost layer of every request: its id, and an answer whatever happens inside."""

import re
from collections.abc import MutableMapping
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import internal_error, render
from domain.errors import RequestError
from domain.ids import new_id

logger = structlog.get_logger(__name__)

HEADER = "X-Request-Id"
_ACCEPTED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class Boundary:
    """Accepts or makes `X-Request-Id`, returns it on every answer, and turns a defect into a logged 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except RequestError as error:
                if started:
                    raise
                await render(error, request_id)(scope, receive, send_with_id)
            except Exception:
                logger.exception("request_failed", method=scope["method"], path=scope["path"])
                if started:
                    raise
                await internal_error(request_id)(scope, receive, send_with_id)


def _request_id(scope: MutableMapping[str, Any]) -> str:
    wanted = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return wanted if _ACCEPTED.fullmatch(wanted) else new_id("req")
