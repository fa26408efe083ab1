"""Jobs: create, list, get, terminate."""

import asyncio
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, Reader, ServicesOf, Writer
from api.compute import render
from api.compute.admission import Admitted, admit
from api.compute.anonymity import check_choice, veil_of
from api.compute.documentation import errors
from api.compute.requests import EXAMPLE_JOB
from api.compute.schemas import Job, JobList
from api.encoding import canonical_json, encode, json_response, parse_json
from api.idempotency import IdempotencyKey, idempotency_key
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from api.services import Services
from domain.errors import NotFound
from domain.ids import new_job_id
from domain.states import JobState, Reason
from observability import current_trace_context
from store import audit, jobs
from store.job_records import JobRecord
from store.lifecycle import request_termination

router = APIRouter(prefix="/jobs", tags=["Jobs"])

_JOB_ID = re.compile(r"job_[0-9A-Za-z]{16}")
# Checking a script of megabytes takes longer than the event loop should be kept from others.
_LARGE_BODY = 256 * 1024

State = Literal[
    "requested",
    "allocating",
    "provisioning",
    "running",
    "ready",
    "finalizing",
    "terminating",
    "succeeded",
    "failed",
    "terminated",
]
JobIdParameter = Annotated[str, Path(alias="id", examples=["job_9f2kQxWv3bT8mLpZ"])]

_REQUEST_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/JobCreate"}, "example": EXAMPLE_JOB},
    },
}


@router.post(
    "",
    summary="Create a job",
    status_code=201,
    response_model=Job,
    responses={
        200: {"model": Job, "description": "A replay: the job that an equal request made before."},
        **errors(400, 403, 408, 409, 413, 422),
    },
    openapi_extra={"requestBody": _REQUEST_BODY},
)
async def create_job(
    request: Request,
    principal: Writer,
    services: ServicesOf,
    on_behalf_of: OnBehalfOf,
    _idempotency_key: IdempotencyKey = None,
) -> Response:
    """Accepts a job. That it was accepted does not mean that there is capacity: what happens later is told by its
    state, reason, events and logs. Repeating a request with its key and an equal body answers 200 with the same job."""
    key = idempotency_key(request)
    raw = await request.body()
    prepare = _prepare if len(raw) < _LARGE_BODY else _prepare_in_thread
    admitted, canonical = await prepare(raw)
    check_choice(principal, admitted.request.placement)
    new = _new_job(services, admitted, on_behalf_of)
    claim = jobs.IdempotencyClaim(key, canonical, services.vault)
    now = services.clock()

    created = await services.db.write(lambda session: jobs.create(session, principal, new, claim, now))
    if not created.replayed:
        return json_response(render.job(created.job, now), 201)
    veil = await veil_of(services, principal)
    return json_response(veil.job(render.job(created.job, now), created.job))


@router.get("", summary="List jobs", response_model=JobList, responses=errors(400, 422))
async def list_jobs(
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The organization's jobs, newest first."""
    traversal = Traversal(services.vault, "jobs", principal.org_id, principal.project_id, state)
    position = traversal.position(cursor)
    before = None if position is None else (moment_of(position[0]), position[1])

    veil = await veil_of(services, principal)
    # What is kept names providers.
    kept = {} if veil.drawn else render.settled()

    def read(session: Session) -> tuple[list[JobRecord], int]:
        found = jobs.newest(session, principal, state=state, before=before, limit=limit + 1, known=kept)
        return found, jobs.count(session, principal, state=state)

    found, total = await services.db.read(read)
    shown, now = found[:limit], services.clock()
    next_cursor = None
    if len(found) > limit:
        next_cursor = traversal.cursor([moment_key(shown[-1].created_at), shown[-1].id])
    if veil.drawn:
        data: list[Any] = [veil.job(render.job(record, now), record) for record in shown]
    else:
        data = [kept.get(record.id) or render.listed(record, now) for record in shown]
    return json_response(page(data, next_cursor, total))


@router.get("/{id}", summary="Get a job", response_model=Job, responses=errors(404))
async def get_job(
    job_id: JobIdParameter, principal: Reader, services: ServicesOf, _on_behalf_of: OnBehalfOf
) -> Response:
    """The job now. Records of terminal jobs stay readable."""
    require_job_id(job_id)
    record = _found(await services.db.read(lambda session: jobs.find(session, principal, job_id)), job_id)
    veil = await veil_of(services, principal)
    return json_response(veil.job(render.job(record, services.clock()), record))


@router.post("/{id}/terminate", summary="Terminate a job", response_model=Job, responses=errors(403, 404))
async def terminate_job(
    job_id: JobIdParameter, principal: Writer, services: ServicesOf, on_behalf_of: OnBehalfOf
) -> Response:
    """Stops the job at once, with no grace period; repeating it, or terminating a terminal job, changes nothing."""
    require_job_id(job_id)
    now = services.clock()
    data = {"owner": principal.owner, **({"on_behalf_of": on_behalf_of} if on_behalf_of else {})}

    def write(session: Session) -> JobRecord | None:
        before = jobs.visible(session, principal, job_id)
        if before is None:
            return None
        if not before.terminal and before is not JobState.TERMINATING:
            audit.write(session, principal, "job.terminate", job_id, now)
        request_termination(
            session, job_id, now, reason=Reason.USER_REQUESTED, message="terminated on request", data=data
        )
        session.flush()
        return jobs.find(session, principal, job_id)

    record = _found(await services.db.write(write), job_id)
    veil = await veil_of(services, principal)
    return json_response(veil.job(render.job(record, now), record))


def require_job_id(job_id: str) -> None:
    """Raises NotFound for what cannot be a job's id, before any database sees it."""
    if not _JOB_ID.fullmatch(job_id):
        raise no_job(job_id)


def no_job(job_id: str) -> NotFound:
    """The error for a job that does not exist, or not for this caller."""
    return NotFound(f"no job {job_id[:64]!r}")


def _found(record: JobRecord | None, job_id: str) -> JobRecord:
    """The record. Raises NotFound when there is none that the caller may see."""
    if record is None:
        raise no_job(job_id)
    return record


def _parse(raw: bytes) -> tuple[Admitted, bytes]:
    body: Any = parse_json(raw)
    return admit(body), canonical_json(body)


async def _prepare(raw: bytes) -> tuple[Admitted, bytes]:
    return _parse(raw)


async def _prepare_in_thread(raw: bytes) -> tuple[Admitted, bytes]:
    return await asyncio.to_thread(_parse, raw)


def _new_job(services: Services, admitted: Admitted, on_behalf_of: str | None) -> jobs.NewJob:
    job_id = new_job_id()
    registry = None
    if admitted.registry is not None:
        credential = {
            "username": admitted.registry.username,
            "password": admitted.registry.password.get_secret_value(),
        }
        registry = services.vault.seal(encode(credential), f"registry:{job_id}")
    request = admitted.request
    return jobs.NewJob(
        id=job_id,
        project=request.project,
        on_behalf_of=on_behalf_of,
        name=request.name,
        kind=request.kind,
        labels=request.labels,
        spec=admitted.job.model_dump(mode="json"),
        workload_sealed=services.vault.seal(admitted.workload.model_dump_json().encode(), f"workload:{job_id}"),
        registry_sealed=registry,
        references=admitted.references,
        trace_context=current_trace_context() or None,
    )
