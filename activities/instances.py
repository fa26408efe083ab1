"""What a provider is told of an attempt."""

import json

from activities.context import Context
from domain.ids import AttemptId
from domain.offers import Offer
from domain.spec import JobSpec, RegistryCredential
from providers.base import AgentBootstrap, InstanceSpec
from store.tables import Instance, Job


def instance_spec(context: Context, job: Job, instance: Instance) -> InstanceSpec:
    """The same bytes on every retry of the attempt. The registry credential is the one secret that is opened here."""
    spec = JobSpec.model_validate(job.spec)
    settings, attempt = context.settings, AttemptId(instance.id)
    local = Offer.model_validate(instance.offer).region == "local" or settings.public_url is None
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
        registry=_registry(context, job),
        ssh_public_key=spec.ssh_public_key,
    )


def _registry(context: Context, job: Job) -> RegistryCredential | None:
    if job.registry_sealed is None:
        return None
    opened = json.loads(context.vault.open(job.registry_sealed, f"registry:{job.id}"))
    return RegistryCredential(username=opened["username"], password=opened["password"])
