"""What a fleet is made of, and the options of its adapter."""

import ipaddress
from decimal import Decimal
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from domain.fleets import MOST_HOSTS
from domain.spec import Frozen

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9:]([A-Za-z0-9.:_-]*[A-Za-z0-9])?$")]
User = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")]
PortNumber = Annotated[int, Field(ge=1, le=65535)]
Key = Annotated[SecretStr, Field(min_length=1, max_length=16_384)]
HostKey = Annotated[str, Field(max_length=16_384)]
Price = Annotated[Decimal, Field(ge=0, le=Decimal(100_000))]


class Bastion(Frozen):
    """The host that the others are reached through. What is None is as for the fleet."""

    hostname: Hostname
    port: PortNumber = 22
    user: User | None = None
    private_key: Key | None = None
    host_key: HostKey | None = None


class FleetHost(Frozen):
    """One host; what is None is as for the fleet. A host belongs to one fleet."""

    hostname: Hostname
    port: PortNumber | None = None
    user: User | None = None
    private_key: Key | None = None
    host_key: HostKey | None = None
    """Its public key in OpenSSH's form, where it is known beforehand; else the first one that is seen is pinned."""
    price_usd_hr: Price | None = None
    cpu_slots: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Of a host without GPUs: how many jobs at once, each with its part of the cores and the memory."""
    address: Hostname | None = None
    """Where users reach the ports of its jobs; by default `hostname`."""


class Fleet(Frozen):
    """The fields of the connection form. Keys have no passphrase."""

    user: User = "ubuntu"
    port: PortNumber = 22
    private_key: Key
    hosts: tuple[FleetHost, ...] = Field(min_length=1, max_length=MOST_HOSTS)
    bastion: Bastion | None = None
    price_usd_hr: Price = Decimal(0)
    """Of a whole host; a job pays for its part of it."""
    cpu_slots: Annotated[int, Field(ge=1, le=1024)] = 1

    @model_validator(mode="after")
    def _hosts_differ(self) -> Self:
        names = [host.hostname for host in self.hosts]
        if len(set(names)) != len(names):
            raise ValueError("a host is in the fleet twice")
        return self


class SshOptions(Frozen):
    """The options of a `ProviderContext`; times are in seconds."""

    agent_socket: str | None = None
    """The control plane's agent-only socket on this machine; None: learnt from the first job."""
    allowed_networks: tuple[str, ...] | None = None
    """CIDRs that an administrator set: every address of a host must be in one of them. None: all but those that
    `addresses` never allows."""
    workload_networks: tuple[str, ...] = ()
    """Private networks, as CIDRs, that workloads reach all the same: a file server, a mirror of packages."""
    multi_tenant: bool = False
    """Whether jobs of several organizations may be on one host at once."""
    directory: str = Field(default="/var/lib/headrace", pattern=r"^/[A-Za-z0-9/_.-]{1,40}$")
    """Headrace's own directory on a host. Short: a socket's path in it has at most 107 characters."""
    publish_address: str = Field(default="0.0.0.0", pattern=r"^[0-9a-f.:]+$")  # noqa: S104 - users reach jobs there
    channels: int = Field(default=8, ge=1, le=64)
    """Commands at once on a connection; sshd takes 10 (MaxSessions)."""
    connect_seconds: float = Field(default=10, gt=0)
    """Until a host accepts a connection."""
    greet_seconds: float = Field(default=60, gt=0)
    """Until it has also let us in: several round trips, each of seconds on a bad line."""
    offers_seconds: float = Field(default=20, gt=0)
    """A host that has not answered by then offers nothing this time; its connection goes on being made."""
    report_seconds: float = Field(default=90, gt=0)
    """A host that has not said by then what it has is reported as unreachable. Less than a verification may take."""
    connects: int = Field(default=4, ge=1)
    """Tries of a connection that is reset while it is made (MaxStartups), and of a channel that is refused."""
    keepalive_seconds: float = Field(default=5, gt=0)
    keepalives: int = Field(default=3, ge=1)
    """So many without an answer, and the connection is lost."""
    probe_seconds: float = Field(default=10, ge=0)
    """How long what is known of a host serves for offers."""
    forward_seconds: float = Field(default=10, gt=0)
    """How often the way from a host to the agent's socket is tried."""
    pull_seconds: int = Field(default=3600, ge=1)
    lifetime_seconds: int = Field(default=7 * 24 * 3600, ge=600)
    """Of a job without limits: how long it goes on after the host last saw its control plane."""
    keeper_seconds: float = Field(default=10, gt=0)
    """How often a host looks for jobs whose time is over."""

    @field_validator("allowed_networks", "workload_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for text in value or ():
            ipaddress.ip_network(text)
        return value

    @property
    def networks(self) -> tuple[Network, ...] | None:
        return None if self.allowed_networks is None else tuple(map(ipaddress.ip_network, self.allowed_networks))
