"""The adapter to SSH fleets keeps every promise of the provider contract, at a real sshd and a real engine."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.conformance import MakeProvider, ProviderConformance
from tests.providers.ssh_fleet import RunningFleet, running_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "solo") as running:
        yield running


@pytest.mark.e2e
@pytest.mark.containers
class TestSsh(ProviderConformance):
    __test__ = True

    @pytest.fixture
    def make_provider(self, fleet: RunningFleet, tmp_path: Path) -> MakeProvider:
        unique = uuid.uuid4().hex[:8]
        return lambda owner: fleet.provider(fleet.fleet("solo"), tmp_path, f"{owner}-{unique}")
