"""What tests of the local provider share: settings, specs, an image of this machine's own programs, a cleaner."""

import asyncio
import contextlib
import functools
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import SecretStr

from domain.ids import new_attempt_id
from domain.spec import ComputeRequest
from providers.base import (
    AgentBootstrap,
    Handle,
    InstanceSpec,
    InstanceView,
    OfferQuery,
    ProviderContext,
    ProviderState,
)
from providers.local import LocalProvider
from providers.local.container_flags import Setup
from providers.local.host_image import HOST_IMAGE, build_host_image
from providers.local.process import Completed, clean_environment, run_blocking
from providers.local.select import docker_socket, select
from tests.providers.conformance import until_gone

OWNER = "hr-local-tests"
HAS_DOCKER = docker_socket() is not None
"""Docker's tests run where somebody runs a daemon: `tests/prepare` starts none."""
ENGINES = [
    pytest.param("podman", marks=pytest.mark.containers),
    pytest.param("sandbox"),
    *([pytest.param("docker", marks=pytest.mark.containers)] if HAS_DOCKER else []),
]


@dataclass(frozen=True)
class LocalTestSettings:
    local_engine: str = "sandbox"
    local_network: str = "bridge"
    local_slots: int | None = None
    local_price_usd_hr: Decimal = Decimal("0.12")
    local_multi_tenant: bool = False
    api_host: str = "127.0.0.1"


def require_podman() -> None:
    """Skips where podman is not installed; where it is and does not work, the tests must fail."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: tests/prepare installs it")


def setup_of(data_dir: Path, network: str = "bridge", engine: str = "podman") -> Setup:
    """How a container engine is called for this data directory."""
    if engine == "podman":
        require_podman()
    selection = select(engine, network, data_dir / "local" / "podman")
    assert selection.setup is not None, selection.explain()
    return selection.setup


def podman(setup: Setup, *arguments: str) -> Completed:
    return run_blocking([*setup.argv, *arguments], environment=clean_environment(dict(setup.environment)), timeout=120)


@functools.cache
def load_host_image(setup: Setup) -> str:
    """Once per process: the image stays in the engine's store."""
    return build_host_image(setup, HOST_IMAGE)


def make_local(data_dir: Path, engine: str, *, owner: str = OWNER, **changes: object) -> LocalProvider:
    data_dir.mkdir(mode=0o700, exist_ok=True)
    if engine in ("podman", "docker"):
        load_host_image(setup_of(data_dir, str(changes.get("local_network", "bridge")), engine))
    settings = replace(LocalTestSettings(local_engine=engine), **changes)  # type: ignore[arg-type]
    return LocalProvider(ProviderContext("local", owner, str(data_dir)), settings)


def make_spec(data_dir: Path, script: str, **changes: object) -> InstanceSpec:
    """A workload whose "agent" is `script`: what runs is what the test says."""
    values: dict[str, object] = {
        "attempt_id": new_attempt_id(),
        "owner_id": OWNER,
        "job_id": "job_local",
        "org_id": "org_local",
        "image": HOST_IMAGE,
        "compute": ComputeRequest(accelerator="cpu-general", gpu_count=0, ephemeral_disk_gb=1, vcpu_count=1),
        "agent": AgentBootstrap(
            script=script, token=SecretStr("hrb.canary-9d1c"), socket=str(data_dir / "agent" / "agent.sock")
        ),
        **changes,
    }
    return InstanceSpec(**values)  # type: ignore[arg-type]


def unique_owner() -> str:
    """Containers of tests that run beside this one are on the same machine: each test owns its own."""
    return f"{OWNER}-{uuid.uuid4().hex[:8]}"


@contextlib.asynccontextmanager
async def cleaned(provider: LocalProvider) -> AsyncIterator[LocalProvider]:
    """The provider; what it owns at the end is removed, whatever the test did."""
    try:
        yield provider
    finally:
        for view in await provider.list_owned():
            await until_gone(provider, view.handle)


async def until_ended(provider: LocalProvider, handle: Handle, seconds: float = 60) -> InstanceView:
    """The view of a workload that has ended, however it did."""
    async with asyncio.timeout(seconds):
        while True:
            view = await view_of(provider, handle)
            if view.state in (ProviderState.EXITED, ProviderState.FAILED):
                return view
            await asyncio.sleep(0.02)


async def until_printed(provider: LocalProvider, handle: Handle, text: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if text in (await provider.logs(handle, None)).text:
                return
            await asyncio.sleep(0.02)


async def quiet(line: str) -> None:
    """Progress that nobody looks at."""


async def start(provider: LocalProvider, spec: InstanceSpec) -> Handle:
    offer = (await provider.offers(OfferQuery()))[0]
    return await provider.provision(await provider.create(spec, offer), spec, quiet)


async def view_of(provider: LocalProvider, handle: Handle) -> InstanceView:
    view = await provider.get(handle)
    assert view is not None
    return view
