"""What RunPod answers, in the closed set of provider errors: tables, and one place where bodies are read.

REST v2 answers `{"title", "status", "detail", "errors"}` to what it refuses; GraphQL answers 200 with `errors`. Neither
has a code for "no capacity", "over a limit" or "no money": there the sentence decides, by its beginning only, since
the rest may repeat what was asked for.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import httpx
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

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

_DECISIVE_CHARACTERS = 200
_NOT_AN_ERROR = 400

_BY_GRAPHQL_CODE: Mapping[str, type[ProviderError]] = {
    "UNAUTHENTICATED": AuthError,
    "FORBIDDEN": PermissionDenied,
    "INTERNAL_SERVER_ERROR": Ambiguous,
    "RATE_LIMITED": RateLimited,
    "TOO_MANY_REQUESTS": RateLimited,
    "NOT_FOUND": ProviderNotFound,
    "BAD_USER_INPUT": ProviderRejected,
    "GRAPHQL_VALIDATION_FAILED": ProviderRejected,
    "GRAPHQL_PARSE_FAILED": ProviderRejected,
}
# What no status and no code tells apart.
_SENTENCES: Sequence[tuple[str, type[ProviderError]]] = (
    (r"no longer any instances available", NoCapacity),
    (r"no instances (are )?(currently )?available", NoCapacity),
    (r"does not have the resources to deploy (your|this|the) pod", NoCapacity),
    (r"not enough free gpus", NoCapacity),
    (r"bid is too low|below the minimum bid", NoCapacity),
    (r"(insufficient|not enough) (account )?(balance|funds|credits?)", BillingBlocked),
    (r"balance is too low", BillingBlocked),
    (r"spend(ing)? limit", QuotaExceeded),
    (r"\bquota\b", QuotaExceeded),
    (r"(reached|exceed(s|ed)?) (the|your) (maximum|limit|max) ", QuotaExceeded),
    (r"cannot access the requested pool", QuotaExceeded),
)
# The SDK and GraphQL say by words alone what REST says by its status.
_GRAPHQL_SENTENCES: Sequence[tuple[str, type[ProviderError]]] = (
    *_SENTENCES,
    (r"^unauthorized|^unauthenticated|invalid api key|^authentication ", AuthError),
    (r"^forbidden|^access denied|(do not|don't) have permission|^not authorized", PermissionDenied),
    (r"^too many requests|rate limit", RateLimited),
    (r"^something went wrong|^internal server error", Ambiguous),
    (r"^pod not found", ProviderNotFound),
)
_VAGUE_STATUS = (400, 403)


def _exact(value: Any) -> Any:
    """JSON numbers are read as decimals; whole ones come as `int`."""
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


Exact = Annotated[Decimal, BeforeValidator(_exact), Field(ge=0)]
Usd = Exact


class SshEndpoint(BaseModel):
    host: str
    port: int
    username: str = "root"


class Ssh(BaseModel):
    direct: SshEndpoint | None = None


class RuntimePort(BaseModel):
    """None of it is promised."""

    private: int | None = None
    public: int | None = None
    type: str | None = None
    ip: str | None = None


class Runtime(BaseModel):
    ports: list[RuntimePort] | None = None


class Gpu(BaseModel):
    id: str
    count: int = 1


class Pod(BaseModel):
    """A pod of REST v2, as far as it matters here. Its `env`, which holds the agent's token, is not kept."""

    id: str = Field(min_length=1)
    name: str
    status: str
    cost: Usd
    created_at: datetime | None = Field(default=None, alias="createdAt")
    ports: list[str] = Field(default_factory=list)
    registry: str | None = None
    gpu: Gpu | None = None
    cloud: str | None = None
    data_center: str | None = Field(default=None, alias="dataCenterId")
    ssh: Ssh | None = None
    runtime: Runtime | None = None


class Pagination(BaseModel):
    has_next: bool = Field(alias="hasNextPage")
    next_cursor: str | None = Field(default=None, alias="nextCursor")


class PodPage(BaseModel):
    pods: list[Pod]
    pagination: Pagination | None = None
    """Absent where the answer is the whole list."""


class Registry(BaseModel):
    id: str = Field(min_length=1)
    name: str


class RegistryPage(BaseModel):
    registries: list[Registry]
    pagination: Pagination | None = None


class CloudPrice(BaseModel):
    secure: Usd
    community: Usd


class CloudCount(BaseModel):
    secure: int
    community: int


class DataCenter(BaseModel):
    id: str
    availability: str


class GpuType(BaseModel):
    """A GPU of the catalog. Prices are USD per hour of one GPU."""

    id: str = Field(min_length=1)
    memory: int
    secure: bool
    community: bool
    price: CloudPrice
    max_count: CloudCount = Field(alias="maxCount")
    availability: str | None = None
    data_centers: list[DataCenter] = Field(default_factory=list, alias="dataCenters")


class GpuTypeList(BaseModel):
    gpus: list[GpuType]


class VcpuRange(BaseModel):
    min: int
    max: int


class CpuPrice(BaseModel):
    secure_per_vcpu: Usd = Field(alias="securePerVcpu")


class CpuType(BaseModel):
    """A CPU flavor of the catalog. The price is USD per hour of one vCPU."""

    id: str = Field(min_length=1)
    vcpu: VcpuRange
    ram_gb_per_vcpu: Exact = Field(alias="ramGbPerVcpu")
    price: CpuPrice
    availability: str | None = None
    data_centers: list[DataCenter] = Field(default_factory=list, alias="dataCenters")


class CpuTypeList(BaseModel):
    cpus: list[CpuType]


class SpotPrice(BaseModel):
    """What spot capacity of a number of GPUs costs; `minimum_bid` is per GPU and hour, None where there is none."""

    minimum_bid: Usd | None = Field(default=None, alias="minimumBidPrice")
    stock: str | None = Field(default=None, alias="stockStatus")
    vcpus: int | None = Field(default=None, alias="minVcpu")
    memory_gb: int | None = Field(default=None, alias="minMemory")


class RentedPod(BaseModel):
    """What `podRentInterruptable` answers."""

    id: str = Field(min_length=1)
    cost: Usd | None = Field(default=None, alias="costPerHr")


class NoContent(BaseModel):
    """204."""


_NO_STOCK = "NONE"
Answer = TypeVar("Answer", bound=BaseModel)


def places_of(kind: GpuType | CpuType) -> tuple[bool, tuple[str, ...]]:
    """Whether there is stock, and the data centers that have it, where the catalog names some."""
    places = tuple(place.id for place in kind.data_centers if place.availability != _NO_STOCK)
    return bool(places) or (kind.availability or _NO_STOCK) != _NO_STOCK, places


def has_stock(spot: SpotPrice) -> bool:
    return (spot.stock or _NO_STOCK).upper() != _NO_STOCK


def read_rest(response: httpx.Response, model: type[Answer], what: str, secrets: Iterable[str]) -> Answer:
    """The body of a success.

    Raises:
        Ambiguous: a 5xx, or a success that cannot be read: it may have happened.
        ProviderError: the kind that the tables name. Its message holds none of `secrets`.
    """
    body = read_json(response.content)
    refused = body if isinstance(body, dict) and "title" in body and "detail" in body else {}
    status = response.status_code
    if status >= _NOT_AN_ERROR or refused:
        raise rest_error(response, refused, what, secrets)
    if model is NoContent and not response.content:
        return model()
    return validated(body, model, f"{what}: HTTP {status}")


def rest_error(
    response: httpx.Response, refused: Mapping[str, Any], what: str, secrets: Iterable[str]
) -> ProviderError:
    """What a REST answer refuses. A refusal with the status of a success counts by the status that it states."""
    status = response.status_code
    stated = refused.get("status")
    if status < _NOT_AN_ERROR:
        status = stated if isinstance(stated, int) and stated >= _NOT_AN_ERROR else 500
    detail = str(refused.get("detail", "no detail"))
    kind = kind_of(status)
    if status in _VAGUE_STATUS:
        kind = _kind_of_sentence(detail, _SENTENCES) or kind
    problems = refused.get("errors")
    if isinstance(problems, list):
        detail = "; ".join([detail, *map(str, problems[:5])])
    retry_after = response.headers.get("retry-after")
    return refusal(kind, what, f"HTTP {response.status_code}", detail, secrets, retry_after=retry_after)


def read_graphql(response: httpx.Response, what: str, secrets: Iterable[str]) -> dict[str, Any]:
    """The `data` of a success. Raises as `read_rest`."""
    body = read_json(response.content)
    errors = body.get("errors") if isinstance(body, dict) else None
    if isinstance(errors, list) and errors:
        raise _graphql_error(errors[0], response, what, secrets)
    if response.status_code >= _NOT_AN_ERROR:
        raise rest_error(response, body if isinstance(body, dict) else {}, what, secrets)
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, dict):
        raise Ambiguous(f"{what}: HTTP {response.status_code} with an unreadable answer (no data)")
    return data


def kind_of_sentence(sentence: str) -> type[ProviderError] | None:
    """The kind of a GraphQL refusal by its words; None where they say nothing known."""
    return _kind_of_sentence(sentence, _GRAPHQL_SENTENCES)


def validated(body: Any, model: type[Answer], what: str) -> Answer:
    """Raises Ambiguous for what is not of the shape."""
    try:
        return model.model_validate(body)
    except ValidationError as invalid:
        fields = ", ".join(".".join(map(str, problem["loc"])) or "the body" for problem in invalid.errors()[:5])
        raise Ambiguous(f"{what} with an unreadable answer (wrong: {fields})") from None


def read_json(content: bytes) -> Any:
    """Numbers with a fraction as exact decimals; None for what is not JSON."""
    try:
        return json.loads(content, parse_float=Decimal)
    except ValueError:
        return None


def _kind_of_sentence(sentence: str, table: Sequence[tuple[str, type[ProviderError]]]) -> type[ProviderError] | None:
    decisive = sentence[:_DECISIVE_CHARACTERS]
    return next((kind for pattern, kind in table if re.search(pattern, decisive, re.IGNORECASE)), None)


def _graphql_error(error: Any, response: httpx.Response, what: str, secrets: Iterable[str]) -> ProviderError:
    error = error if isinstance(error, dict) else {}
    sentence = str(error.get("message", "no message"))
    extensions = error.get("extensions")
    code = str(extensions.get("code", "no code")) if isinstance(extensions, dict) else "no code"
    # What it refuses it refuses with the status of a success.
    status = max(response.status_code, _NOT_AN_ERROR)
    kind = kind_of_sentence(sentence) or kind_of(status, _BY_GRAPHQL_CODE, (code,))
    retry_after = response.headers.get("retry-after")
    return refusal(kind, what, "GraphQL", sentence, secrets, code=code, retry_after=retry_after)
