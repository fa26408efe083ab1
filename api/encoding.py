"""JSON in and out: numbers without float error, times with `Z`, no value that JSON does not have."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
from fastapi import Response

from domain.errors import BadRequest, InvalidRequest

_OPTIONS = orjson.OPT_UTC_Z


def number(value: Decimal) -> orjson.Fragment:
    """A decimal as the JSON number of its own digits: `0.440` is 0.44, `5.00` is 5."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return orjson.Fragment("0" if text in {"-0", ""} else text)


def encode(content: Any) -> bytes:
    """JSON of what answers are made of: dicts, lists, strings, ints, `datetime` (UTC, with `Z`) and `Decimal`."""
    return orjson.dumps(content, default=_default, option=_OPTIONS)


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer of the API. Its model is documented and not run: that would cost more than reading 50 jobs."""
    return Response(encode(content), status, headers=headers, media_type="application/json")


def timestamp(value: datetime | None) -> str | None:
    """RFC 3339 in UTC with `Z`, for text that is not JSON."""
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def parse_json(body: bytes) -> Any:
    """The value of a request body; numbers with a fraction or an exponent are exact `Decimal`s.

    Raises:
        BadRequest: it is no JSON (`invalid_json`).
        InvalidRequest: a string holds NUL, which neither an environment nor a database can hold.
    """
    if not body.strip():
        raise BadRequest("the request has no body; JSON is wanted", code="invalid_json")
    try:
        # orjson is the stricter reader (UTF-8, surrogates, NaN, depth); the standard library's keeps the digits.
        orjson.loads(body)
        value = json.loads(body, parse_float=Decimal)
        if b"\\u0000" in body:
            _refuse_nul(value, ())
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRequest(f"the body is not valid JSON{where}", code="invalid_json") from None
    return value


def canonical_json(value: Any) -> bytes:
    """The same bytes for equal values, in whatever order their keys stood and however their numbers were written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_canonical_number).encode()


def dotted(path: tuple[int | str, ...]) -> str:
    """A field's place as people write it, `container.ports.0.name`; parts that a hostile caller made are cut short.
    The body itself is `body`."""
    return ".".join(str(part)[:64] for part in path[:16]) or "body"


def _default(value: Any) -> Any:
    if isinstance(value, Decimal):
        return number(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def _canonical_number(value: Any) -> Any:
    assert isinstance(value, Decimal), type(value)
    # NUL stands in no accepted string, so no string can be mistaken for such a number.
    return int(value) if value == value.to_integral_value() else f"\0{value.normalize()}"


def _refuse_nul(value: Any, path: tuple[int | str, ...]) -> None:
    if isinstance(value, str) and "\0" in value:
        raise InvalidRequest(f"{dotted(path)}: holds a NUL character", field=dotted(path))
    if isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_nul(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if "\0" in key:
                raise InvalidRequest(f"{dotted(path)}: a name holds a NUL character", field=dotted(path))
            _refuse_nul(item, (*path, key))
