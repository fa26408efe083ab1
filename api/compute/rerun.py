"""Running a job again: an extension of ours. The new job is a job of its own; the old one's record stays as it is."""

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, ServicesOf, Writer
from api.compute import render
from api.compute.anonymity import veil_of
from api.compute.documentation import errors
from api.compute.jobs import JobIdParameter, no_job, require_job_id
from api.compute.schemas import Job
from api.encoding import json_response
from api.idempotency import IdempotencyKey, idempotency_key
from api.services import Services
from domain.errors import Conflict
from domain.ids import JobId, new_job_id
from domain.secrets import references
from domain.spec import JobSpec, Workload
from observability import current_trace_context
from store import jobs
from store.tables import Job as JobRow

router = APIRouter(prefix="/jobs", tags=["Jobs"])


@router.post(
    "/{id}/rerun",
    summary="Run a job again",
    status_code=201,
    response_model=Job,
    responses={
        200: {"model": Job, "description": "A replay: the job that an equal request made before."},
        **errors(400, 403, 404, 409, 422),
    },
)
async def rerun_job(
    request: Request,
    job_id: JobIdParameter,
    principal: Writer,
    services: ServicesOf,
    on_behalf_of: OnBehalfOf,
    _idempotency_key: IdempotencyKey = None,
) -> Response:
    """Creates a new job of the same image, command, environment, limits and labels. An inline `registry_credential` is
    discarded when its job ends: after that, create the job anew with the credential (409 `credential_discarded`).
    Stored secrets are referred to as before: 422 `secret_not_found` once one was deleted."""
    require_job_id(job_id)
    claim = jobs.IdempotencyClaim(idempotency_key(request), b"", services.vault, operation=f"rerun_job {job_id}")
    new_id, now = new_job_id(), services.clock()

    def write(session: Session) -> jobs.Created | None:
        # A repeated request first: what it copied then may be gone by now.
        replayed = jobs.replay(session, principal, claim)
        if replayed is not None:
            return replayed
        original = jobs.original(session, principal, job_id)
        if original is None:
            return None
        return jobs.create(session, principal, _copy(services, *original, new_id, on_behalf_of), claim, now)

    created = await services.db.write(write)
    if created is None:
        raise no_job(job_id)
    veil = await veil_of(services, principal)
    return json_response(veil.job(render.job(created.job, now), created.job), 200 if created.replayed else 201)


def _copy(services: Services, job: JobRow, project: str, new_id: JobId, on_behalf_of: str | None) -> jobs.NewJob:
    if JobSpec.model_validate(job.spec).inline_credential and job.registry_sealed is None:
        raise Conflict(
            f"{job.id} was created with an inline registry_credential, which was discarded when it ended:"
            " create the job anew with the credential",
            code="credential_discarded",
        )

    def reseal(blob: bytes | None, purpose: str) -> bytes | None:
        # A sealed value opens in the row that it was sealed for, and in no other.
        if blob is None:
            return None
        return services.vault.seal(services.vault.open(blob, f"{purpose}:{job.id}"), f"{purpose}:{new_id}")

    workload = reseal(job.workload_sealed, "workload")
    assert workload is not None
    opened = Workload.model_validate_json(services.vault.open(workload, f"workload:{new_id}"))
    return jobs.NewJob(
        id=new_id,
        project=project,
        on_behalf_of=on_behalf_of,
        name=job.name,
        kind=job.kind,
        labels=job.labels,
        spec=job.spec,
        workload_sealed=workload,
        registry_sealed=reseal(job.registry_sealed, "registry"),
        references=references(JobSpec.model_validate(job.spec), opened),
        trace_context=current_trace_context() or None,
        rerun_of=job.id,
    )
