"""What the fake cloud answers, in the closed set of provider errors: one table, and one place where bodies are read."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
)
from providers.refusals import kind_of, refusal

_BY_CODE: Mapping[str, type[ProviderError]] = {
    "no_capacity": NoCapacity,
    "offer_not_found": NoCapacity,
    "quota_exceeded": QuotaExceeded,
    "unauthenticated": AuthError,
    "forbidden": PermissionDenied,
    "payment_required": BillingBlocked,
    "rate_limited": RateLimited,
    "delete_refused": RateLimited,
    "not_found": ProviderNotFound,
    "already_discontinued": ProviderNotFound,
    "invalid_request": ProviderRejected,
}


class NameInUse(Exception):
    """409: an instance of this name lives. Never leaves the adapter."""

    def __init__(self, resource_id: str) -> None:
        super().__init__(resource_id)
        self.resource_id = resource_id


class Endpoint(BaseModel):
    name: str
    protocol: str
    host: str
    port: int


class Item(BaseModel):
    """An instance or a sub-resource. A sub-resource has neither status nor price."""

    id: str
    type: str
    labels: dict[str, str]
    created_at: datetime
    holder: str | None = None
    holds: list[str] = Field(default_factory=list)
    status: str | None = None
    region: str | None = None
    price_usd_hr: Decimal | None = None
    failure_code: str | None = None
    message: str = ""
    exit_code: int | None = None
    endpoints: list[Endpoint] = Field(default_factory=list)


class ItemAnswer(BaseModel):
    resource: Item


class ItemPage(BaseModel):
    items: list[Item]
    count: int
    next: str | None


class OfferItem(BaseModel):
    id: str
    accelerator: str
    gpu_count: int
    gpu_memory_gb: int
    vcpus: int
    memory_gb: float
    disk_gb: int
    interconnect: str | None
    region: str
    price_usd_hr: Decimal
    unit_seconds: int
    minimum_seconds: int = 0
    stopped_usd_hr: Decimal | None = None
    boot_charged: bool = True
    teardown_seconds: float
    spot: bool
    exclusive: bool = False
    zone: str | None = None
    available: bool


class OfferPage(BaseModel):
    items: list[OfferItem]
    count: int


class ConsoleAnswer(BaseModel):
    text: str
    cursor: str


class DeleteAnswer(BaseModel):
    deleting: str


class AccountAnswer(BaseModel):
    account: str


Answer = TypeVar("Answer", bound=BaseModel)


def read_answer(response: httpx.Response, model: type[Answer], what: str, secrets: Iterable[str]) -> Answer:
    """The body of a success.

    Raises:
        Ambiguous: a 5xx, or a success that cannot be read: it may have happened.
        NameInUse: see there.
        ProviderError: the kind that the table names. Its message holds none of `secrets`.
    """
    body = _json(response)
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) or response.status_code >= 400:
        raise _error_of(response, error if isinstance(error, dict) else {}, what, secrets)
    try:
        return model.model_validate(body)
    except ValidationError as invalid:
        fields = ", ".join(".".join(map(str, problem["loc"])) or "the body" for problem in invalid.errors()[:5])
        raise Ambiguous(f"{what}: HTTP {response.status_code} with an unreadable answer (wrong: {fields})") from None


def _error_of(
    response: httpx.Response, error: Mapping[str, Any], what: str, secrets: Iterable[str]
) -> ProviderError | NameInUse:
    status, code = response.status_code, str(error.get("code", "no code"))
    if code == "name_in_use" and isinstance(error.get("resource_id"), str):
        return NameInUse(error["resource_id"])
    words, retry_after = str(error.get("message", "no message")), response.headers.get("retry-after")
    kind = kind_of(status, _BY_CODE, (code,))
    return refusal(kind, what, f"HTTP {status}", words, secrets, code=code, retry_after=retry_after)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
