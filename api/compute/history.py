"""What happened to a job: events, instances, logs."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Response
from sqlmodel import Session

from api.auth import OnBehalfOf, Reader, ServicesOf
from api.compute import render
from api.compute.anonymity import veil_of
from api.compute.documentation import errors
from api.compute.jobs import JobIdParameter, no_job, require_job_id
from api.compute.schemas import EventList, InstanceList, LogList
from api.encoding import json_response
from api.pagination import CursorParameter, Traversal, page
from api.services import Services
from domain.errors import InvalidRequest
from domain.states import JobState
from store import jobs
from store.access import Principal
from store.db import woken
from store.job_records import AttemptRecord, EventRecord
from store.logs.store import LogPage

router = APIRouter(prefix="/jobs/{id}", tags=["Jobs"])

T = TypeVar("T")

MAX_WAIT_SECONDS = 20
# Lines that another process stored wake nobody here: they are looked for this often while a follower waits.
_LOOK_AGAIN_SECONDS = 1.0
_LOG_ID = re.compile(r"log_([0-9]{16})")

Order = Annotated[
    Literal["asc", "desc"], Query(description="`asc` is oldest first. A cursor holds for the order it was issued in.")
]
InstanceStateParameter = Literal[
    "requested",
    "starting",
    "running",
    "ready",
    "busy",
    "stopping",
    "stopped",
    "succeeded",
    "failed",
    "lost",
    "unknown",
]


@router.get("/events", summary="List a job's events", response_model=EventList, responses=errors(400, 404, 422))
async def list_job_events(
    job_id: JobIdParameter,
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    order: Order = "asc",
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """What happened, in order. Clients must ignore types that they do not know."""
    traversal = Traversal(services.vault, "events", principal.org_id, job_id, order)
    after = traversal.position(cursor)

    def read(session: Session) -> tuple[list[EventRecord], int]:
        found = jobs.events(session, job_id, ascending=order == "asc", after=after, limit=limit + 1)
        return found, jobs.count_events(session, job_id)

    _, (found, total) = await _read_of(services, principal, job_id, read)
    next_cursor = traversal.cursor(found[limit - 1].seq) if len(found) > limit else None
    veil = await veil_of(services, principal, job_id)
    return json_response(page([veil.event(render.event(record)) for record in found[:limit]], next_cursor, total))


@router.get(
    "/instances", summary="List a job's instances", response_model=InstanceList, responses=errors(400, 404, 422)
)
async def list_job_instances(
    job_id: JobIdParameter,
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    state: Annotated[InstanceStateParameter | None, Query(description="Only instances in this state.")] = None,
    order: Order = "asc",
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Every attempt to run the job, those that got no hardware included."""
    traversal = Traversal(services.vault, "instances", principal.org_id, job_id, state, order)
    after = traversal.position(cursor)

    def read(session: Session) -> tuple[list[AttemptRecord], int]:
        found = jobs.attempts(session, job_id, state=state, ascending=order == "asc", after=after, limit=limit + 1)
        return found, jobs.count_attempts(session, job_id, state=state)

    _, (found, total) = await _read_of(services, principal, job_id, read)
    next_cursor = traversal.cursor(found[limit - 1].number) if len(found) > limit else None
    veil = await veil_of(services, principal, job_id)
    return json_response(page([veil.instance(render.instance(record)) for record in found[:limit]], next_cursor, total))


@router.get("/logs", summary="List a job's log lines", response_model=LogList, responses=errors(400, 404, 422))
async def list_job_logs(
    job_id: JobIdParameter,
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    source: Annotated[Literal["system", "user"] | None, Query(description="Only lines of this source.")] = None,
    order: Order = "asc",
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    follow_from: Annotated[
        str | None,
        Query(description="Instead of a cursor, with `order=asc`: the id of the last line that is known already."),
    ] = None,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for a line if there is none yet.")
    ] = 0,
) -> Response:
    """Lines of the workload (`user`) and about it (`system`). `next_cursor` is null at the end of what exists now;
    a follower of a live job goes on with `follow_from` and `wait`."""
    traversal = Traversal(services.vault, "logs", principal.org_id, job_id, source, order)
    after = traversal.position(cursor)
    if follow_from is not None:
        after = _seq_of(follow_from, order, cursor)
    await _read_of(services, principal, job_id, _nothing)

    async def read() -> LogPage:
        return await services.logs.page(job_id, source=source, ascending=order == "asc", after=after, limit=limit)

    found = await read()
    if wait and not found.lines and order == "asc":
        found = await _wait_for_lines(services, principal, job_id, read, wait)
    next_cursor = None if found.next_after is None else traversal.cursor(found.next_after)
    veil = await veil_of(services, principal, job_id)
    return json_response(page([veil.log(render.log(line)) for line in found.lines], next_cursor, found.total))


def _seq_of(log_id: str, order: str, cursor: str | None) -> int:
    if order != "asc" or cursor is not None:
        raise InvalidRequest("follow_from: goes with order=asc and without a cursor", field="follow_from")
    match = _LOG_ID.fullmatch(log_id)
    if match is None:
        raise InvalidRequest("follow_from: is not the id of a log line", field="follow_from")
    return int(match[1])


def _nothing(_session: Session) -> None:
    """For a look at the job's state alone."""


async def _wait_for_lines(
    services: Services, principal: Principal, job_id: str, read: Callable[[], Awaitable[LogPage]], seconds: float
) -> LogPage:
    """The next page that has lines; an empty one once the time is up or the job has ended."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    topic = f"logs:{job_id}"
    stored = services.db.subscribe(topic)
    try:
        while True:
            # The state comes first: what a job wrote before it ended is then in the page.
            state, _ = await _read_of(services, principal, job_id, _nothing)
            found = await read()
            remaining = deadline - loop.time()
            if found.lines or state.terminal or remaining <= 0:
                return found
            await woken(stored, min(remaining, _LOOK_AGAIN_SECONDS))
            stored.clear()
    finally:
        services.db.unsubscribe(topic, stored)


async def _read_of(
    services: Services, principal: Principal, job_id: str, query: Callable[[Session], T]
) -> tuple[JobState, T]:
    """The job's state and what `query` reads, in one snapshot with the check that the caller may see the job.

    Raises:
        NotFound: there is no such job, or it is another's.
    """
    require_job_id(job_id)

    def read(session: Session) -> tuple[JobState, T]:
        state = jobs.visible(session, principal, job_id)
        if state is None:
            raise no_job(job_id)
        return state, query(session)

    return await services.db.read(read)
