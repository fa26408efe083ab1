"""What a host has: asked in one command, reported for people, and kept for offers."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from domain.errors import Ambiguous, AuthError, PermissionDenied, ProviderError
from providers.base import HostReport
from providers.local.gpus import HostGpu, parse
from providers.ssh import scripts, wall
from providers.ssh.link import HostKeyChanged, HostUnreachable, Link
from providers.ssh.settings import SshOptions

_SECONDS = 120.0
_LARGEST = 10**12
_MOST_BYTES = 512 * 1024
"""Of an answer, far more than one with every lease that a host may have; a fleet's hosts may all answer at once."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a host said of itself. Memory and disk in GB."""

    vcpus: int
    memory_gb: float
    disk_gb: int
    engine: str | None = None
    engine_version: str = ""
    rejected: tuple[str, ...] = ()
    gpus: tuple[HostGpu, ...] = ()
    """Those that the catalog knows; the others are never promised."""
    gpu_names: tuple[str, ...] = ()
    driver: str | None = None
    driver_problem: str | None = None
    disk_enforced: bool = False
    """Whether the engine can bound what a job writes."""
    network: str | None = None
    """The network that workloads join, with rules around it; None: the engine's own, and why is in `open_network`."""
    open_network: str = ""
    leases: tuple[tuple[str, str], ...] = ()
    """Devices (or `cpu`) and owner of what is promised."""

    @property
    def held_gpus(self) -> set[str]:
        return {gpu for devices, _ in self.leases if devices != "cpu" for gpu in devices.split(",")}

    @property
    def held_slots(self) -> int:
        return sum(devices == "cpu" for devices, _ in self.leases)


async def look(link: Link, options: SshOptions) -> Facts:
    """Asks a host what it has.

    Raises:
        ProviderError: it cannot be reached, or its answer is no answer.
    """
    script = scripts.probe(options.directory, wall.ensure(options.workload_networks))
    answer = await link.run(script, timeout=_SECONDS, most_bytes=_MOST_BYTES)
    if answer.returncode != 0 or not answer.stdout.rstrip().endswith("done"):
        raise Ambiguous(f"{link.target.hostname} could not be probed: {answer.last_line}")
    return read_facts(answer.stdout)


def read_facts(text: str) -> Facts:
    """Reads the probe's lines.

    Raises:
        Ambiguous: a number that must be there is not.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value.strip())

    def number(key: str) -> int:
        try:
            value = int(found[key][0])
            if not 0 <= value <= _LARGEST:
                raise ValueError(key)
            return value
        except (KeyError, ValueError) as error:
            raise Ambiguous(f"the host did not say how much {key} it has") from error

    engine, _, version = found.get("engine", [""])[0].partition(" ")
    rejected = found.get("rejected", []) + [f"{program}: not installed" for program in found.get("missing", [])]
    lines = found.get("gpu", [])
    leases = [head.split() for head in found.get("lease", [])]
    return Facts(
        vcpus=number("cpus"),
        memory_gb=round(number("memory") * 1024 / 1e9, 1),
        disk_gb=int(number("disk") * 1024 / 1e9),
        engine=engine if engine and "missing" not in found else None,
        engine_version=version,
        rejected=tuple(rejected),
        gpus=tuple(parse("\n".join(lines))),
        gpu_names=tuple(_shown(line) for line in lines),
        driver=(found.get("version") or [""])[0] or None,
        driver_problem=next(iter(found.get("driver", [])), None),
        disk_enforced="quota" in found,
        network=next((line.partition(" ")[0] for line in found.get("network", [])), None),
        open_network=next(iter(found.get("open", [])), ""),
        leases=tuple((words[1], words[2]) for words in leases if len(words) == 3),
    )


async def probe(link: Link, options: SshOptions) -> HostReport:
    """Never raises for a host that is away or refuses: the report says so."""
    try:
        # A host that lets us wait must not keep what the others have from being told.
        async with asyncio.timeout(options.report_seconds):
            facts = await look(link, options)
    except TimeoutError:
        return HostReport(
            hostname=link.target.hostname,
            reachable=False,
            status="unreachable",
            message=f"{link.target.address} was not done within {options.report_seconds:g} s",
        )
    except ProviderError as error:
        return HostReport(
            hostname=link.target.hostname,
            reachable=not isinstance(error, HostUnreachable),
            status=_status(error),
            message=error.message[:500],
            host_key=None if isinstance(error, HostKeyChanged) else link.host_key,
        )
    return report(link.target.hostname, facts, link.host_key)


def report(hostname: str, facts: Facts, host_key: str | None = None) -> HostReport:
    """What people read of a host that answered."""
    status, message = "ok", summary(facts)
    if facts.engine is None:
        status, message = "no_engine", "reachable, no engine runs containers: " + "; ".join(facts.rejected)
    elif facts.driver_problem is not None:
        status, message = "probe_failed", f"reachable, its GPUs could not be found out: {facts.driver_problem}"
    elif not facts.gpu_names:
        status = "no_gpu"
    elif not facts.gpus:
        status, message = "probe_failed", f"reachable, its GPUs are not in the catalog: {', '.join(facts.gpu_names)}"
    if facts.open_network:
        message += f"; jobs can reach the host's own network ({facts.open_network})"
    return HostReport(
        hostname=hostname,
        reachable=True,
        status=status,
        message=message[:500],
        gpus=facts.gpu_names,
        driver=facts.driver,
        vcpus=facts.vcpus,
        memory_gb=facts.memory_gb,
        disk_gb=facts.disk_gb,
        engine=f"{facts.engine} {facts.engine_version}".strip() if facts.engine else None,
        host_key=host_key,
    )


def summary(facts: Facts) -> str:
    """Such as `2x H100 (80GB), 160GB total`."""
    if not facts.gpu_names:
        return f"reachable, no GPU: {facts.vcpus} vCPUs, {facts.memory_gb:g}GB"
    parts = []
    for model, count in Counter(gpu.model for gpu in facts.gpus).items():
        short = model.display_name.removeprefix("NVIDIA ").removesuffix(f" {model.memory_gb}GB")
        parts.append(f"{count}x {short} ({model.memory_gb}GB)")
    total = sum(gpu.model.memory_gb for gpu in facts.gpus)
    return f"{', '.join(parts)}, {total}GB total"


def _status(error: ProviderError) -> str:
    if isinstance(error, HostKeyChanged):
        return "host_key"
    if isinstance(error, AuthError):
        return "auth"
    if isinstance(error, PermissionDenied):
        return "permission"
    return "unreachable" if isinstance(error, HostUnreachable) else "probe_failed"


def _shown(line: str) -> str:
    """`NVIDIA H100 80GB HBM3 (81559 MiB)`."""
    name, _, rest = line.partition(",")
    return f"{name.strip()} ({rest.partition(',')[0].strip()} MiB)"[:120]
