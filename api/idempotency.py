"""`Idempotency-Key`: required on creates; the same key with the same body answers with what it made before."""

import re
from typing import Annotated

from fastapi import Header, Request

from domain.errors import BadRequest, InvalidRequest

HEADER = "Idempotency-Key"
LENGTH = 255
_PRINTABLE = re.compile(r"[\x20-\x7e]+")

IdempotencyKey = Annotated[
    str | None,
    Header(alias=HEADER, description=f"Required: 1 to {LENGTH} printable characters, new for each resource."),
]
"""Documents the header; `idempotency_key` reads it, so that its absence is a 400 and not a 422."""


def idempotency_key(request: Request) -> str:
    """The key of a request.

    Raises:
        BadRequest: there is none (`idempotency_key_required`).
        InvalidRequest: it is too long, or not printable ASCII.
    """
    key = request.headers.get(HEADER, "").strip()
    if not key:
        raise BadRequest(
            f"the header {HEADER} is required: any string of yours that is new for each resource",
            code="idempotency_key_required",
        )
    if len(key) > LENGTH or not _PRINTABLE.fullmatch(key):
        raise InvalidRequest(f"{HEADER}: at most {LENGTH} printable ASCII characters", field=HEADER, limit=LENGTH)
    return key
