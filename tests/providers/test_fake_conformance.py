"""The fake cloud's adapter keeps every promise of the provider contract, in good times and in bad."""

from collections.abc import Callable
from decimal import Decimal

import pytest

from domain.errors import (
    AuthError,
    BillingBlocked,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
)
from providers.base import InstanceSpec, Provider
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from tests.providers.conformance import MakeProvider, ProviderConformance
from tests.providers.fault_conformance import Faults, ProviderFaultConformance

ANSWERS: dict[type[ProviderError], Answer] = {
    NoCapacity: Answer.NO_CAPACITY,
    QuotaExceeded: Answer.QUOTA,
    AuthError: Answer.AUTH,
    PermissionDenied: Answer.PERMISSION,
    BillingBlocked: Answer.BILLING,
    ProviderRejected: Answer.INVALID,
    RateLimited: Answer.RATE_LIMIT,
}
LONGER_THAN_THE_TIMEOUT_SECONDS = 1.5


class FakeCloudFaults:
    """`Faults` by the cloud's schedule."""

    def __init__(self, control: CloudControl) -> None:
        self._control = control

    async def lose(self, operation: str, way: str, hidden_calls: int = 0) -> None:
        if way == "timeout":
            seconds = LONGER_THAN_THE_TIMEOUT_SECONDS
            await self._control.fault(operation, delay_after_seconds=seconds, hide_calls=hidden_calls)
        else:
            await self._control.fault(operation, Answer(way), stage="after", hide_calls=hidden_calls)

    async def refuse(self, operation: str, kind: type[ProviderError], retry_after_seconds: float | None = None) -> None:
        await self._control.fault(operation, ANSWERS[kind], retry_after_seconds=retry_after_seconds)

    async def refuse_with_status_200(self, operation: str, kind: type[ProviderError]) -> None:
        await self._control.fault(operation, ANSWERS[kind], status=200)

    async def echo(self, operation: str) -> None:
        await self._control.fault(operation, Answer.ECHO)

    async def huge_refusal(self, operation: str) -> None:
        await self._control.fault(operation, Answer.INVALID, message_bytes=3 << 20)

    async def hide_next_instance(self, calls: int) -> None:
        await self._control.fault("create", hide_calls=calls)

    async def cut_list_page(self, operation: str) -> None:
        await self._control.fault(operation, drop_items=1)

    async def unknown_status(self, spec: InstanceSpec) -> None:
        await self._control.show_status(spec.attempt_id, "RECALIBRATING")

    async def vanish(self, spec: InstanceSpec) -> None:
        await self._control.vanish(spec.attempt_id)

    async def interrupt(self, spec: InstanceSpec) -> None:
        await self._control.interrupt(spec.attempt_id)

    async def fail_next_boot(self, message: str) -> None:
        await self._control.fault("create", boot_failure="boot_failed", boot_message=message)

    async def linger(self, calls: int) -> None:
        await self._control.fault("delete", linger_calls=calls)

    async def deny_existence(self) -> None:
        await self._control.fault("delete", Answer.NOT_FOUND)

    async def instances(self, spec: InstanceSpec) -> int:
        return sum(not instance["gone"] for instance in await self._control.instances(spec.attempt_id))

    async def price_next(self, usd_per_hour: Decimal) -> None:
        await self._control.fault("create", price_usd_hr=usd_per_hour)

    async def alive(self) -> list[str]:
        return [f"{resource['type']} {resource['id']}" for resource in await self._control.alive()]


class TestFakeProvider(ProviderConformance, ProviderFaultConformance):
    __test__ = True

    @pytest.fixture
    async def make_provider(
        self, make_fake_provider: Callable[..., Provider], control: CloudControl, request: pytest.FixtureRequest
    ) -> MakeProvider:
        # Pages of two, so that every list of three has several.
        await control.settings(page_size=2, missing_images=[self.MISSING_IMAGE])
        # Only a test of silence is impatient: on a busy machine any answer may take a second.
        parameters = getattr(request.node, "callspec", None)
        silent = parameters is not None and parameters.params.get("way") == "timeout"
        options = {"timeout_seconds": 1} if silent else {}
        return lambda owner_id: make_fake_provider(owner_id, **options)

    MISSING_IMAGE = "registry.example/no/such:image"

    @pytest.fixture
    def missing_image(self) -> str:
        return self.MISSING_IMAGE

    @pytest.fixture
    def faults(self, control: CloudControl) -> Faults:
        return FakeCloudFaults(control)
