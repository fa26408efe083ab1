"""Parameters and error answers that the operations of the Compute API share, for the OpenAPI document."""

from typing import Any

_MEANINGS = {
    400: "A header is missing, the body is no JSON, or the cursor is not of this list.",
    401: "No API key, or one that is unknown or revoked.",
    403: "The organization is not enabled, or the key's role may not do this.",
    404: "There is no such resource, or it belongs to another organization.",
    408: "The body did not arrive in time.",
    409: "The request contradicts the state of the resource.",
    412: "The version in `If-Match` is not the current one.",
    413: "The body is larger than 8 MiB.",
    422: "A field is wrong; `details` names it and the limit.",
    428: "The header `If-Match` is missing.",
    429: "Too many requests with this key; `Retry-After` says how many seconds to wait.",
    501: "A documented operation that this version does not have.",
    503: "A part that the request needs is down; safe to repeat.",
}


# A reference, not a model: the framework would build a validator for every status of every operation. `api.docs` adds
# the schema.
_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented error answers of an operation: those of every one, and `statuses`."""
    return {
        status: {"description": _MEANINGS[status], "content": _CONTENT} for status in sorted({401, 429, 503, *statuses})
    }
