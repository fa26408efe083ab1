"""Jobs, attempts and events as they are read: values of the columns that may be shown, never the sealed ones."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from domain.money import PriceInterval


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An instance row as it is shown, with its price intervals in order."""

    id: str
    job_id: str
    number: int
    rank: int
    provider: str
    offer: dict[str, Any]
    handle: dict[str, Any] | None
    state: str
    reason_code: str | None
    reason_message: str | None
    endpoints: list[dict[str, Any]] | None
    ssh_host_key: str | None
    created_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    draining_at: datetime | None
    terminal_at: datetime | None
    confirmed_absent_at: datetime | None
    exit_report: dict[str, Any] | None
    prices: tuple[PriceInterval, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job row as it is shown, with its project's name and its attempts in order."""

    id: str
    name: str | None
    kind: str
    labels: dict[str, str] | None
    spec: dict[str, Any]
    state: str
    reason_code: str | None
    reason_message: str | None
    reason_details: dict[str, Any] | None
    exit_code: int | None
    created_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    terminal_at: datetime | None
    project: str | None
    attempts: tuple[AttemptRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class EventRecord:
    seq: int
    id: str
    type: str
    data: dict[str, Any]
    at: datetime
