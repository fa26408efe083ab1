"""The firewall rule of an attempt: it lets users in to the ports that its job publishes, and to nothing else.

Rules are of a network, not of a machine: the rule has the attempt's name and applies to the network tag of the same
name, which only the attempt's machine carries. They have no labels: the description says whose a rule is. A job that
publishes nothing gets none.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

from agent.host import machine_ports
from domain.errors import Ambiguous, PermissionDenied, ProviderNotFound, ProviderRejected
from domain.ids import AttemptId
from domain.spec import Port
from domain.ssh_access import with_ssh
from providers.base import Handle, InstanceSpec, InstanceView, ProviderState, TerminateState
from providers.gcp.calls import GcpCalls
from providers.gcp.errors import AlreadyThere, error_of_operation, is_done
from providers.gcp.launch import instance_name, request_id_of
from providers.gcp.settings import GcpOptions
from providers.gcp.views import FIREWALL, time_of

_EVERYBODY = "0.0.0.0/0"
_RULE, _OPERATION = "compute#firewall", "compute#operation"
_DESCRIPTION = re.compile(r"Headrace: attempt (\S+) of (\S+)")


def published_ports(spec: InstanceSpec) -> tuple[Port, ...]:
    """What the rule of an attempt lets in to; empty: there is no rule."""
    return with_ssh(spec.ports, spec.ssh_public_key)


def rule_resource(spec: InstanceSpec, ports: Sequence[Port], options: GcpOptions) -> dict[str, Any]:
    """The `Firewall` to insert."""
    name = instance_name(spec.owner_id, spec.attempt_id)
    numbers = sorted(machine_ports(ports).values())
    return {
        "name": name,
        "description": f"Headrace: attempt {spec.attempt_id} of {spec.owner_id}",
        "network": options.network,
        "direction": "INGRESS",
        "source_ranges": [_EVERYBODY],
        "target_tags": [name],
        "allowed": [{"I_p_protocol": "tcp", "ports": [str(number) for number in numbers]}],
    }


class FirewallRules:
    """The rules that this control plane makes in the project."""

    def __init__(self, calls: GcpCalls, options: GcpOptions, owner_id: str) -> None:
        self._calls = calls
        self._options = options
        self._owner_id = owner_id

    async def open(self, spec: InstanceSpec, what: str) -> None:
        """Makes the attempt's rule if its job publishes anything. Repeatable.

        Raises:
            ProviderRejected: the key may not make rules, or somebody else's has the name.
            QuotaExceeded: the project has as many rules as it may have.
        """
        if not (ports := published_ports(spec)):
            return
        rule = rule_resource(spec, ports, self._options)
        try:
            operation = await self._calls.call(
                "Firewalls",
                "insert_unary",
                what,
                kind=_OPERATION,
                request_id=request_id_of(spec.owner_id, spec.attempt_id, "firewall"),
                firewall_resource=rule,
            )
            await self._follow(operation, what)
        except AlreadyThere:
            found = await self._read(rule["name"], what)
            if found is not None and attempt_of(found, self._owner_id) != spec.attempt_id:
                raise ProviderRejected(f"{what}: a firewall rule {rule['name']} is there, and is not ours") from None
        except PermissionDenied as error:
            # Jobs that publish nothing go on: the connection is as good as it was.
            raise ProviderRejected(f"{what}: ports need a firewall rule: {error.message}") from None

    async def close(self, name: str, what: str) -> TerminateState:
        """Asks for the deletion of a rule."""
        with contextlib.suppress(ProviderNotFound):
            await self._calls.call("Firewalls", "delete_unary", what, kind=_OPERATION, firewall=name)
        return TerminateState.GONE if await self._read(name, what) is None else TerminateState.REQUESTED

    async def view(self, name: str, what: str) -> InstanceView | None:
        rule = await self._read(name, what)
        return None if rule is None else rule_view(rule, self._owner_id)

    async def list_owned(self, what: str) -> list[InstanceView]:
        """Ours, whether their machines are there or not."""
        pages = await self._calls.pages(
            "Firewalls",
            "list",
            what,
            kind="compute#firewallList",
            filter=f'name eq "{instance_name(self._owner_id, ".*")}"',
        )
        views = [rule_view(rule, self._owner_id) for page in pages for rule in page.items]
        return [view for view in views if view.attempt_id is not None]

    async def _read(self, name: str, what: str) -> Any | None:
        try:
            return await self._calls.call("Firewalls", "get", what, kind=_RULE, firewall=name)
        except ProviderNotFound:
            return None

    async def _follow(self, operation: Any, what: str) -> None:
        """Waits a little for what the operation of an insert says."""
        deadline = time.monotonic() + self._options.capacity_seconds
        while True:
            if (error := error_of_operation(operation, what, ())) is not None:
                raise error
            if is_done(operation) or time.monotonic() >= deadline:
                return
            await asyncio.sleep(self._options.look_pause_seconds)
            try:
                operation = await self._calls.call(
                    "GlobalOperations", "get", what, kind=_OPERATION, operation=operation.name
                )
            except ProviderNotFound:
                return


def rule_view(rule: Any, owner_id: str) -> InstanceView:
    """A firewall rule; without an attempt where it is not of this control plane.

    Raises:
        Ambiguous: the description lacks what every rule has.
    """
    if not rule.name:
        raise Ambiguous("an unreadable firewall rule without a name")
    attempt = attempt_of(rule, owner_id)
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=Handle(provider_id=rule.name, resource_type=FIREWALL, data={"attempt": attempt}),
        state=ProviderState.PENDING,
        message="a firewall rule that its instance left behind",
        created_at=time_of(rule.creation_timestamp),
    )


def attempt_of(rule: Any, owner_id: str) -> str | None:
    """The attempt whose rule it is; None if it is not of this control plane."""
    said = _DESCRIPTION.fullmatch(rule.description)
    if said is None or said[2] != owner_id or rule.name != instance_name(owner_id, said[1]):
        return None
    return said[1]
