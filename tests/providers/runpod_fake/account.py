"""What RunPod sells, and what the one account has: pods over the engine's instances, and registry credentials."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from providers.fake.agent import run_agent
from providers.fake.cloud import Cloud, CloudOffer, CloudSettings, Instance, Refused, Resource
from providers.fake.faults import Answer, Fault, Operation

API_KEY = "canary-runpod-key-31a7"
NO_CAPACITY = (
    400,
    "no_capacity",
    "There are no longer any instances available with the requested specifications. Please refresh and try again.",
)
_NAME = re.compile(r"(?P<owner>.+)-(?P<attempt>inst-[a-z2-7]{20})")
_STATUSES = {
    "pending": "PROVISIONING",
    "starting": "STARTING",
    "running": "RUNNING",
    "interrupted": "EXITED",
    "failed": "ERROR",
    "terminated": "TERMINATED",
}


@dataclass(frozen=True)
class GpuOnSale:
    """Prices in USD per GPU and hour."""

    id: str
    memory_gb: int
    secure: Decimal
    community: Decimal
    bid: Decimal
    most: int = 8
    data_centers: tuple[str, ...] = ("EU-RO-1", "US-KS-2")


GPUS = (
    GpuOnSale("NVIDIA GeForce RTX 4090", 24, Decimal("0.69"), Decimal("0.34"), Decimal("0.2")),
    GpuOnSale("NVIDIA H100 80GB HBM3", 80, Decimal("2.99"), Decimal("2.69"), Decimal("1.75"), most=8),
    GpuOnSale("NVIDIA H100 PCIe", 80, Decimal("2.39"), Decimal("1.99"), Decimal("1.25"), most=4, data_centers=()),
    GpuOnSale("AMD Instinct MI300X OAM", 192, Decimal("2.49"), Decimal("0"), Decimal("0")),
    GpuOnSale("NVIDIA GeForce RTX 4080 SUPER", 16, Decimal("0.3"), Decimal("0.2"), Decimal("0.1")),
)


@dataclass(frozen=True)
class CpuOnSale:
    """The price in USD per vCPU and hour."""

    id: str
    ram_gb_per_vcpu: int
    secure: Decimal
    least: int = 2
    most: int = 32
    data_centers: tuple[str, ...] = ("EU-RO-1", "US-KS-2")


CPUS = (
    CpuOnSale("cpu3g", 4, Decimal("0.04")),
    CpuOnSale("cpu5c", 2, Decimal("0.035")),
    CpuOnSale("cpu5m", 8, Decimal("0.07"), most=8, data_centers=()),
)


@dataclass
class PodDetails:
    """What the engine's instance has no place for."""

    args: str
    disk: int
    ports: list[str]
    env: dict[str, str]
    hardware_id: str
    count: int
    """Of GPUs, or of vCPUs."""
    cloud: str
    data_center: str | None
    registry: str | None
    spot: bool = False
    cpu: bool = False
    cuda: Any = None
    """What was asked of the host's CUDA version."""


@dataclass
class Account:
    """The state behind both APIs. `registry_answer` spoils the next call that makes a credential, after it was made."""

    clock: Callable[[], datetime] | None = None
    """None is the machine's."""
    cloud: Cloud = field(init=False)
    pods: dict[str, PodDetails] = field(default_factory=dict)
    registry_answer: Answer | None = None
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path and body of each call."""

    def __post_init__(self) -> None:
        settings = CloudSettings(api_key=API_KEY, exits_with_agent=False)
        self.cloud = Cloud(self._run_container, settings, self.clock)
        offers = [offer for gpu in GPUS for offer in _offers(gpu)] + [
            offer for cpu in CPUS for offer in _cpu_offers(cpu)
        ]
        self.cloud.offers = {offer.id: offer for offer in offers}

    def make_pod(self, name: str, image: str, details: PodDetails, fault: Fault) -> Instance:
        """Raises Refused."""
        kinds: Sequence[CpuOnSale | GpuOnSale] = CPUS if details.cpu else GPUS
        kind = next((kind for kind in kinds if kind.id == details.hardware_id), None)
        if kind is None:
            raise Refused(400, "unknown_hardware", f"unknown type {details.hardware_id}")
        if isinstance(kind, CpuOnSale):
            _check_cpu(kind, details)
        if details.count > kind.most or details.data_center not in (None, *kind.data_centers):
            raise Refused(*NO_CAPACITY)
        if details.registry is not None and not self._live(details.registry, "registry"):
            raise Refused(400, "unknown_registry", "registry credential not found")
        market = "spot" if details.spot else "ondemand"
        offer_id = f"{kind.id}|{details.cloud}|{details.count}|{market}"
        body = {"image": image, "ports": [], "bootstrap": _bootstrap(details.env)}
        try:
            instance = self.cloud.create(name, labels_of(name), offer_id, body, fault)
        except Refused as refused:
            raise Refused(*NO_CAPACITY) if refused.code == "no_capacity" else refused from None
        self.pods[instance.id] = details
        return instance

    def make_registry(self, name: str) -> Resource:
        """Names are unique in an account."""
        if any(r.name == name for r in self.registries()):
            raise Refused(400, "name_in_use", f"a registry credential named {name} exists")
        made = Resource(
            f"registry-{len(self.cloud.resources) + 1:06d}", "registry", name, labels_of(name), self.cloud.now()
        )
        self.cloud.resources[made.id] = made
        return made

    def delete_registry(self, registry_id: str) -> None:
        registry = self._live(registry_id, "registry")
        if registry is None:
            raise Refused(404, "not_found", "registry not found")
        users = [i.id for i in self.cloud.instances() if not i.gone and self.pods[i.id].registry == registry_id]
        if users:
            raise Refused(400, "in_use", f"registry credential is in use by pod {users[0]}")
        self.cloud.delete(registry)

    def registries(self) -> list[Resource]:
        return [r for r in self.cloud.resources.values() if r.type == "registry" and not r.gone]

    def pod(self, pod_id: str, operation: Operation) -> Instance:
        instance = self.cloud.resources.get(pod_id)
        if not isinstance(instance, Instance) or not self.cloud.sees(operation, instance):
            raise Refused(404, "not_found", "pod not found")
        return instance

    def pod_json(self, instance: Instance) -> dict[str, Any]:
        """A pod as REST v2 shows it, with every required field of the vendor's schema."""
        details = self.pods[instance.id]
        status = instance.shown_status or _STATUSES[instance.status]
        if instance.failure_code == "image_pull_failed":
            # RunPod pulls again and again.
            status = "STARTING"
        running = status == "RUNNING"
        runtime = _runtime_ports(details.ports)
        direct = next((port for port in runtime if port["private"] == 22 and port["type"] == "tcp"), None)
        proxy_user = f"{instance.id}-64411eb2"
        return {
            "id": instance.id,
            "name": instance.name,
            "image": instance.image,
            "args": details.args,
            "disk": details.disk,
            "ports": details.ports,
            "env": details.env,
            "registry": details.registry,
            "status": status,
            "actions": ["terminate"],
            "mounts": {},
            **_hardware_json(details),
            "cloud": details.cloud,
            "dataCenterId": details.data_center or "US-KS-2",
            "cudaVersion": "12.8",
            "ssh": {
                "proxy": {"host": "ssh.runpod.io", "port": 22, "username": proxy_user, "command": f"ssh {proxy_user}"},
                "direct": None
                if not running or direct is None
                else {
                    "host": direct["ip"],
                    "port": direct["public"],
                    "username": "root",
                    "command": f"ssh root@{direct['ip']} -p {direct['public']}",
                },
            },
            "template": None,
            "cost": 0 if status in ("EXITED", "TERMINATED") else float(instance.prices[-1][1]),
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": {"uptime": 1, "ports": runtime} if running else None,
            "createdAt": instance.created_at.isoformat().replace("+00:00", "Z"),
            "startedAt": None,
        }

    def log(self, instance: Instance) -> list[tuple[str, str]]:
        """Source and text of each line."""
        lines = [("system", f"create container {instance.image}")]
        if instance.message:
            lines.append(("system", f"error: {instance.message}"))
        return lines + [("container", line) for line in instance.console]

    def _live(self, resource_id: str, type_: str) -> Resource | None:
        resource = self.cloud.resources.get(resource_id)
        return resource if resource is not None and resource.type == type_ and not resource.gone else None

    async def _run_container(self, instance: Instance, tell: Callable[[str], None]) -> int | None:
        """The command, again and again when it ends, unless it idles."""
        while True:
            status = await run_agent(instance, tell)
            if status is None or instance.bootstrap.get("idle") == "1":
                tell("idles")
                return None
            tell("restarted")


def labels_of(name: str) -> dict[str, str]:
    named = _NAME.fullmatch(name)
    return named.groupdict() if named else {}


def _bootstrap(env: dict[str, str]) -> dict[str, str]:
    return {
        "token": env.get("HEADRACE_TOKEN", ""),
        "url": env.get("HEADRACE_URL", ""),
        "idle": env.get("HEADRACE_IDLE_AFTER_EXIT", ""),
    }


def _offers(gpu: GpuOnSale) -> list[CloudOffer]:
    prices = {("SECURE", "ondemand"): gpu.secure, ("COMMUNITY", "ondemand"): gpu.community}
    prices |= {("SECURE", "spot"): gpu.bid, ("COMMUNITY", "spot"): gpu.bid}
    return [
        CloudOffer(
            id=f"{gpu.id}|{cloud}|{count}|{market}",
            accelerator=gpu.id,
            gpu_count=count,
            price_usd_hr=price * count,
            spot=market == "spot",
        )
        for (cloud, market), price in prices.items()
        for count in range(1, gpu.most + 1)
    ]


def _check_cpu(kind: CpuOnSale, details: PodDetails) -> None:
    count = details.count
    if details.cloud != "SECURE" or count < kind.least or count & (count - 1):
        raise Refused(400, "bad_cpu", f"no CPU pod of {count} vCPUs on {details.cloud}")
    if details.disk > count * (15 if kind.id.startswith("cpu5") else 10):
        raise Refused(400, "disk", f"{details.disk} GB of container disk exceed the limit of the instance")


def _hardware_json(details: PodDetails) -> dict[str, Any]:
    if not details.cpu:
        return {"gpu": {"id": details.hardware_id, "count": details.count}}
    memory = details.count * next(cpu.ram_gb_per_vcpu for cpu in CPUS if cpu.id == details.hardware_id)
    return {"cpu": {"id": details.hardware_id, "vcpuCount": details.count, "memory": memory}}


def _cpu_offers(cpu: CpuOnSale) -> list[CloudOffer]:
    return [
        CloudOffer(
            id=f"{cpu.id}|SECURE|{count}|ondemand", accelerator=cpu.id, gpu_count=0, price_usd_hr=cpu.secure * count
        )
        for count in (2, 4, 8, 16, 32)
    ]


def _runtime_ports(ports: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index, exposed in enumerate(ports):
        number, _, protocol = exposed.partition("/")
        public = {"ip": "198.51.100.7", "public": 40_000 + index}
        proxied = {"ip": "100.65.0.1", "public": 60_000 + index}
        found.append({"private": int(number), "type": protocol, **(public if protocol == "tcp" else proxied)})
    return found
