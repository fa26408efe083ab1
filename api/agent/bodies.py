"""Bodies that agents send: bounded while they are read, and never trusted."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import Field, ValidationError

from api.errors import invalid
from domain.errors import BadRequest, PayloadTooLarge
from domain.outcome import ExitReport
from domain.spec import Frozen

CHUNK_BYTES = 1 << 20
MESSAGE_BYTES = 64 << 10
LAST_OFFSET = 1 << 53

_PROGRESS_LINES = 500


class ExitForm(Frozen):
    """The exit report as an agent may state it; offsets count bytes."""

    status: int = Field(ge=0, le=255)
    signal: int = Field(default=0, ge=0, le=64)
    stdout: int = Field(ge=0, le=LAST_OFFSET)
    stderr: int = Field(ge=0, le=LAST_OFFSET)
    interrupted: bool = False

    def report(self) -> ExitReport:
        return ExitReport(
            status=self.status,
            signal=self.signal,
            stdout_bytes=self.stdout,
            stderr_bytes=self.stderr,
            interrupted=self.interrupted,
        )


async def read_body(request: Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes.

    Raises:
        PayloadTooLarge: it is longer; no more than that is kept.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes", details={"limit": limit})
    return bytes(body)


async def read_lines(request: Request) -> list[str]:
    """The lines of a text body; bytes that are no UTF-8 are replaced, empty lines are dropped."""
    text = (await read_body(request, MESSAGE_BYTES)).decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()][:_PROGRESS_LINES]


async def read_exit(request: Request) -> ExitReport:
    """The exit report of a form body.

    Raises:
        BadRequest: it is no form.
        InvalidRequest: a field is missing, unknown or out of bounds.
    """
    try:
        fields: Mapping[str, str] = dict(
            parse_qsl((await read_body(request, MESSAGE_BYTES)).decode("ascii"), max_num_fields=16)
        )
    except ValueError:
        raise BadRequest("the exit report is no form") from None
    try:
        return ExitForm.model_validate(fields).report()
    except ValidationError as error:
        raise invalid(error) from None
