"""What the OpenAPI document allows, and what it does not, against the application itself: never a 5xx, whoever asks."""

import re
from contextlib import suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from api.app import create_app
from api.services import Services
from domain.roles import Role
from domain.states import JobState
from store.db import Database
from tests.conftest import BOTH_ENGINES
from tests.support.factory import Factory

_PARAMETER = re.compile(r"\{(\w+)\}")
_SETTINGS = settings(
    max_examples=6,
    # The same requests in every run: a failure is found again.
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(params=BOTH_ENGINES)
def database(request: pytest.FixtureRequest) -> Database:
    """Both kinds: what one of them stores without a word, the other one refuses."""
    opened: Database = request.getfixturevalue(f"{request.param}_database")
    return opened


@pytest.fixture
def operations(services: Services) -> list[Any]:
    """All but what is not built, which answers 501, and `/readyz`, which answers 503 where no Temporal is."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(services))
    wanted = schema.exclude(tag="Not implemented yet").exclude(path="/readyz")
    return [result.ok() for result in wanted.get_all_operations()]


@pytest.fixture
def known(factory: Factory) -> dict[str, str]:
    """Ids that exist, by a part of the paths that take them: made up ones are mostly not found."""
    return {
        "/jobs/": factory.job(JobState.RUNNING).id,
        "/keys/": factory.key().key_id,
        "{org_id}": factory.default_organization().id,
        "{name}": "cpu-general",
    }


@pytest.mark.timeout(120)
def test_no_request_is_answered_with_a_defect(operations: list[Any], factory: Factory, known: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {factory.key(role=Role.CLUSTER_ADMIN).token}"}
    assert len(operations) > 30

    def ask(case: Any) -> None:
        # A held request is what it asks for, and takes its time.
        (case.query or {}).pop("wait", None)
        answer = case.call(headers=headers)
        assert answer.status_code < 500, (case.operation.label, answer.status_code, answer.text, repr(case))

    for operation in operations:
        for requests in _requests(operation, known):
            # Some operations take nothing that could be wrong.
            with suppress(Unsatisfiable):
                _SETTINGS(given(requests)(ask))()


def _requests(operation: Any, known: dict[str, str]) -> list[st.SearchStrategy[Any]]:
    """What is allowed and what is not, of anything and of what there is."""
    parameters = _PARAMETER.findall(operation.path)
    found = next((value for part, value in known.items() if part in operation.path), None)
    there = dict.fromkeys(parameters, found) if found is not None else {}
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    made_up = [operation.as_strategy(mode) for mode in modes]
    return made_up + [operation.as_strategy(mode, path_parameters=there) for mode in modes if there]


async def test_characters_that_a_database_refuses_are_no_defect_anywhere(services: Services, factory: Factory) -> None:
    app = create_app(services)
    headers = {"Authorization": f"Bearer {factory.key(role=Role.CLUSTER_ADMIN).token}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://headrace", headers=headers) as client:
        for path, methods in app.openapi()["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == ["Not implemented yet"] or path == "/readyz":
                    continue
                queries = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
                for text in ("%00", "a%00b", "%ED%A0%80", "%F0%9F%98%80"):
                    url = _PARAMETER.sub(text, path)
                    for asked in (url, *(f"{_PARAMETER.sub('x', path)}?{name}={text}" for name in queries)):
                        answer = await client.request(method, asked)
                        assert answer.status_code < 500, (method, asked, answer.text)
