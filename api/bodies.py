"""JSON bodies of requests: read by our own strict reader, checked by a model, documented with an example."""

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.encoding import parse_json
from api.errors import invalid
from domain.errors import InvalidRequest

_documented: list[type[BaseModel]] = []

M = TypeVar("M", bound=BaseModel)


def documented(model: type[BaseModel], example: Any) -> dict[str, Any]:
    """The `openapi_extra` of an operation whose body is a `model`; `api.docs` adds the model to the document."""
    _documented.append(model)
    media = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}, "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}


def models() -> tuple[type[BaseModel], ...]:
    """All that were documented."""
    return tuple(_documented)


async def parsed(request: Request, model: type[M]) -> M:
    """The body as a `model`.

    Raises:
        BadRequest: it is no JSON.
        InvalidRequest: it names the field and the limit; never a value, which may be secret.
    """
    body = parse_json(await request.body())
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise invalid(error) from None
