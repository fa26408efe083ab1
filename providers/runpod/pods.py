"""What a pod is created from, and what its JSON means here."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from agent.bootstrap import bootstrap_command
from domain.errors import ProviderRejected
from domain.ids import ATTEMPT_PATTERN, AttemptId
from domain.offers import Offer
from domain.ssh_access import with_ssh
from providers.base import Handle, InstanceSpec, InstanceView, ProviderState, PublishedPort
from providers.runpod.answers import Pod, Registry
from providers.runpod.catalog import ANYWHERE, Product

POD = "pod"
REGISTRY = "registry"
"""A credential for a private image: made before its pod, deleted after it."""
TERMINATED = "TERMINATED"
HTTPS_PORT = 443
MOST_HTTP_PORTS = 10
MOST_STRING_BYTES = 128 * 1024 - 1
"""Linux takes no longer argument or environment entry."""

_CUDA_VENDOR = "nvidia-"
# GraphQL takes a set and no floor; a version that no machine has does no harm.
_CUDA_VERSIONS = ("11.8", *(f"12.{minor}" for minor in range(10)), *(f"13.{minor}" for minor in range(10)))

# RunPod gives every pod a key of its API. No workload may have it, so bash begins again without it: only then is it out
# of /proc/1/environ as well.
WITHOUT_VENDOR_KEY = """\
if [[ -n ${RUNPOD_API_KEY+set} ]]; then unset RUNPOD_API_KEY; exec "$BASH" -c "$BASH_EXECUTION_STRING"; fi
"""

RENT_SPOT = """
mutation RentSpot($input: PodRentInterruptableInput!) {
  podRentInterruptable(input: $input) { id costPerHr }
}
"""

# A status that is not here is `pending`: still billing, never gone. The agent never ends its container, and RunPod
# starts a command again that does: a pod that has exited was stopped, by its host, a higher bid or the account.
STATES: Mapping[str, ProviderState] = {
    "PROVISIONING": ProviderState.PENDING,
    "STARTING": ProviderState.STARTING,
    "RUNNING": ProviderState.RUNNING,
    "EXITED": ProviderState.INTERRUPTED,
    "ERROR": ProviderState.FAILED,
    TERMINATED: ProviderState.GONE,
}
_MESSAGES: Mapping[ProviderState, str] = {
    ProviderState.INTERRUPTED: "RunPod stopped the pod: it was outbid, its host failed, or the account has no funds",
    ProviderState.FAILED: "RunPod reports the pod's container as failed",
}


def name_of(owner_id: str, attempt_id: AttemptId) -> str:
    return f"{owner_id}-{attempt_id}"


def attempt_of(name: str, owner_id: str) -> AttemptId | None:
    """The attempt that a pod or a credential of ours belongs to; None for anybody else's."""
    owner, _, rest = name.partition(f"{owner_id}-")
    return AttemptId(rest) if not owner and ATTEMPT_PATTERN.fullmatch(rest) else None


def create_body(
    spec: InstanceSpec, offer: Offer, registry_id: str | None, min_cuda_version: str | None = None
) -> dict[str, Any]:
    """The body of `POST /v2/pods`: the same bytes on every retry. The agent, which the container fetches and checks, is
    its whole command, whatever the image's entrypoint is; its token travels in the environment, which the agent takes
    out before the workload runs.

    Raises:
        ProviderRejected: something does not fit into RunPod's fields.
    """
    what = f"create {spec.attempt_id}"
    if spec.agent.url is None:
        raise ProviderRejected(f"{what}: a pod needs a URL at which it reaches the control plane, and none is set")
    env = {
        "HEADRACE_TOKEN": spec.agent.token.get_secret_value(),
        "HEADRACE_URL": spec.agent.url,
        "HEADRACE_IDLE_AFTER_EXIT": "1",
    }
    for name, value in [("the agent's script", spec.agent.script), *env.items()]:
        size = len(value.encode()) + len(name) + 1
        if size > MOST_STRING_BYTES:
            raise ProviderRejected(f"{what}: {name} has {size} bytes, Linux passes at most {MOST_STRING_BYTES}")
        if "\0" in value:
            raise ProviderRejected(f"{what}: {name} holds a NUL, which Linux does not pass")
    try:
        command = WITHOUT_VENDOR_KEY + bootstrap_command(spec.agent.script)
    except ValueError as error:
        raise ProviderRejected(f"{what}: {error}") from None
    disk_gb = spec.compute.ephemeral_disk_gb
    if not 1 <= disk_gb <= offer.ephemeral_disk_gb:
        raise ProviderRejected(f"{what}: a disk of {disk_gb} GB is wanted, RunPod has 1 to {offer.ephemeral_disk_gb}")
    ports = with_ssh(spec.ports, spec.ssh_public_key)
    http = sum(port.protocol == "http" for port in ports)
    if http > MOST_HTTP_PORTS:
        raise ProviderRejected(f"{what}: {http} http ports are wanted, RunPod publishes at most {MOST_HTTP_PORTS}")
    product = Product.of(offer.provider_sku)
    body: dict[str, Any] = {
        "name": name_of(spec.owner_id, spec.attempt_id),
        "image": spec.image,
        "args": json.dumps({"entrypoint": ["bash", "-c"], "cmd": [command]}),
        "disk": disk_gb,
        "ports": [f"{port.container_port}/{port.protocol}" for port in ports],
        "env": env,
        **_compute(product, offer, min_cuda_version),
        "cloud": product.cloud.value,
    }
    if offer.region != ANYWHERE:
        body["dataCenterIds"] = [offer.region]
    if registry_id is not None:
        body["registry"] = registry_id
    return body


def _compute(product: Product, offer: Offer, min_cuda_version: str | None) -> dict[str, Any]:
    if not offer.gpu_count:
        return {"cpu": {"id": product.type_id, "vcpuCount": offer.vcpus}}
    gpu: dict[str, Any] = {"id": product.type_id, "count": offer.gpu_count}
    if min_cuda_version is not None and offer.accelerator.startswith(_CUDA_VENDOR):
        gpu["minCudaVersion"] = min_cuda_version
    return {"gpu": gpu}


def spot_input(body: Mapping[str, Any], offer: Offer) -> dict[str, Any]:
    """The same pod as `PodRentInterruptableInput`: REST v2 has no spot."""
    env: Mapping[str, str] = body["env"]
    rented = {
        # A JSON number: the shortest that reads back as the same decimal.
        "bidPerGpu": float(offer.price_usd_hr / offer.gpu_count),
        "cloudType": body["cloud"],
        "gpuTypeId": body["gpu"]["id"],
        "gpuCount": body["gpu"]["count"],
        "name": body["name"],
        "imageName": body["image"],
        "dockerArgs": body["args"],
        "ports": ",".join(body["ports"]),
        "env": [{"key": key, "value": value} for key, value in env.items()],
        "containerDiskInGb": body["disk"],
        "volumeInGb": 0,
    }
    if "dataCenterIds" in body:
        (rented["dataCenterId"],) = body["dataCenterIds"]
    if "minCudaVersion" in body["gpu"]:
        least = _release(body["gpu"]["minCudaVersion"])
        rented["allowedCudaVersions"] = [version for version in _CUDA_VERSIONS if _release(version) >= least]
    if "registry" in body:
        rented["containerRegistryAuthId"] = body["registry"]
    return rented


def _release(cuda_version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda_version.split("."))


def handle_data(spec: InstanceSpec, registry_id: str | None) -> dict[str, Any]:
    """What a handle keeps beside the pod's id: its attempt, the credential to delete, and the names of the ports, which
    RunPod does not know."""
    names = {f"{port.container_port}/{port.protocol}": port.name for port in with_ssh(spec.ports, spec.ssh_public_key)}
    return {"attempt": spec.attempt_id, "registry": registry_id, "ports": names}


def pod_handle(pod: Pod, owner_id: str, known: Mapping[str, Any] | None = None) -> Handle:
    """`known` is the data of an earlier handle of the pod: what it holds stays."""
    data: dict[str, Any] = {"attempt": attempt_of(pod.name, owner_id), "registry": pod.registry, "ports": {}}
    data |= {name: value for name, value in (known or {}).items() if value}
    if pod.ssh is not None and pod.ssh.direct is not None:
        data["ssh"] = {"host": pod.ssh.direct.host, "port": pod.ssh.direct.port, "user": pod.ssh.direct.username}
    return Handle(
        provider_id=pod.id,
        resource_type=POD,
        region=pod.data_center,
        host=pod.ssh.direct.host if pod.ssh is not None and pod.ssh.direct is not None else None,
        price_usd_hr=price_of(pod.cost),
        created_at=pod.created_at,
        data=data,
    )


def registry_view(registry: Registry, owner_id: str) -> InstanceView:
    """A credential that no pod of ours goes with."""
    attempt = attempt_of(registry.name, owner_id)
    handle = Handle(provider_id=registry.id, resource_type=REGISTRY, data={"attempt": attempt})
    return InstanceView(attempt_id=attempt, handle=handle, state=ProviderState.PENDING)


def pod_view(pod: Pod, owner_id: str, http_proxy_domain: str, known: Mapping[str, Any] | None = None) -> InstanceView:
    state = STATES.get(pod.status, ProviderState.PENDING)
    handle = pod_handle(pod, owner_id, known)
    return InstanceView(
        attempt_id=handle.data["attempt"],
        handle=handle,
        state=state,
        message=_MESSAGES.get(state, ""),
        created_at=pod.created_at,
        price_usd_hr=price_of(pod.cost),
        endpoints=_endpoints(pod, handle.data["ports"], http_proxy_domain) if state is ProviderState.RUNNING else (),
    )


def price_of(cost: Decimal | None) -> Decimal | None:
    """A stopped pod states 0, which is not what it was rented at."""
    return cost or None


def _endpoints(pod: Pod, names: Mapping[str, str], http_proxy_domain: str) -> tuple[PublishedPort, ...]:
    """HTTP goes through the vendor's TLS proxy; TCP to a port of the host, once it has one."""
    mapped = {
        port.private: port
        for port in ((pod.runtime.ports if pod.runtime else None) or ())
        if port.type == "tcp" and port.ip and port.public
    }
    endpoints: list[PublishedPort] = []
    for exposed in pod.ports:
        number, _, protocol = exposed.partition("/")
        name = names.get(exposed, f"{protocol}-{number}")
        if protocol == "http":
            endpoints.append(PublishedPort(name, protocol, f"{pod.id}-{number}.{http_proxy_domain}", HTTPS_PORT))
        elif number.isdigit() and (port := mapped.get(int(number))) is not None and port.ip and port.public:
            endpoints.append(PublishedPort(name, protocol, port.ip, port.public))
    return tuple(endpoints)
