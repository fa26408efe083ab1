"""`HEADRACE_*` settings. Read once at the edge of a process; objects, not settings, are passed inward."""

from decimal import Decimal
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class LocalEngine(StrEnum):
    AUTO = "auto"
    DOCKER = "docker"
    PODMAN = "podman"
    SANDBOX = "sandbox"


class LocalNetwork(StrEnum):
    BRIDGE = "bridge"
    NONE = "none"
    HOST = "host"


class Settings(BaseSettings):
    """Every setting, its unit and its default. `HEADRACE_` + the upper-case name sets it in the environment.

    docs/settings.md lists them; a test keeps it the same.
    """

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", extra="ignore")

    data_dir: Path = Field(default=Path.home() / ".headrace", description="Holds all state of an embedded stack.")
    database_url: SecretStr | None = Field(
        default=None, description="SQLAlchemy URL; None is SQLite in the data directory."
    )
    log_store_url: str | None = Field(
        default=None,
        description="Where sealed log segments go: file:///dir or s3://bucket/prefix; None is the data directory.",
    )
    s3_endpoint_url: str | None = Field(default=None, description="For S3-compatible stores other than AWS.")

    api_host: str = Field(default="127.0.0.1", description="Where the public API listens.")
    api_port: int = Field(default=8080, ge=1, le=65535, description="TCP port of the public API.")
    body_timeout_seconds: float = Field(default=30, gt=0, description="A request's body must arrive within this time.")
    rate_limit_per_second: float = Field(
        default=500, ge=0, description="Requests of one key that an API process lets through, on average; 0 is all."
    )
    rate_limit_burst: int = Field(default=2000, ge=1, description="Requests of one key at once, before the average.")
    auth_failures_per_second: float = Field(
        default=5, ge=0, description="Of one address, answered 401 and not 429, on average; 0 is all."
    )
    auth_failures_burst: int = Field(default=100, ge=1, description="Of one address at once, before the average.")
    public_url: str | None = Field(default=None, description="Where remote agents reach the API, https://...")
    hf_endpoint: str = Field(
        default="https://huggingface.co", description="Injected into every workload as HF_ENDPOINT."
    )

    temporal_address: str = Field(default="127.0.0.1:7233", description="host:port of the Temporal frontend.")
    temporal_namespace: str = Field(default="default", description="It must exist.")
    temporal_ui_url: str | None = Field(
        default=None, description="The Temporal UI as browsers reach it: its origin may call `/codec/decode`."
    )
    temporal_tls: bool = Field(default=False, description="Whether the Temporal frontend is reached over TLS.")
    temporal_api_key: SecretStr | None = Field(default=None, description="For Temporal Cloud; it needs TLS.")
    task_queue: str = Field(default="headrace", description="Of workflows and activities; API and workers share it.")

    master_key: SecretStr | None = Field(
        default=None,
        description="`id:base64` of 32 bytes, comma-separated, the first one active; None reads it from a file.",
    )
    master_key_file: Path | None = Field(default=None, description="None is `master.key` in the data directory.")
    master_key_kms: str | None = Field(
        default=None,
        description="AWS KMS key (id, ARN or alias) that encrypts the master keys; None: they are in clear.",
    )

    local_enabled: bool = Field(default=True, description="Whether jobs may run on the worker's machine.")
    local_engine: LocalEngine = Field(
        default=LocalEngine.AUTO,
        description="auto, docker, podman or sandbox; auto takes the first that has run a container.",
    )
    local_network: LocalNetwork = Field(
        default=LocalNetwork.BRIDGE,
        description="bridge, none or host; host is for a machine with a single user: workloads reach all it serves.",
    )
    local_slots: int | None = Field(default=None, ge=1, description="Jobs at once on this machine; None is 4 per core.")
    local_price_usd_hr: Decimal = Field(default=Decimal("0.10"), ge=0, description="USD per hour of a local job.")
    local_multi_tenant: bool = Field(
        default=False, description="Whether several organizations may share this machine's slots."
    )
    fake_provider_url: str | None = Field(default=None, description="For tests: the address of a scripted fake cloud.")

    connections_interval_seconds: float = Field(
        default=2, gt=0, description="How often a worker looks for connections that came, changed or went."
    )

    max_attempts: int = Field(default=5, ge=1, description="Offers on which one job may fail to boot before it fails.")
    capacity_wait_seconds: float = Field(
        default=3600, ge=0, description="How long a job waits for capacity by default."
    )
    provisioning_timeout_seconds: float = Field(
        default=1800, gt=0, description="From allocation to the workload's start."
    )
    launch_timeout_seconds: float = Field(
        default=300, gt=0, description="From the agent's hello to the workload's start."
    )
    contact_timeout_seconds: float = Field(
        default=60, gt=0, description="Silence after which an agent's contact is lost."
    )
    heartbeat_interval_seconds: float = Field(
        default=20, gt=0, description="Coalescing of agent contact towards Temporal."
    )
    orders_wait_seconds: float = Field(default=30, gt=0, description="How long an agent's poll for orders is held.")
    finalize_grace_seconds: float = Field(default=60, ge=0, description="For the last log bytes after an exit report.")
    terminate_drain_seconds: float = Field(default=5, ge=0, description="For the last log bytes after a kill.")
    activity_timeout_seconds: float = Field(
        default=30, gt=0, description="Silence of a worker after which what it was doing for a job is done again."
    )
    create_timeout_seconds: float = Field(
        default=300, gt=0, description="A create call that takes longer is given up, and looked up."
    )
    absence_gap_seconds: float = Field(default=2, ge=0, description="Between two misses that prove an early absence.")
    delete_accept_seconds: float = Field(
        default=10, ge=0, description="A job waits this long for its first delete call."
    )
    sweep_interval_seconds: float = Field(
        default=2, gt=0, description="Inbox sweep: how late a missed delivery may be."
    )
    recover_interval_seconds: float = Field(default=60, gt=0, description="How often orphaned rows are looked for.")
    reconcile_interval_seconds: float = Field(
        default=300, gt=0, description="How often a connection is compared with the rows."
    )
    offers_interval_seconds: float = Field(
        default=60, gt=0, description="How often a connection is asked for its offers."
    )
    offers_valid_seconds: float = Field(
        default=600,
        gt=0,
        description="How long the offers of a connection's last good poll count while later ones fail.",
    )
    orphan_grace_seconds: float = Field(
        default=120, ge=0, description="An unknown instance is deleted once it was seen this long."
    )
    retention_interval_seconds: float = Field(
        default=3600, gt=0, description="How often old logs and bookkeeping rows are deleted."
    )

    webhook_retry_seconds: float = Field(
        default=10, gt=0, description="Until a webhook's delivery is tried again; doubles with each try, for a day."
    )
    egress_allowed_networks: str = Field(
        default="",
        description="CIDRs that users' addresses (webhooks) may lead to though they are not public, comma-separated.",
    )

    fleet_networks: str = Field(
        default="",
        description="CIDRs in which the hosts of SSH fleets may lie, comma-separated; empty allows none.",
    )
    workload_networks: str = Field(
        default="",
        description="CIDRs that jobs on fleets' hosts and rented machines reach though private, comma-separated.",
    )

    log_retention_days: float = Field(default=7, gt=0, description="Older log lines are deleted.")
    log_max_bytes: int = Field(
        default=104_857_600, gt=0, description="Per job, a line counting as its text plus 400 bytes."
    )
    agent_spool_bytes: int = Field(
        default=67_108_864, gt=0, description="Unacknowledged output an agent keeps before it drops."
    )

    otel_endpoint: str | None = Field(default=None, description="OTLP over HTTP; None exports nothing.")
    metrics_token: SecretStr | None = Field(
        default=None, description="What `/metrics` wants as a bearer token; None serves it to anyone who reaches it."
    )
    log_format: str = Field(default="json", pattern="^(json|console)$", description="json, or console for people.")
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error."
    )

    @field_validator("egress_allowed_networks", "fleet_networks", "workload_networks")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        for part in filter(None, (part.strip() for part in text.split(","))):
            ip_network(part)
        return text

    @field_validator("workload_networks")
    @classmethod
    def _are_of_ipv4(cls, text: str) -> str:
        # One that packet rules of IPv4 do not take would leave all of them out.
        if ":" in text:
            raise ValueError("networks of IPv4 are wanted: jobs reach nothing by IPv6")
        return text

    @property
    def sqlalchemy_url(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir / 'headrace.db'}"

    @property
    def agent_dir(self) -> Path:
        """Bind-mounted into local workloads: it holds the agent's socket and script, nothing else."""
        return self.data_dir / "agent"

    @property
    def agent_socket(self) -> Path:
        return self.agent_dir / "agent.sock"

    @property
    def key_file(self) -> Path:
        return self.master_key_file or self.data_dir / "master.key"

    @property
    def segment_url(self) -> str:
        return self.log_store_url or f"file://{self.data_dir / 'logs'}"
