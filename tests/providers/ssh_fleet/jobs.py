"""Jobs on hosts of a fleet: what tests start, ask and remove."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pydantic import SecretStr

from domain.ids import new_attempt_id
from domain.offers import Offer
from domain.spec import ComputeRequest
from providers.base import AgentBootstrap, Handle, InstanceSpec, OfferQuery, ProviderState
from providers.local.host_image import HOST_IMAGE
from providers.ssh.link import HostUnreachable
from providers.ssh.provider import SshProvider
from tests.providers.conformance import no_progress, until_gone


@contextlib.asynccontextmanager
async def cleaned(provider: SshProvider) -> AsyncIterator[SshProvider]:
    """The provider; what it owns at the end is removed, whatever the test did."""
    try:
        yield provider
    finally:
        for view in await provider.list_owned():
            await until_gone(provider, view.handle)
        await provider.close()


def make_spec(
    owner: str,
    script: str = "exec sleep 600",
    socket: str | None = None,
    *,
    accelerator: str = "cpu-general",
    gpu_count: int = 0,
    **changes: Any,
) -> InstanceSpec:
    """A job whose "agent" is `script`; `changes` are of the spec's other fields."""
    attempt = new_attempt_id()
    agent = AgentBootstrap(
        script=script,
        token=SecretStr(f"hrb.{attempt}"),
        socket=socket,
        url=None if socket else "http://127.0.0.1:9",
    )
    values: dict[str, Any] = {"job_id": "job_fleet", "org_id": "org_fleet", "image": HOST_IMAGE, **changes}
    compute = ComputeRequest(accelerator=accelerator, gpu_count=gpu_count, ephemeral_disk_gb=1)
    return InstanceSpec(attempt_id=attempt, owner_id=owner, compute=compute, agent=agent, **values)


async def offer_of(provider: SshProvider, address: str) -> Offer:
    return next(o for o in await provider.offers(OfferQuery()) if o.provider_sku.startswith(f"{address}/"))


async def started(provider: SshProvider, spec: InstanceSpec, address: str) -> Handle:
    handle = await provider.create(spec, await offer_of(provider, address))
    return await provider.provision(handle, spec, no_progress)


async def state_of(provider: SshProvider, handle: Handle) -> ProviderState | None:
    view = await provider.get(handle)
    return None if view is None else view.state


async def state_once_reachable(provider: SshProvider, handle: Handle) -> ProviderState | None:
    """What the host says as soon as it can be asked again."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(HostUnreachable):
                return await state_of(provider, handle)
            await asyncio.sleep(0.2)
