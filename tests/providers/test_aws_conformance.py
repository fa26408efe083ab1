"""The adapter to EC2 keeps every promise of the provider contract: boto3 itself against moto, in good times and bad."""

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
from providers.aws.provider import AwsProvider
from providers.base import InstanceSpec
from tests.providers.aws_server import Answer, AwsServer, Call, Fault, edited, error_for
from tests.providers.conformance import MakeProvider, ProviderConformance
from tests.providers.fault_conformance import Faults, ProviderFaultConformance

CODES: dict[type[ProviderError], tuple[int, str]] = {
    NoCapacity: (500, "InsufficientInstanceCapacity"),
    QuotaExceeded: (400, "VcpuLimitExceeded"),
    AuthError: (401, "AuthFailure"),
    PermissionDenied: (403, "UnauthorizedOperation"),
    BillingBlocked: (403, "PendingVerification"),
    ProviderRejected: (400, "InvalidParameterValue"),
    RateLimited: (503, "RequestLimitExceeded"),
}
HOLLOWED = {"find": "reservationSet", "list": "reservationSet", "offers": "spotPriceHistorySet"}


class AwsFaults:
    """`Faults` by the server before moto."""

    def __init__(self, aws: AwsServer) -> None:
        self._aws = aws

    async def lose(self, operation: str, way: str, hidden_calls: int = 0) -> None:
        self._aws.faults.append(Fault(operation, spoil=self._hiding(hidden_calls), loss=way))

    async def refuse(self, operation: str, kind: type[ProviderError], retry_after_seconds: float | None = None) -> None:
        status, code = CODES[kind]
        headers = {} if retry_after_seconds is None else {"Retry-After": f"{retry_after_seconds:g}"}
        self._refuse(operation, status, code, lambda call: "refused", headers)

    async def refuse_with_status_200(self, operation: str, kind: type[ProviderError]) -> None:
        self._refuse(operation, 200, CODES[kind][1], lambda call: "refused")

    async def echo(self, operation: str) -> None:
        self._refuse(operation, 400, "InvalidParameterValue", lambda call: f"{call.raw}\n{call.form}")

    async def huge_refusal(self, operation: str) -> None:
        self._refuse(operation, 400, "InvalidParameterValue", lambda call: "x" * (3 << 20))

    async def hide_next_instance(self, calls: int) -> None:
        self._aws.faults.append(Fault("create", spoil=self._hiding(calls)))

    async def cut_list_page(self, operation: str) -> None:
        def hollow(call: Call, answer: Answer) -> Answer:
            return edited(answer, HOLLOWED[operation], lambda items: [items[0].__class__(items[0].tag), *items[1:]])

        self._aws.faults.append(Fault(operation, spoil=hollow))

    async def unknown_status(self, spec: InstanceSpec) -> None:
        self._aws.instance(spec.attempt_id)._state.name = "recalibrating"

    async def vanish(self, spec: InstanceSpec) -> None:
        self._aws.vanish(self._aws.instance(spec.attempt_id))

    async def interrupt(self, spec: InstanceSpec) -> None:
        instance = self._aws.instance(spec.attempt_id)
        self._aws.end(instance, "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: taken back")

    async def fail_next_boot(self, message: str) -> None:
        def fail(call: Call, answer: Answer) -> Answer:
            (instance,) = [i for i in self._aws.instances() if i.id.encode() in answer.body]
            self._aws.end(instance, "Server.InternalError", f"Server.InternalError: {message}")
            return answer

        self._aws.faults.append(Fault("create", spoil=fail))

    async def linger(self, calls: int) -> None:
        def keep(call: Call) -> Answer:
            instance_id = call.form["InstanceId.1"]
            self._aws.linger(instance_id, calls)
            return Answer(
                200, f"<R><instancesSet><item><instanceId>{instance_id}</instanceId></item></instancesSet></R>".encode()
            )

        self._aws.faults.append(Fault("delete", before=keep))

    async def deny_existence(self) -> None:
        self._refuse("delete", 400, "InvalidInstanceID.NotFound", lambda call: "no such instance")

    async def instances(self, spec: InstanceSpec) -> int:
        return len(self._aws.instances(spec.attempt_id))

    async def price_next(self, usd_per_hour: Decimal) -> None:
        """A create is not told what it costs: a spot price that has moved comes with the next list."""

    async def alive(self) -> list[str]:
        """Volumes carry tags from their instances' launch; moto's own do not."""
        made = [*self._aws.instances(), *self._aws.backend("us-east-1").volumes.values(), *self._aws.groups()]
        tagged = {one.id: tags["headrace-attempt"] for one in made if (tags := self._aws.tags(one))}
        unseen = {tagged[instance_id] for instance_id in self._aws.unseen}
        return [name for name, attempt in tagged.items() if attempt not in unseen]

    def _hiding(self, calls: int) -> Callable[[Call, Answer], Answer]:
        def hide(call: Call, answer: Answer) -> Answer:
            for instance in self._aws.instances():
                if calls and instance.id.encode() in answer.body:
                    self._aws.hide(instance.id, calls)
            return answer

        return hide

    def _refuse(
        self,
        operation: str,
        status: int,
        code: str,
        message: Callable[[Call], str],
        headers: dict[str, str] | None = None,
    ) -> None:
        self._aws.faults.append(
            Fault(operation, before=lambda call: error_for(call, status, code, message(call), headers))
        )


class TestAwsProvider(ProviderConformance, ProviderFaultConformance):
    __test__ = True
    pulls_image = False

    @pytest.fixture
    def make_provider(
        self, make_aws_provider: Callable[..., AwsProvider], request: pytest.FixtureRequest
    ) -> MakeProvider:
        # Only a test of silence is impatient: on a busy machine any answer may take a second.
        parameters = getattr(request.node, "callspec", None)
        silent = parameters is not None and parameters.params.get("way") == "timeout"
        options = {"timeout_seconds": 1} if silent else {}
        return lambda owner_id: make_aws_provider(owner_id, **options)

    @pytest.fixture
    def faults(self, aws: AwsServer) -> Faults:
        return AwsFaults(aws)
