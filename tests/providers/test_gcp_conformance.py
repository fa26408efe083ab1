"""The adapter to Compute Engine keeps every promise of the provider contract: Google's own SDK against a server of
ours, in good times and bad."""

import json
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
from providers.base import InstanceSpec
from providers.gcp.provider import GcpProvider
from tests.providers.conformance import MakeProvider, ProviderConformance
from tests.providers.fault_conformance import Faults, ProviderFaultConformance
from tests.providers.gcp_fake import Answer, Call, Fault, GcpServer, google_error

REASONS: dict[type[ProviderError], tuple[int, str]] = {
    NoCapacity: (503, "ZONE_RESOURCE_POOL_EXHAUSTED"),
    QuotaExceeded: (403, "quotaExceeded"),
    AuthError: (401, "authError"),
    PermissionDenied: (403, "forbidden"),
    BillingBlocked: (403, "BILLING_DISABLED"),
    ProviderRejected: (400, "invalid"),
    RateLimited: (403, "rateLimitExceeded"),
}
IN_OPERATION = {NoCapacity: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", QuotaExceeded: "QUOTA_EXCEEDED"}


class GcpFaults:
    """`Faults` by the server."""

    def __init__(self, gcp: GcpServer) -> None:
        self._gcp = gcp

    async def lose(self, operation: str, way: str, hidden_calls: int = 0) -> None:
        self._gcp.cloud.next_hidden_reads = hidden_calls
        self._gcp.faults.append(Fault(operation, loss=way))

    async def refuse(self, operation: str, kind: type[ProviderError], retry_after_seconds: float | None = None) -> None:
        if operation == "create" and kind in IN_OPERATION:
            self._gcp.cloud.next_failure = (IN_OPERATION[kind], "refused")
            return
        status, reason = REASONS[kind]
        headers = {} if retry_after_seconds is None else {"Retry-After": f"{retry_after_seconds:g}"}
        self._refuse(operation, lambda call: google_error(status, reason, "refused", headers))

    async def refuse_with_status_200(self, operation: str, kind: type[ProviderError]) -> None:
        status, reason = REASONS[kind]
        self._refuse(operation, lambda call: google_error(status, reason, "refused", http=200))

    async def echo(self, operation: str) -> None:
        self._refuse(operation, lambda call: google_error(400, "invalid", f"{call.body}\n{call.path}\n{call.query}"))

    async def huge_refusal(self, operation: str) -> None:
        self._refuse(operation, lambda call: google_error(400, "invalid", "x" * (3 << 20)))

    async def hide_next_instance(self, calls: int) -> None:
        self._gcp.cloud.next_hidden_reads = calls

    async def cut_list_page(self, operation: str) -> None:
        self._gcp.faults.append(Fault(operation, spoil=_hollowed))

    async def unknown_status(self, spec: InstanceSpec) -> None:
        (machine,) = self._gcp.cloud.of(spec.attempt_id)
        machine.resource["status"] = "RECALIBRATING"

    async def vanish(self, spec: InstanceSpec) -> None:
        (machine,) = self._gcp.cloud.of(spec.attempt_id)
        self._gcp.cloud.vanish(machine)

    async def interrupt(self, spec: InstanceSpec) -> None:
        (machine,) = self._gcp.cloud.of(spec.attempt_id)
        self._gcp.cloud.end(machine, "compute.instances.preempted", "Instance was preempted.", delete=True)

    async def fail_next_boot(self, message: str) -> None:
        self._gcp.cloud.next_boot_failure = message

    async def linger(self, calls: int) -> None:
        def keep(call: Call) -> Answer:
            zone, name = call.path.split("/")[-3], call.path.split("/")[-1]
            machine = self._gcp.cloud.machines[zone, name]
            machine.lingering_reads = calls
            return Answer(200, json.dumps(self._gcp.cloud.delete(zone, name)).encode())

        self._refuse("delete", keep)

    async def deny_existence(self) -> None:
        self._refuse("delete", lambda call: google_error(404, "notFound", f"The resource '{call.path}' was not found"))

    async def instances(self, spec: InstanceSpec) -> int:
        return len(self._gcp.cloud.of(spec.attempt_id))

    async def price_next(self, usd_per_hour: Decimal) -> None:
        """A create is not told what it costs."""

    async def alive(self) -> list[str]:
        cloud = self._gcp.cloud
        unseen = {machine.resource["name"] for machine in cloud.machines.values() if machine.hidden_reads}
        charged = {charge.name for charge in cloud.running_charges()}
        return sorted((charged | {name for _, name in cloud.disks} | set(cloud.firewalls)) - unseen)

    def _refuse(self, operation: str, before: Callable[[Call], Answer]) -> None:
        self._gcp.faults.append(Fault(operation, before=before))


def _hollowed(call: Call, answer: Answer) -> Answer:
    """The first item of a list has nothing in it."""
    page = json.loads(answer.body)
    scopes = page["items"].values() if isinstance(page["items"], dict) else [page]
    next(items for scope in scopes for items in scope.values() if isinstance(items, list) and items)[0].clear()
    return Answer(answer.status, json.dumps(page).encode(), answer.headers)


class TestGcpProvider(ProviderConformance, ProviderFaultConformance):
    __test__ = True
    pulls_image = False

    @pytest.fixture
    def make_provider(
        self, make_gcp_provider: Callable[..., GcpProvider], request: pytest.FixtureRequest
    ) -> MakeProvider:
        # Only a test of silence is impatient: on a busy machine any answer may take a second.
        parameters = getattr(request.node, "callspec", None)
        silent = parameters is not None and parameters.params.get("way") == "timeout"
        options = {"timeout_seconds": 1} if silent else {}
        return lambda owner_id: make_gcp_provider(owner_id, **options)

    @pytest.fixture
    def faults(self, gcp: GcpServer) -> Faults:
        return GcpFaults(gcp)
