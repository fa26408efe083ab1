"""Bounds of a request's body: its size, and the time in which it must arrive. Nothing beyond them is kept in memory."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from domain.errors import PayloadTooLarge, RequestTimeout

MAX_BODY_BYTES = 8 * 1024 * 1024
_DISCARDED_BYTES = 64 * 1024 * 1024


class BodyLimits:
    """Refuses a body over `max_bytes` with 413, and one that takes longer than `timeout_seconds` with 408.

    A body that is too large is read to its end (up to 64 MiB) and dropped chunk by chunk: many clients read no answer
    before they have sent everything.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES, timeout_seconds: float = 30) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        received = 0
        complete = False

        async def bounded_receive() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            message = await self._in_time(receive, deadline)
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._max_bytes:
                await self._refuse(receive, deadline, discard=not complete)
            return message

        headers = Headers(scope=scope)
        declared = _declared_bytes(headers)
        if declared > self._max_bytes:
            waits_for_us = headers.get("expect", "").lower() == "100-continue"
            await self._refuse(receive, deadline, discard=not waits_for_us and declared <= _DISCARDED_BYTES)
        await self._app(scope, bounded_receive, send)

    async def _in_time(self, receive: Receive, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                return await receive()
        except TimeoutError:
            raise RequestTimeout(
                f"the body did not arrive within {self._timeout_seconds:g} seconds",
                details={"limit": self._timeout_seconds},
            ) from None

    async def _refuse(self, receive: Receive, deadline: float, *, discard: bool) -> None:
        dropped = 0
        while discard and dropped <= _DISCARDED_BYTES:
            message = await self._in_time(receive, deadline)
            dropped += len(message.get("body", b""))
            discard = message.get("more_body", False)
        raise PayloadTooLarge(
            f"the body is larger than {self._max_bytes} bytes", details={"field": "body", "limit": self._max_bytes}
        )


def _declared_bytes(headers: Headers) -> int:
    """What `Content-Length` says; leading zeros cost nothing, whatever their number."""
    digits = headers.get("content-length", "0").lstrip("0")
    if not digits.isascii() or not digits.isdigit():
        return 0
    # More digits than any server holds bytes, and than Python turns into a number.
    return int(digits[:20])
