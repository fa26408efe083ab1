"""The state of the tests' Google: machines, disks, firewall rules, operations, and the bill. It checks what it is asked
to make with the SDK's own message types, and with the limits that Compute Engine documents."""

import itertools
import json
import math
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.providers.gcp_fake import stock
from tests.providers.gcp_fake.stock import HOST, PROJECT

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[-_a-z0-9]{0,63}")
_TERM = re.compile(r'\(?\s*([\w.-]+)\s*(=|eq)\s*(?:"([^"]*)"|(\w+))\s*\)?')
GLOBAL = "global"
_BOOT = {"PROVISIONING": "STAGING", "STAGING": "RUNNING"}


class Refused(Exception):
    """What is asked cannot be: the status, the reason and the words of the answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Machine:
    """An instance, as the API answers it, and what the server alone knows of it."""

    resource: dict[str, Any]
    zone: str
    hidden_reads: int = 0
    lingering_reads: int | None = None
    keeps_disk: bool = False

    @property
    def attempt(self) -> str:
        return str(self.resource["labels"]["headrace-attempt"])


@dataclass
class Charge:
    """A line of the bill; it goes on while `ended_at` is None."""

    name: str
    machine: str
    spot: bool
    started_at: float
    ended_at: float | None = None

    @property
    def seconds(self) -> int:
        """What is charged: every second begun, a minute at least."""
        assert self.ended_at is not None
        return max(60, math.ceil(self.ended_at - self.started_at))


@dataclass
class GcpCloud:
    """All zones of one project."""

    clock: Callable[[], float] = time.time
    machines: dict[tuple[str, str], Machine] = field(default_factory=dict)
    disks: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    firewalls: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    bill: list[Charge] = field(default_factory=list)
    quotas: dict[str, tuple[float, float]] = field(default_factory=lambda: {"NVIDIA_L4_GPUS": (8.0, 0.0)})
    """Limit and usage of each metric, in every region."""
    project_quotas: dict[str, tuple[float, float]] = field(default_factory=lambda: {"GPUS_ALL_REGIONS": (16.0, 0.0)})
    operation_reads: int = 1
    """How many reads see an insert still running."""
    next_failure: tuple[str, str] | None = None
    """Code and words with which the operation of the next insert fails."""
    next_firewall_failure: tuple[str, str] | None = None
    next_boot_failure: str | None = None
    next_hidden_reads: int = 0
    noticed: set[str] = field(default_factory=set)
    """Names of the machines that have been told that they will be taken back."""
    console: str = "one\ntwo\n"
    _ids: Any = field(default_factory=lambda: itertools.count(7_000_000_000_000_000_001))
    _requests: dict[str, tuple[str, str]] = field(default_factory=dict)
    _pending: dict[str, tuple[int, tuple[str, str] | None]] = field(default_factory=dict)

    # What tests look at and do ------------------------------------------------------------------------------------

    def of(self, attempt: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.attempt == attempt]

    def running_charges(self) -> list[Charge]:
        return [charge for charge in self.bill if charge.ended_at is None]

    def vanish(self, machine: Machine) -> None:
        self._remove(machine)

    def end(self, machine: Machine, kind: str, words: str, *, delete: bool) -> None:
        """Google ends the machine, and says so in an operation of its own."""
        self._system_operation(machine, kind, words)
        machine.resource["status"] = "TERMINATED"
        self._stop_charge(machine)
        if delete:
            self._remove(machine)

    # Machines -----------------------------------------------------------------------------------------------------

    def insert(self, zone: str, body: str, request_id: str) -> dict[str, Any]:
        """The operation, as the API answers it. The same request id is the same request."""
        _check_request_id(request_id)
        if request_id in self._requests:
            return self.operations[self._requests[request_id]]
        resource = _read_instance(body, zone)
        name = resource["name"]
        if (zone, name) in self.machines:
            raise Refused(
                409, "alreadyExists", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' already exists"
            )
        number = str(next(self._ids))
        operation = self._operation(zone, "insert", name, number)
        self._requests[request_id] = (zone, operation["name"])
        failure, self.next_failure = self.next_failure, None
        self._pending[operation["name"]] = (self.operation_reads, failure)
        if failure is None:
            self._make(resource, zone, number)
        return operation

    def read_operation(self, zone: str, name: str) -> dict[str, Any]:
        operation = self.operations.get((zone, name))
        if operation is None:
            raise Refused(404, "notFound", f"The resource '{name}' was not found")
        reads, failure = self._pending.get(name, (0, None))
        if reads > 0:
            self._pending[name] = (reads - 1, failure)
            return operation
        operation |= {"status": "DONE", "progress": 100, "endTime": self._now()}
        if failure is not None:
            code, words = failure
            operation["error"] = {"errors": [{"code": code, "message": words}]}
            operation |= {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}
        return operation

    def read(self, zone: str, name: str) -> dict[str, Any]:
        machine = self.machines.get((zone, name))
        if machine is None or not self._is_seen(machine):
            raise Refused(
                404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' was not found"
            )
        return machine.resource

    def delete(self, zone: str, name: str) -> dict[str, Any]:
        machine = self.machines.get((zone, name))
        if machine is None:
            raise Refused(
                404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' was not found"
            )
        if machine.lingering_reads is None:
            self._remove(machine)
        return self._operation(zone, "delete", name, machine.resource["id"])

    def delete_disk(self, zone: str, name: str) -> dict[str, Any]:
        disk = self.read_disk(zone, name)
        if disk.get("users"):
            raise Refused(400, "resourceInUseByAnotherResource", f"The disk resource '{name}' is already being used")
        del self.disks[zone, name]
        return self._operation(zone, "delete", name, disk["id"])

    def read_disk(self, zone: str, name: str) -> dict[str, Any]:
        disk = self.disks.get((zone, name))
        if disk is None:
            raise Refused(404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/disks/{name}' was not found")
        return disk

    def list_machines(self, filter: str) -> list[tuple[str, dict[str, Any]]]:
        """Zones and resources that a filter finds, as reads see them."""
        found = [machine for machine in list(self.machines.values()) if matches(machine.resource, filter)]
        return [(machine.zone, machine.resource) for machine in found if self._is_seen(machine)]

    def list_operations(self, zone: str, filter: str) -> list[dict[str, Any]]:
        return [o for (where, _), o in self.operations.items() if where == zone and matches(o, filter)]

    # Firewall rules -----------------------------------------------------------------------------------------------

    def insert_firewall(self, body: str, request_id: str) -> dict[str, Any]:
        _check_request_id(request_id)
        if request_id in self._requests:
            return self.operations[self._requests[request_id]]
        rule = _read_firewall(body)
        name = rule["name"]
        if name in self.firewalls:
            raise Refused(
                409, "alreadyExists", f"The resource 'projects/{PROJECT}/global/firewalls/{name}' already exists"
            )
        number = str(next(self._ids))
        operation = self._operation(GLOBAL, "insert", name, number)
        self._requests[request_id] = (GLOBAL, operation["name"])
        failure, self.next_firewall_failure = self.next_firewall_failure, None
        self._pending[operation["name"]] = (self.operation_reads, failure)
        if failure is None:
            self.firewalls[name] = {
                **rule, "kind": "compute#firewall", "id": number, "creationTimestamp": self._now(),
                "selfLink": f"{HOST}/projects/{PROJECT}/global/firewalls/{name}",
            }  # fmt: skip
        return operation

    def read_firewall(self, name: str) -> dict[str, Any]:
        if name not in self.firewalls:
            raise Refused(404, "notFound", f"The resource 'projects/{PROJECT}/global/firewalls/{name}' was not found")
        return self.firewalls[name]

    def delete_firewall(self, name: str) -> dict[str, Any]:
        rule = self.read_firewall(name)
        del self.firewalls[name]
        return self._operation(GLOBAL, "delete", name, rule["id"])

    # Within -------------------------------------------------------------------------------------------------------

    def _is_seen(self, machine: Machine) -> bool:
        """What a read does: it misses what is hidden, sees what lingers, and sees the next step of a boot."""
        if machine.hidden_reads > 0:
            machine.hidden_reads -= 1
            return False
        if machine.lingering_reads is not None:
            machine.lingering_reads -= 1
            if machine.lingering_reads < 0:
                self._remove(machine)
                return False
        status = machine.resource["status"]
        machine.resource["status"] = _BOOT.get(status, status)
        return True

    def _make(self, resource: dict[str, Any], zone: str, number: str) -> None:
        name, boot = resource["name"], resource["disks"][0]["initializeParams"]
        link = f"{HOST}/projects/{PROJECT}/zones/{zone}"
        spot = resource["scheduling"]["provisioningModel"] == "SPOT"
        self.bill.append(Charge(name, resource["machineType"].rpartition("/")[2], spot, self.clock()))
        self.disks[zone, boot["diskName"]] = {
            "kind": "compute#disk", "id": str(next(self._ids)), "name": boot["diskName"], "zone": link,
            "labels": boot.get("labels", {}), "users": [f"{link}/instances/{name}"], "status": "READY",
            "sizeGb": boot["diskSizeGb"], "creationTimestamp": self._now(),
        }  # fmt: skip
        interfaces = [_connected(one, len(self.bill)) for one in resource["networkInterfaces"]]
        machine = Machine(
            {
                **resource, "networkInterfaces": interfaces, "kind": "compute#instance", "id": number, "zone": link,
                "status": "PROVISIONING",
                "creationTimestamp": self._now(), "selfLink": f"{link}/instances/{name}",
            },
            zone,
            hidden_reads=self.next_hidden_reads,
        )  # fmt: skip
        self.next_hidden_reads = 0
        self.machines[zone, name] = machine
        if self.next_boot_failure is not None:
            words, self.next_boot_failure = self.next_boot_failure, None
            self.end(machine, "compute.instances.hostError", words, delete=False)

    def _remove(self, machine: Machine) -> None:
        name = machine.resource["name"]
        self._stop_charge(machine)
        self.machines.pop((machine.zone, name), None)
        if machine.keeps_disk and (machine.zone, name) in self.disks:
            self.disks[machine.zone, name].pop("users", None)
        else:
            self.disks.pop((machine.zone, name), None)

    def _stop_charge(self, machine: Machine) -> None:
        for charge in self.bill:
            if charge.name == machine.resource["name"] and charge.ended_at is None:
                charge.ended_at = self.clock()

    def _operation(self, zone: str, kind: str, name: str, number: str) -> dict[str, Any]:
        project = f"{HOST}/projects/{PROJECT}"
        target = f"{project}/global/firewalls" if zone == GLOBAL else f"{project}/zones/{zone}/instances"
        operation = {
            "kind": "compute#operation", "id": str(next(self._ids)), "name": f"operation-{uuid.uuid4()}",
            "operationType": kind, "targetLink": f"{target}/{name}", "targetId": number, "status": "RUNNING",
            "progress": 0, "insertTime": self._now(), **({} if zone == GLOBAL else {"zone": f"{project}/zones/{zone}"}),
        }  # fmt: skip
        self.operations[zone, str(operation["name"])] = operation
        return operation

    def _system_operation(self, machine: Machine, kind: str, words: str) -> None:
        operation = self._operation(machine.zone, kind, machine.resource["name"], machine.resource["id"])
        operation |= {"status": "DONE", "progress": 100, "user": "system", "statusMessage": words}

    def _now(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds")


def matches(resource: dict[str, Any], filter: str) -> bool:
    """Whether a filter of the form `(a.b = "x") AND (c eq "regexp")` finds the resource.

    Raises:
        Refused: another form.
    """
    for term in filter.split(" AND ") if filter else ():
        parsed = _TERM.fullmatch(term.strip())
        if parsed is None:
            raise Refused(
                400, "invalid", f"Invalid value for field 'filter': '{filter}'. Invalid list filter expression."
            )
        path, operator, quoted, bare = parsed.groups()
        value: Any = resource
        for part in path.split(".", 1) if path.startswith("labels.") else [path]:
            value = value.get(part) if isinstance(value, dict) else None
        wanted = quoted if quoted is not None else bare
        if not (re.fullmatch(wanted, str(value)) if operator == "eq" else str(value) == wanted):
            return False
    return True


def _connected(interface: dict[str, Any], number: int) -> dict[str, Any]:
    """A network interface with the addresses that it is given."""
    public = [{**access, "natIP": f"203.0.113.{number % 250}"} for access in interface.get("accessConfigs", [])]
    return {**interface, "networkIP": f"10.128.0.{number % 250}", **({"accessConfigs": public} if public else {})}


def _read_firewall(body: str) -> dict[str, Any]:
    """The rule to make, once it passed what Compute Engine asks of one."""
    from google.cloud import compute_v1

    rule = compute_v1.Firewall.from_json(body, ignore_unknown_fields=False)
    resource: dict[str, Any] = json.loads(body)
    if not _NAME.fullmatch(rule.name) or not all(_NAME.fullmatch(tag) for tag in rule.target_tags):
        raise Refused(400, "invalid", f"Invalid value for field 'resource.name': '{rule.name}'")
    if rule.direction != "INGRESS" or not rule.source_ranges or not rule.allowed:
        raise Refused(400, "invalid", "Invalid value for field 'resource.allowed': what is let in, and from where")
    for allowed in rule.allowed:
        if allowed.I_p_protocol != "tcp" or not all(0 < int(port) < 1 << 16 for port in allowed.ports):
            raise Refused(400, "invalid", f"Invalid value for field 'resource.allowed[0].ports': {allowed.ports}")
    return resource


def _check_request_id(request_id: str) -> None:
    try:
        valid = uuid.UUID(request_id).int != 0
    except ValueError:
        valid = False
    if not valid:
        raise Refused(400, "invalid", f"Invalid value for field 'requestId': '{request_id}'")


def _read_instance(body: str, zone: str) -> dict[str, Any]:
    """The instance to make, once it passed what Compute Engine asks of one."""
    from google.cloud import compute_v1

    instance = compute_v1.Instance.from_json(body, ignore_unknown_fields=False)
    resource: dict[str, Any] = json.loads(body)
    if not _NAME.fullmatch(instance.name):
        raise Refused(400, "invalid", f"Invalid value for field 'resource.name': '{instance.name}'")
    for key, value in instance.labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL.fullmatch(value):
            raise Refused(400, "invalid", f"Invalid value for field 'resource.labels': '{key}={value}'")
    machine = instance.machine_type.rpartition("/")[2]
    if not instance.machine_type.startswith(f"zones/{zone}/machineTypes/") or not stock.is_in(machine, zone):
        raise Refused(
            404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/machineTypes/{machine}' was not found"
        )
    (disk,) = instance.disks
    if not disk.boot or disk.initialize_params.disk_size_gb < 10 or not disk.initialize_params.source_image:
        raise Refused(400, "invalid", "Invalid value for field 'resource.disks'")
    scheduling = instance.scheduling
    has_gpus = bool(stock.MACHINES[machine][2] or instance.guest_accelerators)
    if (has_gpus or scheduling.provisioning_model == "SPOT") and scheduling.on_host_maintenance != "TERMINATE":
        raise Refused(400, "invalid", "Instances with guest accelerators do not support live migration.")
    if scheduling.provisioning_model == "SPOT" and scheduling.automatic_restart:
        raise Refused(400, "invalid", "Scheduling must have AUTOMATIC_RESTART: false")
    if scheduling.instance_termination_action and not (
        scheduling.provisioning_model == "SPOT" or scheduling.max_run_duration.seconds
    ):
        raise Refused(400, "invalid", "An instance termination action needs a limit of the run")
    if scheduling.max_run_duration.seconds and not 30 <= scheduling.max_run_duration.seconds <= 120 * 86_400:
        raise Refused(400, "invalid", "Invalid value for field 'resource.scheduling.maxRunDuration'")
    for item in instance.metadata.items:
        if len(item.value.encode()) > 262_144:
            raise Refused(413, "invalid", "Metadata size exceeds the limit")
    if not instance.network_interfaces:
        raise Refused(400, "invalid", "At least one network interface is required.")
    return resource
