"""Rows as answers. What a job ran (command, environment, secrets) is not among what is read, so it cannot be shown."""

from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson

from api.encoding import encode, number
from domain import ssh_access
from domain.attempts import Fault, fault_of
from domain.billing import metered
from domain.catalog import Accelerator, Gpu
from domain.limits import MeteredInstance, accrued
from domain.money import PricingModel, cents
from domain.states import JobState
from store.job_records import AttemptRecord, EventRecord, JobRecord
from store.logs.store import LogLine

_MOST_SETTLED = 4096
_settled: dict[str, orjson.Fragment] = {}


def accelerator(entry: Accelerator) -> dict[str, Any]:
    if isinstance(entry, Gpu):
        return {
            "name": entry.name,
            "display_name": entry.display_name,
            "hardware_class": "gpu",
            "vendor": entry.vendor,
            "memory_gb": entry.memory_gb,
            "gpu_counts": entry.gpu_counts,
            "interconnects": entry.interconnects,
        }
    return {
        "name": entry.name,
        "display_name": entry.display_name,
        "hardware_class": "cpu",
        "vcpu": {"min": entry.vcpu_min, "max": entry.vcpu_max},
        "memory_gb_per_vcpu": entry.memory_gb_per_vcpu,
    }


def job(record: JobRecord, now: datetime) -> dict[str, Any]:
    """A job as it stands at `now`. Optional fields that have no value are absent."""
    spec = record.spec
    answer: dict[str, Any] = {
        "id": record.id,
        "state": record.state,
        "reason": _reason(record.reason_code, record.reason_message, record.reason_details),
        "compute": _present(spec["compute"]),
        "limits": {name: number(Decimal(value)) for name, value in spec["limits"].items() if value is not None},
        "accrued_usd": number(cents(accrued([m for m in map(_metered, record.attempts) if m], now))),
        "endpoints": [],
        "created_at": record.created_at,
        "started_at": record.started_at,
        "terminal_at": record.terminal_at,
        "project": record.project or "",
        "labels": record.labels or {},
        "kind": record.kind,
        "attempts": _attempts(record),
    }
    answer |= _present({"name": record.name, "allocated_at": record.allocated_at, "exit_code": record.exit_code})
    rented = next((a for a in reversed(record.attempts) if a.allocated_at is not None), None)
    if rented is not None:
        answer |= _allocation(rented, spec["compute"].get("instance_count") or 1)
        if not JobState(record.state).terminal:
            answer |= _reachable(rented)
    return answer


def settled() -> dict[str, orjson.Fragment]:
    """The JSON of jobs that are over, their hardware confirmed absent, by their ids: they never change again."""
    return dict(_settled)


def listed(record: JobRecord, now: datetime) -> Any:
    """A job for a list; its JSON is kept when it is settled."""
    if not JobState(record.state).terminal or any(a.confirmed_absent_at is None for a in record.attempts):
        return job(record, now)
    fragment = _settled[record.id] = orjson.Fragment(encode(job(record, now)))
    if len(_settled) > _MOST_SETTLED:
        del _settled[next(iter(_settled))]
    return fragment


def instance(record: AttemptRecord) -> dict[str, Any]:
    """An attempt; one whose creation no backend has confirmed yet has no provider id."""
    handle = record.handle or {}
    report = record.exit_report or {}
    answer: dict[str, Any] = {
        "id": record.id,
        "provider": record.provider,
        "provider_id": handle.get("provider_id", ""),
        "provider_resource_type": handle.get("resource_type", "attempt"),
        "state": record.state,
        "hardware": _hardware(record.offer),
        "endpoints": [],
        "rank": record.rank,
        "spot": record.offer.get("spot", False),
        "region": handle.get("region") or record.offer.get("region", ""),
        "created_at": record.created_at,
    }
    answer |= _present(
        {
            "host": handle.get("host"),
            "price_usd_hr": number(record.prices[-1].usd_per_hour) if record.prices else None,
            "exit_code": report.get("status"),
            "reason": _reason(record.reason_code, record.reason_message, None),
            "allocated_at": record.allocated_at,
            "started_at": record.started_at,
            "draining_at": record.draining_at,
            "terminal_at": record.terminal_at,
            "confirmed_absent_at": record.confirmed_absent_at,
        }
    )
    return answer | _reachable(record)


def event(record: EventRecord) -> dict[str, Any]:
    return {"id": record.id, "timestamp": record.at, "type": record.type, "data": record.data}


def log_id(seq: int) -> str:
    """Ids sort as the lines do."""
    return f"log_{seq:016d}"


def log(line: LogLine) -> dict[str, Any]:
    answer = {
        "id": log_id(line.seq),
        "timestamp": line.timestamp,
        "source": line.source,
        "stream": line.stream,
        "message": line.message,
    }
    if line.instance_rank is not None:
        answer["instance_rank"] = line.instance_rank
    if line.continued:
        answer["continued"] = True
    return answer


def _allocation(rented: AttemptRecord, instance_count: int) -> dict[str, Any]:
    """What the latest rented attempt runs on, and at which price per hour: of all instances, and of one."""
    answer: dict[str, Any] = {
        "hardware": _hardware(rented.offer),
        "provider": rented.provider,
        "pricing_model": rented.offer.get("pricing_model", PricingModel.INSTANCE_MINUTES),
    }
    if rented.prices:
        captured, latest = rented.prices[0].usd_per_hour, rented.prices[-1].usd_per_hour
        answer["price_usd_hr"] = number(captured * instance_count)
        answer["instance_price_usd_hr"] = number(captured)
        if rented.confirmed_absent_at is None:
            answer["current_price_usd_hr"] = number(latest * instance_count)
    return answer


def _attempts(record: JobRecord) -> dict[str, int]:
    """How many there were, and how many ended for which kind of fault. The last one's may be told by the job alone."""
    ends = [(attempt.reason_code, attempt.allocated_at is not None) for attempt in record.attempts]
    if ends and ends[-1][0] is None and record.state == JobState.FAILED:
        ends[-1] = (record.reason_code, ends[-1][1])
    counted = Counter(fault_of(reason, rented=rented) for reason, rented in ends if reason is not None)
    return {"total": len(ends), **{fault.value: counted[fault] for fault in Fault}}


def _metered(attempt: AttemptRecord) -> MeteredInstance | None:
    if attempt.allocated_at is None:
        return None
    return metered(attempt.offer, attempt.allocated_at, attempt.started_at, attempt.confirmed_absent_at, attempt.prices)


def _hardware(offer: dict[str, Any]) -> dict[str, Any]:
    hardware = {
        "accelerator": offer["accelerator"],
        "gpu_count": offer["gpu_count"],
        "gpu_memory_gb": offer.get("gpu_memory_gb", 0),
    }
    if offer.get("interconnect"):
        hardware["interconnect"] = offer["interconnect"]
    return hardware


def _reachable(attempt: AttemptRecord) -> dict[str, Any]:
    """`endpoints`, and `ssh` once the workload's sshd serves, while the instance is there."""
    if attempt.terminal_at is not None or not attempt.endpoints:
        return {}
    answer: dict[str, Any] = {"endpoints": []}
    for entry in attempt.endpoints:
        if entry["protocol"] != ssh_access.ENTRY:
            answer["endpoints"].append(_endpoint(entry))
        elif attempt.ssh_host_key is not None:
            answer["ssh"] = _ssh(entry, attempt.ssh_host_key)
    return answer


def _endpoint(entry: dict[str, Any]) -> dict[str, Any]:
    answer = {name: entry[name] for name in ("name", "protocol", "host", "port")}
    if entry["protocol"] == "http":
        host = f"[{entry['host']}]" if ":" in entry["host"] else entry["host"]
        answer["url"] = entry.get("url") or f"http://{host}:{entry['port']}"
    return answer


def _ssh(entry: dict[str, Any], host_key: str) -> dict[str, Any]:
    user, host, port = entry.get("user", "root"), entry["host"], entry["port"]
    command = f"ssh -p {port} {user}@{host}"
    return {"host": host, "port": port, "user": user, "command": command, "host_key": host_key}


def _reason(code: str | None, message: str | None, details: dict[str, Any] | None) -> dict[str, Any] | None:
    if code is None:
        return None
    return {"code": code, "message": message or code, **({"details": details} if details else {})}


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
