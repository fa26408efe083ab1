"""The local provider keeps every promise of the provider contract, with each of its engines."""

import uuid
from pathlib import Path

import pytest

from tests.providers.conformance import MakeProvider, ProviderConformance
from tests.providers.local_support import HAS_DOCKER, make_local


class TestSandbox(ProviderConformance):
    __test__ = True

    @pytest.fixture
    def make_provider(self, tmp_path: Path) -> MakeProvider:
        return lambda owner: make_local(tmp_path / "data", "sandbox", owner=owner)


@pytest.mark.containers
class TestPodman(ProviderConformance):
    __test__ = True

    @pytest.fixture
    def make_provider(self, podman_data: Path) -> MakeProvider:
        # Containers of tests that run beside this one are on the same machine: each test has owners of its own.
        unique = uuid.uuid4().hex[:8]
        return lambda owner: make_local(podman_data, "podman", owner=f"{owner}-{unique}")


@pytest.mark.containers
class TestDocker(ProviderConformance):
    # Where somebody runs a daemon: `tests/prepare` starts none.
    __test__ = HAS_DOCKER

    @pytest.fixture
    def make_provider(self, podman_data: Path) -> MakeProvider:
        unique = uuid.uuid4().hex[:8]
        return lambda owner: make_local(podman_data, "docker", owner=f"{owner}-{unique}")
