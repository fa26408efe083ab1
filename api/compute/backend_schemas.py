"""Connected backends: what their operations take and answer."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.compute.requests import Name, Slug
from api.compute.requests import Request as StrictRequest
from api.compute.schemas import Page

_MOST_FIELDS = 32

Fields = Annotated[
    dict[str, Any],
    Field(max_length=_MOST_FIELDS, description="What the backend's form asks for, by field; see the catalog."),
]


class BackendConnect(StrictRequest):
    """Nothing is kept unless the provider accepts the credentials."""

    provider: Slug
    name: Name | None = Field(default=None, description="For people; by default the backend's title.")
    fields: Fields
    project: Slug | None = Field(default=None, description="For the jobs of this project only.")
    cluster: bool = Field(default=False, description="For all organizations; wants a cluster admin's key.")


class BackendUpdate(StrictRequest):
    """What is absent stays, and so does a secret that is blank. Changed fields are verified before they are used."""

    name: Name | None = None
    fields: Fields | None = None


class FormField(BaseModel):
    name: str
    label: str
    kind: str = Field(
        description="`text`, `secret`, `file`, `boolean`, `number`, `list` of texts, or `records` with `fields`."
    )
    required: bool
    secret: bool
    help: str
    minimum: int | None = Field(description="Of a number.")
    maximum: int | None
    max_entries: int | None = Field(description="Of a list, or of records.")
    fields: "list[FormField] | None" = Field(
        description="Of a record; a secret that an edit leaves blank stays that of the record with the same `key`."
    )
    key: str | None = Field(description="The field that tells records apart.")


class BackendForm(BaseModel):
    provider: str
    title: str
    tagline: str
    available: bool = Field(description="Whether this version can connect it.")
    billed_to_you: bool = Field(
        description="Whether connecting it lets jobs rent hardware that is billed to you there."
    )
    fields: list[FormField]


class BackendForms(Page):
    data: list[BackendForm]


class VerifiedHost(BaseModel):
    """What was found out of one host."""

    hostname: str
    status: str = Field(
        description="`ok`, `no_gpu` (reachable, and there is none), `unreachable`, `auth`, `host_key`, `permission`, "
        "`no_engine`, or `probe_failed`: reachable, and it could not be found out what it has."
    )
    usable: bool
    message: str = Field(description="One line: what it has, or why not.")
    gpus: list[str] = Field(description="As the driver names them, with the memory.")
    driver: str | None
    engine: str | None
    vcpus: int
    memory_gb: float
    disk_gb: int
    host_key_fingerprint: str | None = Field(description="Of the key that it showed, as `ssh-keygen -l` writes it.")


class Verification(BaseModel):
    pending: bool
    status: str | None = Field(
        description="`ok`, `auth`, `permission`, `unreachable`, `rejected`, `expired`, or `in_use`: jobs live on what"
        " an edit takes away."
    )
    message: str | None = Field(description="The provider's words; for administrators.")
    at: datetime | None
    hosts: list[VerifiedHost] | None = Field(
        description="Of a fleet: each host, also where it was not accepted. For administrators; null in lists."
    )


class Health(BaseModel):
    status: str = Field(description="`healthy`, `degraded`, `unhealthy`, or `unknown` before the first poll.")
    error: str | None = Field(description="For administrators.")
    last_poll_at: datetime | None
    offer_count: int


_EXAMPLE: dict[str, Any] = {
    "id": "conn_9f2kQxWv3bT8mLpZ",
    "provider": "runpod",
    "title": "RunPod",
    "name": "RunPod",
    "scope": "organization",
    "org_id": "org_9f2kQxWv3bT8mLpZ",
    "project": None,
    "state": "connected",
    "version": 1,
    "fields": {"include_community": True},
    "verification": {"pending": False, "status": "ok", "message": "", "at": "2026-07-29T12:01:00Z", "hosts": None},
    "health": {"status": "healthy", "error": None, "last_poll_at": "2026-07-29T12:05:00Z", "offer_count": 31},
    "live_instances": 2,
    "hourly_cost_usd": 1.38,
    "host_count": None,
    "gpu_count": None,
    "created_at": "2026-07-29T12:01:00Z",
    "updated_at": "2026-07-29T12:01:00Z",
}


class ConnectedBackend(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    id: str
    provider: str
    title: str
    name: str
    scope: str = Field(description="`cluster`, `organization` or `project`: whose jobs it serves.")
    org_id: str | None
    project: str | None
    state: str = Field(description="`pending`, `connected`, `failed` or `removing`.")
    version: int = Field(description="Counts edits of its fields, and verifications; for `If-Match`.")
    fields: dict[str, Any] | None = Field(description="What is in use and not secret; for administrators.")
    verification: Verification
    health: Health
    live_instances: int = Field(description="Of the caller's organization; of all for a cluster admin.")
    hourly_cost_usd: float = Field(description="What these cost an hour now.")
    host_count: int | None = Field(description="Of a fleet: its hosts; null of other backends.")
    gpu_count: int | None = Field(
        description="Of a fleet: those of its hosts, by the last verification; null where it failed."
    )
    created_at: datetime
    updated_at: datetime


class ConnectedBackends(Page):
    data: list[ConnectedBackend]


class HostKey(BaseModel):
    address: str = Field(description="`host:port`.")
    fingerprint: str | None = Field(description="As `ssh-keygen -l` writes it.")
    first_seen_at: datetime


class HostKeys(Page):
    data: list[HostKey]


class HostKeyForget(StrictRequest):
    """Of a host that was installed anew: the next key that it shows is pinned."""

    host: Annotated[str, Field(min_length=1, max_length=320, description="As `host` or `host:port`.")]
