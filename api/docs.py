"""`/openapi.json` and `/docs`. The page's script and style come from an installed package, never from another host."""

from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from api import bodies
from api.compute.requests import JobCreate
from api.compute.schemas import ErrorEnvelope
from api.idempotency import HEADER as IDEMPOTENCY_KEY

DESCRIPTION = """
Submit a container and a command; Headrace finds the hardware, runs the job to completion, keeps its logs, meters and
limits its spend, and gives the hardware back.

Send `Authorization: Bearer <key>` on every request. Every error has the envelope
`{"error": {"code", "message", "request_id", "details"?}}`; `request_id` is also the header `X-Request-Id`, which a
client may set. Amounts are USD, times are RFC 3339 in UTC.
"""

_DOCUMENTED: tuple[type[BaseModel], ...] = (JobCreate, ErrorEnvelope)
_STATIC = Path(fastapi_offline.__file__).parent / "static"
_REF = "#/components/schemas/{model}"
_COMPONENT = "#/components/schemas/HTTPValidationError"


def install(app: FastAPI) -> None:
    """Adds the document and the page to `app`, which must have been made without FastAPI's own."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    app.mount("/docs/assets", StaticFiles(directory=_STATIC))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=f"{app.title} API",
            swagger_js_url="/docs/assets/swagger-ui-bundle.js",
            swagger_css_url="/docs/assets/swagger-ui.css",
            swagger_favicon_url="/docs/assets/favicon.png",
        )


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = document["components"]["schemas"]
    # Bodies are read by our own JSON reader, so the framework does not know their models.
    for model in (*_DOCUMENTED, *bodies.models()):
        schema = model.model_json_schema(ref_template=_REF)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            # Optional to the framework only, so that its absence is our 400.
            parameter["required"] = parameter["required"] or parameter["name"] == IDEMPOTENCY_KEY
        for response in operation["responses"].values():
            media = response.get("content", {}).get("application/json", {})
            # The framework announces its own shape of a 422, which our handlers replace.
            if media.get("schema", {}).get("$ref") == _COMPONENT:
                media["schema"] = {"$ref": _REF.format(model="ErrorEnvelope")}
    return document


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]
