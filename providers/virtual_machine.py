"""What adapters that rent virtual machines have in common: what a machine boots with, its disk's size, and how its boot
is followed."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from agent.host import Cloud, HostSpec, host_script
from domain.errors import BootstrapFailed, ProviderNotFound, ProviderRejected
from domain.ssh_access import with_ssh
from providers.base import Handle, InstanceSpec, InstanceView, Progress, ProviderState

_PROGRESS_SECONDS = 10


def boot_script(
    spec: InstanceSpec, cloud: Cloud | None, *, lifetime_seconds: int, workload_networks: tuple[str, ...]
) -> str:
    """The host agent, as cloud-init takes it. `cloud` is one whose notices it knows; the machine powers itself off
    after `lifetime_seconds`, and its container reaches no private network but `workload_networks` (CIDRs).

    Raises:
        ProviderRejected: there is no URL by which to reach the control plane, or the text cannot carry a value.
    """
    what = f"create {spec.attempt_id}"
    if spec.agent.url is None:
        raise ProviderRejected(
            f"{what}: a rented machine reaches the control plane by its public URL, and none is set", scope="connection"
        )
    try:
        return host_script(
            HostSpec(
                url=spec.agent.url,
                token=spec.agent.token,
                attempt_id=spec.attempt_id,
                image=spec.image,
                agent=spec.agent.script,
                private=spec.registry is not None,
                gpu_count=spec.compute.gpu_count,
                ports=with_ssh(spec.ports, spec.ssh_public_key),
                networks=workload_networks,
                cloud=cloud,
                lifetime_seconds=lifetime_seconds,
            )
        )
    except ValueError as error:
        raise ProviderRejected(f"{what}: {error}") from None


def gibibytes(gigabytes: int) -> int:
    """Disks are sold in GiB; what was asked for in GB fits."""
    return math.ceil(gigabytes * 10**9 / 2**30)


async def booted(
    look: Callable[[], Awaitable[InstanceView | None]],
    what: str,
    progress: Progress,
    *,
    boot_seconds: float,
    pause_seconds: float,
) -> Handle:
    """The handle of the machine that `look` shows, once it runs or has ended by itself; `progress` tells of it until
    then. `what` names the machine in errors.

    Raises:
        ProviderNotFound: it is not there any more, or is being taken back.
        BootstrapFailed: it failed, or does not run after `boot_seconds`.
    """
    deadline = time.monotonic() + boot_seconds
    shown, shown_at = "", 0.0
    while True:
        view = await look()
        if view is None or view.state is ProviderState.GONE:
            raise ProviderNotFound(f"{what} disappeared while it booted")
        state = view.state
        if state is ProviderState.INTERRUPTED:
            raise ProviderNotFound(f"{what} was taken back while it booted: {view.message}")
        if state is ProviderState.FAILED:
            raise BootstrapFailed(f"{what} failed: {view.message}")
        if state != shown or time.monotonic() - shown_at > _PROGRESS_SECONDS:
            await progress(f"{view.handle.provider_id} is {'still ' if state == shown else ''}{state}")
            shown, shown_at = state, time.monotonic()
        if state not in (ProviderState.PENDING, ProviderState.STARTING):
            return view.handle
        if time.monotonic() > deadline:
            raise BootstrapFailed(f"{what} still {shown} after {boot_seconds:g} s")
        await asyncio.sleep(pause_seconds)
