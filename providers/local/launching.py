"""Makes of a reservation and a spec what an engine starts."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from domain.ssh_access import with_ssh
from providers.base import InstanceSpec
from providers.local.container_view import LABEL_ATTEMPT, LABEL_JOB, LABEL_ORG, LABEL_OWNER
from providers.local.engine import AGENT_MOUNT, Launch
from providers.local.offers import Machine
from providers.local.records import Record

_MEMORY_GB_PER_VCPU = 4


def build_launch(
    record: Record,
    spec: InstanceSpec,
    machine: Machine,
    *,
    directory: Path,
    agent_directory: Path,
    script_name: str,
    publish_address: str | None,
    still_wanted: Callable[[], bool] = lambda: True,
) -> Launch:
    """`agent_directory` has the agent's script, `script_name`. Without a `publish_address` no port is published."""
    agent = spec.agent
    environment = {"HEADRACE_TOKEN": agent.token.get_secret_value()}
    if agent.socket:
        environment["HEADRACE_SOCKET"] = f"{AGENT_MOUNT}/{Path(agent.socket).name}"
    if agent.url:
        environment["HEADRACE_URL"] = agent.url
    vcpus, memory_gb = machine.share(spec.compute.gpu_count)
    if spec.compute.vcpu_count is not None:
        vcpus = min(vcpus, spec.compute.vcpu_count)
        if not spec.compute.gpu_count:
            memory_gb = min(memory_gb, vcpus * _MEMORY_GB_PER_VCPU)
    return Launch(
        attempt_id=record.attempt_id,
        name=record.name,
        directory=directory,
        image=spec.image,
        agent_directory=agent_directory,
        script_name=script_name,
        environment=environment,
        labels={
            LABEL_OWNER: record.owner_id,
            LABEL_ATTEMPT: record.attempt_id,
            LABEL_JOB: record.job_id,
            LABEL_ORG: record.org_id,
        },
        ports=with_ssh(spec.ports, spec.ssh_public_key) if publish_address else (),
        publish_address=publish_address or "127.0.0.1",
        registry=spec.registry,
        cpus=vcpus,
        memory_bytes=int(memory_gb * 1e9),
        disk_gb=spec.compute.ephemeral_disk_gb,
        still_wanted=still_wanted,
    )


def agent_directory(spec: InstanceSpec, data_dir: str) -> Path:
    """The directory that workloads see: the agent's socket lies in it."""
    socket = spec.agent.socket
    return (Path(socket).parent if socket else Path(data_dir) / "agent").resolve()


def install_script(directory: Path, script: str) -> str:
    """Writes the agent's text into the directory that workloads see, under a name made of its content; that name.

    A workload that runs an older text keeps its file: bash reads a script as it goes.
    """
    name = name_of_script(script)
    target = directory / name
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        draft = directory / f".{name}.{os.getpid()}.{threading.get_ident()}"
        draft.write_text(script)
        draft.chmod(0o644)
        draft.replace(target)
    # A sandbox reads it under a user id of its own. The data directory around it stays closed to other users.
    if directory.stat().st_mode & 0o777 != 0o755:
        directory.chmod(0o755)
    return name


def name_of_script(script: str) -> str:
    """A name made of its content."""
    return f"agent-v1-{hashlib.sha256(script.encode()).hexdigest()[:16]}.sh"
