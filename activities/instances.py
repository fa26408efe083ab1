"""What a provider is told of an attempt."""

from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from sqlmodel import Session

from activities.context import Context
from activities.failures import cannot_launch
from domain.errors import ProviderRejected
from domain.ids import AttemptId
from domain.lifetime import lifetime_seconds
from domain.money import UsdPerHour
from domain.spec import JobSpec, RegistryCredential
from providers.base import AgentBootstrap, InstanceSpec
from store import launch_secrets
from store.connections import is_stored
from store.launch_secrets import CannotLaunch
from store.tables import Instance, Job

T = TypeVar("T")


async def instance_spec(context: Context, job: Job, instance: Instance) -> InstanceSpec:
    """The same bytes on every retry of the attempt, unless the secret of its image pull is rotated meanwhile. What the
    image is pulled with is the one secret that is opened here.

    Raises:
        ApplicationError: that secret has expired, or is no credential; not retryable.
        ProviderRejected: an agent there could not reach the API.
    """
    spec = JobSpec.model_validate(job.spec)
    settings, attempt = context.settings, AttemptId(instance.id)
    local = by_socket(context, instance.connection_id)
    if not local and settings.public_url is None:
        raise ProviderRejected("HEADRACE_PUBLIC_URL is not set: an agent there could not reach the API")
    if not local:
        await context.keep_agent_script()
    return InstanceSpec(
        attempt_id=attempt,
        owner_id=context.owner_id,
        job_id=job.id,
        org_id=job.org_id,
        image=spec.image,
        compute=spec.compute,
        agent=AgentBootstrap(
            script=context.agent_script,
            token=context.bootstrap_token(attempt),
            socket=str(settings.agent_socket) if local else None,
            url=None if local else settings.public_url,
        ),
        ports=spec.ports,
        registry=await _registry(context, job),
        ssh_public_key=spec.ssh_public_key,
        lifetime_seconds=lifetime_seconds(
            spec.limits, UsdPerHour(Decimal(instance.offer["price_usd_hr"])), spot=bool(instance.offer.get("spot"))
        ),
    )


def by_socket(context: Context, connection_id: str) -> bool:
    """Whether agents there reach the API by its Unix socket: on the worker's own host, and in the simulated cloud of
    the settings where there is no public URL."""
    if context.providers.of(connection_id).capabilities.shared_host:
        return True
    return context.settings.public_url is None and not is_stored(connection_id)


def may_be_reached(context: Context, connection_id: str) -> bool:
    """Whether an agent there could reach the API at all: nothing is rented where it could not."""
    return context.settings.public_url is not None or by_socket(context, connection_id)


async def refuse_unlaunchable(context: Context, job: Job) -> None:
    """Before anything is rented for the job.

    Raises:
        ApplicationError: `secret_expired`, not retryable: one of its secrets would not resolve.
    """
    if job.uses_secrets:
        now = context.clock()
        await _secrets(context, lambda session: launch_secrets.require_resolvable(session, job, now))


async def _registry(context: Context, job: Job) -> RegistryCredential | None:
    if job.registry_sealed is None and not job.uses_secrets:
        return None
    vault, now = context.vault, context.clock()
    return await _secrets(context, lambda session: launch_secrets.pull_credential(session, vault, job, now))


async def _secrets(context: Context, query: Callable[[Session], T]) -> T:
    try:
        return await context.db.read(query)
    except CannotLaunch as error:
        raise cannot_launch(error.reason, error.message) from None
