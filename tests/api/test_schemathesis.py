"""What the OpenAPI document allows, and what it does not, against the application itself: never a 5xx, whoever asks."""

import re
from contextlib import suppress
from typing import Any

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
