"""From a create request to what is stored: the rules that span fields, and the catalog's."""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from api.compute.requests import MAX_ENVIRONMENT_NAMES, ComputeRequest, Container, JobCreate, PortRequest, refusal
from api.errors import invalid
from domain import images, scripts, spec, ssh_keys
from domain.catalog import BY_NAME, CpuClass
from domain.errors import InvalidRequest
from domain.secrets import Reference, references

MAX_ARGUMENT_BYTES = 64 * 1024
# What Linux takes as one string of an environment, less the terminating NUL.
MAX_VARIABLE_BYTES = 131_071
MAX_ENVIRONMENT_BYTES = 1024 * 1024
_BASE64_LENGTH = -(-scripts.MAX_SCRIPT_BYTES // 3) * 4
_WHITESPACE = re.compile(r"[\r\n\t ]+")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A valid create request, in the domain's terms."""

    request: JobCreate
    job: spec.JobSpec
    workload: spec.Workload
    registry: spec.RegistryCredential | None
    references: tuple[Reference, ...]
    """What it needs of stored secrets; whether the organization has them is the create transaction's to find out."""


def admit(body: Any) -> Admitted:
    """Checks a parsed request body.

    Raises:
        InvalidRequest: it names the field and, where there is one, the limit; never a value that may be secret.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    try:
        request = JobCreate.model_validate(body)
    except ValidationError as error:
        raise invalid(error) from None
    if request.volumes:
        raise refusal("volumes", "volumes are not supported yet")
    check_compute(request.compute)
    workload = _workload(request.container)
    registry = _registry(request.container)
    placement = request.placement.model_dump() if request.placement else {}
    key = request.access.ssh_public_key if request.access else None
    job_spec = spec.JobSpec(
        image=request.container.image,
        compute=spec.ComputeRequest(**request.compute.model_dump()),
        limits=spec.Limits(**(request.limits.model_dump() if request.limits else {})),
        ports=ports_of(request.container.ports),
        placement=spec.Placement(**placement),
        retry=spec.Retry(**(request.retry.model_dump() if request.retry else {})),
        ssh_public_key=None if key is None else ssh_keys.normalise(key, field="access.ssh_public_key"),
        image_pull_secret=request.container.image_pull_secret,
        inline_credential=registry is not None,
    )
    return Admitted(request, job_spec, workload, registry, references(job_spec, workload))


def check_compute(compute: ComputeRequest) -> None:
    """Raises InvalidRequest unless the catalog has what is asked for."""
    entry = BY_NAME.get(compute.accelerator)
    if entry is None:
        raise refusal("compute.accelerator", "is not in the catalog, which GET /catalog/accelerators lists")
    if isinstance(entry, CpuClass):
        if compute.gpu_count != 0:
            raise refusal("compute.gpu_count", f"must be 0 for {entry.name}, a CPU class", 0)
        if compute.vcpu_count is None:
            raise refusal("compute.vcpu_count", f"is required for {entry.name}, a CPU class")
        if not entry.vcpu_min <= compute.vcpu_count <= entry.vcpu_max:
            bounds = {"min": entry.vcpu_min, "max": entry.vcpu_max}
            raise refusal(
                "compute.vcpu_count", f"must be {entry.vcpu_min} to {entry.vcpu_max} for {entry.name}", bounds
            )
        if compute.interconnect is not None:
            raise refusal("compute.interconnect", f"{entry.name} has no GPUs to connect")
        return
    if compute.gpu_count not in entry.gpu_counts:
        counts = ", ".join(map(str, entry.gpu_counts))
        raise refusal("compute.gpu_count", f"{entry.name} is offered with {counts} GPUs", list(entry.gpu_counts))
    if compute.interconnect is not None and compute.interconnect not in entry.interconnects:
        known = ", ".join(entry.interconnects)
        raise refusal("compute.interconnect", f"{entry.name} has {known}", list(entry.interconnects))


def _workload(container: Container) -> spec.Workload:
    if (container.command is None) == (container.script_b64 is None):
        wrong = "neither was given" if container.command is None else "both were given"
        raise refusal("container", f"exactly one of command and script_b64 is required, {wrong}")
    _check_environment(container)
    return spec.Workload(
        argv=None if container.command is None else _argv(container.command),
        script=None if container.script_b64 is None else _script(container.script_b64),
        env=container.env,
        secret_env={
            name: spec.SecretReference(secret_id=wanted.secret_id, key=wanted.key)
            for name, wanted in container.secret_env.items()
        },
    )


def _argv(command: list[str]) -> tuple[str, ...]:
    if not command or not command[0]:
        raise refusal("container.command", "its first item, the program to run, must be given")
    if sum(len(item.encode()) + 1 for item in command) > MAX_ARGUMENT_BYTES:
        raise refusal("container.command", f"is larger than {MAX_ARGUMENT_BYTES} bytes", MAX_ARGUMENT_BYTES)
    return tuple(command)


def _script(encoded: str) -> str:
    field = "container.script_b64"
    # Command-line encoders break their lines.
    encoded = _WHITESPACE.sub("", encoded)
    if len(encoded) > _BASE64_LENGTH:
        raise refusal(field, f"the script is larger than {scripts.MAX_SCRIPT_BYTES} bytes", scripts.MAX_SCRIPT_BYTES)
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise refusal(field, "is not valid base64") from None
    if not decoded.strip():
        raise refusal(field, "the script is empty")
    return scripts.normalise(decoded, field=field)


def _check_environment(container: Container) -> None:
    names = [("container.env", name) for name in container.env]
    names += [("container.secret_env", name) for name in container.secret_env]
    if len(names) > MAX_ENVIRONMENT_NAMES:
        raise refusal(
            "container.env", f"more than {MAX_ENVIRONMENT_NAMES} names, secret_env included", MAX_ENVIRONMENT_NAMES
        )
    for field, name in names:
        if name.startswith(("MKA1_", "HEADRACE_")):
            raise refusal(f"{field}.{name}", "names that begin with MKA1_ or HEADRACE_ are reserved")
        if name == "HF_ENDPOINT":
            raise refusal(f"{field}.{name}", "is set by the platform")
    total = 0
    for name, value in container.env.items():
        size = len(name) + 1 + len(value.encode())
        total += size
        if size > MAX_VARIABLE_BYTES:
            raise refusal(
                f"container.env.{name}", f"NAME=value is larger than {MAX_VARIABLE_BYTES} bytes", MAX_VARIABLE_BYTES
            )
    if total > MAX_ENVIRONMENT_BYTES:
        raise refusal("container.env", f"is larger than {MAX_ENVIRONMENT_BYTES} bytes in all", MAX_ENVIRONMENT_BYTES)
    for name in container.secret_env:
        if name in container.env:
            raise refusal(f"container.secret_env.{name}", "the same name is in env")


def _registry(container: Container) -> spec.RegistryCredential | None:
    credential = container.registry_credential
    image = images.parse(container.image, field="container.image")
    if container.image_pull_secret is None and credential is None:
        return None
    if container.image_pull_secret is not None and credential is not None:
        raise refusal("container", "image_pull_secret and registry_credential exclude each other")
    if not image.has_explicit_host:
        raise refusal("container.image", "must name its registry's host when it is pulled with a credential")
    if credential is None:
        return None
    problem = images.credential_problem(credential.username, credential.password.get_secret_value())
    if problem is not None:
        name, _, rule = problem.partition(" ")
        raise refusal(f"container.registry_credential.{name}", rule)
    return spec.RegistryCredential(username=credential.username, password=credential.password)


def ports_of(wanted: Sequence[PortRequest]) -> tuple[spec.Port, ...]:
    """The ports, in the domain's terms. Raises InvalidRequest when two have one name or one number."""
    field = "container.ports"
    _require_distinct(field, "name", (port.name for port in wanted))
    _require_distinct(field, "container_port", (port.container_port for port in wanted))
    return tuple(spec.Port(**port.model_dump()) for port in wanted)


def _require_distinct(field: str, attribute: str, values: Iterable[Any]) -> None:
    seen = set()
    for index, value in enumerate(values):
        if value in seen:
            raise refusal(f"{field}.{index}.{attribute}", f"{value} is used twice")
        seen.add(value)
