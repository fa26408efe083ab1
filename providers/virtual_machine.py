"""What adapters that rent virtual machines have in common: the text that a machine boots with, and its disk's size."""

import math

from agent.host import Cloud, HostSpec, host_script
from domain.errors import ProviderRejected
from domain.ssh_access import with_ssh
from providers.base import InstanceSpec


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
