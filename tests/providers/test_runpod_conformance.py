"""The RunPod adapter keeps every promise of the provider contract, at a fake RunPod that speaks its two APIs."""

from collections.abc import AsyncIterator

import pytest

from domain.errors import ProviderError
from domain.offers import Offer
from domain.spec import ComputeRequest
from providers.base import OfferQuery, Provider
from providers.fake.control import CloudControl
from tests.providers.conformance import MakeProvider, ProviderConformance
from tests.providers.fault_conformance import Faults, ProviderFaultConformance
from tests.providers.runpod_fake.server import RunningRunPod, serve_runpod
from tests.providers.runpod_support import make_runpod
from tests.providers.test_fake_conformance import FakeCloudFaults

MISSING_IMAGE = "registry.example/no/such:image"


@pytest.fixture
async def runpod() -> AsyncIterator[RunningRunPod]:
    """Its agents stay silent unless a test gives them a script."""
    async with serve_runpod() as running:
        control = CloudControl(running.url)
        await control.script(never_hello=True)
        # Pages of two, so that every list of three has several.
        await control.settings(page_size=2, missing_images=[MISSING_IMAGE])
        await control.close()
        yield running


@pytest.fixture
async def control(runpod: RunningRunPod) -> AsyncIterator[CloudControl]:
    control = CloudControl(runpod.url)
    yield control
    await control.close()


class RunPodFaults(FakeCloudFaults):
    """RunPod knows no look-up of one attempt: `find` is a list."""

    async def lose(self, operation: str, way: str, hidden_calls: int = 0) -> None:
        await super().lose(_as_asked(operation), way, hidden_calls)

    async def refuse(self, operation: str, *args: object, **fields: object) -> None:
        await super().refuse(_as_asked(operation), *args, **fields)  # type: ignore[arg-type]

    async def refuse_with_status_200(self, operation: str, kind: type[ProviderError]) -> None:
        await super().refuse_with_status_200(_as_asked(operation), kind)

    async def cut_list_page(self, operation: str) -> None:
        await super().cut_list_page(_as_asked(operation))


def _as_asked(operation: str) -> str:
    return "list" if operation == "find" else operation


class TestRunPod(ProviderConformance, ProviderFaultConformance):
    __test__ = True

    @pytest.fixture
    async def make_provider(self, runpod: RunningRunPod, request: pytest.FixtureRequest) -> MakeProvider:
        # Only a test of silence is impatient: on a busy machine any answer may take a second.
        parameters = getattr(request.node, "callspec", None)
        silent = parameters is not None and parameters.params.get("way") == "timeout"
        options = {"timeout_seconds": 1} if silent else {}
        return lambda owner_id: make_runpod(runpod, owner_id, **options)

    @pytest.fixture
    def image(self) -> str:
        return "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"

    @pytest.fixture
    def missing_image(self) -> str:
        return MISSING_IMAGE

    @pytest.fixture
    def compute(self) -> ComputeRequest:
        return ComputeRequest(accelerator="nvidia-rtx-4090-24gb", gpu_count=1, ephemeral_disk_gb=20)

    @pytest.fixture
    def faults(self, control: CloudControl) -> Faults:
        return RunPodFaults(control)


class TestRunPodSpot(TestRunPod):
    """The same for spot pods, which are rented through GraphQL."""

    @pytest.fixture
    async def offer(self, provider: Provider, compute: ComputeRequest) -> Offer:
        offers = await provider.offers(OfferQuery(compute.accelerator, compute.gpu_count))
        return next(offer for offer in offers if offer.spot and offer.available)
