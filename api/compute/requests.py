"""What a create request may hold, with its bounds. Unknown fields are refused; nothing is coerced."""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from domain.errors import InvalidRequest

MAX_ARGUMENTS = 256
MAX_ENVIRONMENT_NAMES = 256
MAX_LABELS = 64
MAX_DISK_GB = 65_536
MAX_USD = Decimal(1_000_000_000)
MAX_HOURS = Decimal(100_000)
MAX_CAPACITY_WAIT_SECONDS = 30 * 86_400
# More than any object here has: each unknown field would be an error of its own.
_MAX_FIELDS = 64
# Enough for any number that came out of a double, and few enough that arithmetic on it stays cheap.
_DECIMAL_PLACES = 40

# Line breaks, control characters and direction overrides would let a name forge what a terminal or a page shows.
_UNSHOWABLE = {"Cc", "Cs", "Zl", "Zp"}
_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _showable(text: str) -> str:
    if any(unicodedata.category(c) in _UNSHOWABLE or c in _OVERRIDES for c in text):
        raise ValueError("holds a control character, a line break or a direction override")
    return text


def _amount(largest: Decimal) -> Callable[[Any], Decimal]:
    """A positive number up to `largest`. 0 would mean that nothing may be spent or run: such a job could never run."""

    def check(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise ValueError("must be a number")
        number = Decimal(value)
        if number <= 0:
            raise Bounded("must be greater than 0; leave it out for no limit", 0)
        if number > largest:
            raise Bounded(f"must be at most {largest}", str(largest))
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int) or exponent < -_DECIMAL_PLACES:
            raise Bounded(f"must have at most {_DECIMAL_PLACES} decimal places", _DECIMAL_PLACES)
        return number

    return check


class Bounded(ValueError):
    """A ValueError that names the limit which was broken."""

    def __init__(self, message: str, limit: Any) -> None:
        super().__init__(message)
        self.limit = limit


def at_most(names: int) -> BeforeValidator:
    """Bounds a mapping before its entries are looked at, each of which could be an error of its own."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > names:
            raise Bounded(f"has more than {names} names", names)
        return value

    return BeforeValidator(check)


def matching(pattern: str, description: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(description)
        return text

    return AfterValidator(check)


def _number_schema(largest: Decimal) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": int(largest)}


Usd = Annotated[
    Decimal, BeforeValidator(_amount(MAX_USD)), Field(json_schema_extra=lambda s: _replace(s, _number_schema(MAX_USD)))
]
Hours = Annotated[
    Decimal,
    BeforeValidator(_amount(MAX_HOURS)),
    Field(json_schema_extra=lambda s: _replace(s, _number_schema(MAX_HOURS))),
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_showable)]
EnvironmentName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=128),
    matching(r"[A-Za-z_][A-Za-z0-9_]*", "must be letters, digits and underscores, not beginning with a digit"),
]
PortName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63),
    matching(
        r"[A-Za-z0-9][A-Za-z0-9_.-]*",
        "must be letters, digits, dots, dashes or underscores, beginning with a letter or digit",
    ),
]
Slug = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63),
    matching(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "must be a plain name: letters, digits, dots, dashes, underscores"),
]
LabelName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63),
    matching(r"[A-Za-z0-9][A-Za-z0-9_./-]*", "must be letters, digits, dots, slashes, dashes or underscores"),
]
LabelValue = Annotated[str, StringConstraints(max_length=256), AfterValidator(_showable)]


def _replace(schema: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Documents a decimal as the JSON number that it is on the wire."""
    for key in ("anyOf", "pattern", "type"):
        schema.pop(key, None)
    schema.update(wanted)


class Request(BaseModel):
    """Strict: a string is no number, and a field that is not known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MAX_FIELDS:
            raise Bounded(f"has more than {_MAX_FIELDS} fields", _MAX_FIELDS)
        return value


class ComputeRequest(Request):
    accelerator: Annotated[str, StringConstraints(max_length=128)] = Field(
        description="A catalog name, see `GET /catalog/accelerators`."
    )
    ephemeral_disk_gb: int = Field(ge=1, le=MAX_DISK_GB, description="GB for the image and all that the job writes.")
    gpu_count: int = Field(ge=0, le=8, description="1-8; 0 only for, and required for, a CPU class.")
    instance_count: int | None = Field(
        default=None, ge=1, le=64, description="Identical cooperating instances; absent means one."
    )
    interconnect: Literal["pcie", "nvlink", "infinity_fabric"] | None = None
    vcpu_count: int | None = Field(
        default=None, ge=1, le=1024, description="Required for a CPU class; memory follows its per-vCPU ratio."
    )


class SecretReference(Request):
    secret_id: str = Field(min_length=1, max_length=64)
    key: str = Field(min_length=1, max_length=128)


class PortRequest(Request):
    name: PortName
    container_port: int = Field(ge=1, le=65_535)
    protocol: Literal["http", "tcp"]


class RegistryCredentialRequest(Request):
    """Write-only: sealed at admission, never returned, discarded when the job is terminal."""

    username: str = Field(min_length=1, max_length=255)
    password: SecretStr = Field(min_length=1, max_length=16_384)


class Container(Request):
    """Exactly one of `command` and `script_b64`. Never echoed."""

    image: str = Field(max_length=1024, description="An OCI image reference.")
    command: list[str] | None = Field(
        default=None, max_length=MAX_ARGUMENTS, description="argv: 1-256 items, 64 KiB in all."
    )
    script_b64: str | None = Field(default=None, description="A base64-encoded bash script, up to 5 MiB decoded.")
    env: Annotated[dict[EnvironmentName, str], at_most(MAX_ENVIRONMENT_NAMES)] = Field(
        default_factory=dict,
        description="`MKA1_*` and `HEADRACE_*` are reserved, `HF_ENDPOINT` is the platform's. Up to 256 names.",
    )
    secret_env: Annotated[dict[EnvironmentName, SecretReference], at_most(MAX_ENVIRONMENT_NAMES)] = Field(
        default_factory=dict
    )
    ports: list[PortRequest] = Field(default_factory=list, max_length=16)
    image_pull_secret: str | None = Field(default=None, min_length=1, max_length=64)
    registry_credential: RegistryCredentialRequest | None = None


class Access(Request):
    ssh_public_key: str | None = Field(default=None, max_length=16_384)


class LimitsRequest(Request):
    """Absent or null is no limit. Either one terminates the job when it binds."""

    max_cost_usd: Usd | None = None
    max_runtime_hours: Hours | None = None


class PlacementRequest(Request):
    providers: list[Slug] = Field(default_factory=list, max_length=32, description="An unordered filter.")
    strategy: Literal["capacity_optimized", "lowest_cost"] = "capacity_optimized"
    spot: Literal["never", "allow", "only"] = "never"
    max_price_usd_hr: Usd | None = None
    regions: list[Slug] = Field(default_factory=list, max_length=32)
    zones: list[Slug] = Field(default_factory=list, max_length=32)
    capacity_wait_seconds: int | None = Field(default=None, ge=0, le=MAX_CAPACITY_WAIT_SECONDS)


class RetryRequest(Request):
    on_preemption: bool = False
    max_attempts: int = Field(
        default=3, ge=1, le=20, description="Preempted attempts count against it, and lost ones apart from them."
    )


class VolumeMount(Request):
    volume_id: str = Field(min_length=1, max_length=64)
    mount_path: str = Field(min_length=1, max_length=4096)


class JobCreate(Request):
    """A job: a container that runs to completion on hardware that is rented for it."""

    compute: ComputeRequest
    container: Container
    access: Access | None = None
    limits: LimitsRequest | None = None
    name: Name | None = None
    placement: PlacementRequest | None = None
    volumes: list[VolumeMount] | None = Field(default=None, max_length=16, description="Not supported yet: refused.")
    project: Slug | None = Field(default=None, description="A project's name; absent is the key's own, or `default`.")
    labels: Annotated[dict[LabelName, LabelValue], at_most(MAX_LABELS)] | None = Field(
        default=None, max_length=MAX_LABELS
    )
    kind: Literal["task", "sft", "dpo", "grpo", "ppo", "eval", "synthetic", "kb_compile"] = "task"
    retry: RetryRequest | None = None


EXAMPLE_JOB = {
    "name": "qwen-fine-tune",
    "compute": {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 100},
    "container": {
        "image": "registry.example/team/trainer:1.4",
        "command": ["bash", "-lc", "python train.py --steps 400"],
        "env": {"USE_HF": "1"},
    },
    "limits": {"max_runtime_hours": 2, "max_cost_usd": 5},
}


def refusal(field: str, message: str, limit: Any = None) -> InvalidRequest:
    """A 422 whose message begins with its field."""
    return InvalidRequest(f"{field}: {message}", field=field, limit=limit)
