"""The OpenAPI document is whole, and the page that shows it needs no other host."""

import re
from typing import Any

import pytest

from tests.api.conftest import JOB, Api, anonymous


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    return dict(anonymous(f"{api.url}/openapi.json").json())


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(references(item) for item in value))
    return set()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_operation_has_a_summary_and_its_errors_in_the_envelope(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert operation["summary"], name
        if "/compute/" not in name:
            continue
        assert "401" in operation["responses"], name
        for status, response in operation["responses"].items():
            if status >= "400":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorEnvelope"}, (name, status)


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_a_create_is_documented_with_an_example_that_is_accepted(api: Api, document: dict[str, Any]) -> None:
    create = document["paths"]["/api/v1/compute/jobs"]["post"]
    assert {p["name"]: p["required"] for p in create["parameters"]} == {
        "Idempotency-Key": True,
        "X-On-Behalf-Of": False,
    }
    media = create["requestBody"]["content"]["application/json"]
    assert media["schema"] == {"$ref": "#/components/schemas/JobCreate"}
    assert api.create(media["example"]).status_code == 201
    schema = document["components"]["schemas"]["JobCreate"]
    assert set(JOB) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    limits = document["components"]["schemas"]["LimitsRequest"]["properties"]["max_cost_usd"]
    assert {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000_000} in limits["anyOf"]


def test_an_answer_has_the_documented_fields(api: Api, document: dict[str, Any]) -> None:
    answer = api.create().json()
    schema = document["components"]["schemas"]["Job"]
    assert set(schema["required"]) <= set(answer) <= set(schema["properties"])


def test_the_page_loads_nothing_from_elsewhere(api: Api) -> None:
    page = anonymous(f"{api.url}/docs")
    assert page.status_code == 200
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) >= 3
    for source in sources:
        assert source.startswith("/docs/assets/")
        asset = anonymous(api.url + source)
        assert (asset.status_code, len(asset.content) > 0) == (200, True)
