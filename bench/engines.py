"""The ways to run a workload on this machine that can be measured here."""

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from providers.local.container_flags import Setup
from providers.local.host_image import HOST_IMAGE, build_host_image
from providers.local.process import clean_environment
from providers.local.select import PODMAN, SANDBOX, select


@dataclass(frozen=True, slots=True)
class Engine:
    """`setup` is how the engine is called by hand, for the comparison; None for the sandbox."""

    title: str
    environment: dict[str, str]
    setup: Setup | None

    @property
    def is_sandbox(self) -> bool:
        return self.setup is None

    def alone(self, runs: int) -> list[float]:
        """Seconds that `podman run IMAGE echo hi` takes by itself, configured as Headrace configures it."""
        assert self.setup is not None
        environment = clean_environment(dict(self.setup.environment))
        network = [f"--network={self.setup.network}"] if self.setup.network else []
        durations = []
        for number in range(runs):
            name = f"headrace-bench-{os.getpid()}-{number}"
            argv = [*self.setup.argv, "run", "--pull=never", f"--name={name}", *network, HOST_IMAGE, "echo", "hi"]
            began = time.perf_counter()
            subprocess.run(argv, env=environment, check=True, capture_output=True)
            durations.append(time.perf_counter() - began)
            subprocess.run([*self.setup.argv, "rm", "--force", name], env=environment, check=True, capture_output=True)
        return durations


def _environment(engine: str, network: str) -> dict[str, str]:
    return {"HEADRACE_LOCAL_ENGINE": engine, "HEADRACE_LOCAL_NETWORK": network}


async def engines(wanted: Sequence[str]) -> list[Engine]:
    """Those of `wanted` (`sandbox`, `podman`, `podman-none`) that work here, their image loaded."""
    return await asyncio.to_thread(lambda: [engine for name in wanted if (engine := _engine(name)) is not None])


def _engine(name: str) -> Engine | None:
    if name == SANDBOX:
        return Engine(SANDBOX, _environment(SANDBOX, "none"), None)
    network = "none" if name.endswith("-none") else "bridge"
    selection = select(PODMAN, network, Path(tempfile.gettempdir()) / "headrace-bench-podman")
    if selection.setup is None:
        return None
    build_host_image(selection.setup)
    return Engine(f"podman, network {network}", _environment(PODMAN, network), selection.setup)
