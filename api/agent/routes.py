"""The routes of agent protocol 1. Answers are plain text that bash can read.

The server stamps the times. A bootstrap token launches, and tells of what comes before; from then on the session token
writes its own instance's output and end, and nothing else.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse
from pydantic import AwareDatetime
from sqlmodel import Session

from agent.launch_spec import LaunchSpec, render
from agent.script import PROTOCOL
from api.agent.auth import attempt_row, bearer, bootstrap_attempt, session_row
from api.agent.bodies import CHUNK_BYTES, LAST_OFFSET, MESSAGE_BYTES, read_body, read_exit, read_lines
from api.agent.orders import order_of
from api.presence import Order
from api.services import Services
from domain import images, ssh_keys
from domain.errors import BadRequest, Conflict, Forbidden, InvalidRequest, NotAuthenticated, NotFound, Unavailable
from domain.masking import mask
from domain.outcome import ExitReport
from domain.registry_auth import engine_config
from domain.spec import Workload
from domain.states import EventType
from observability import count_log_bytes
from store import agent_scripts, launch_secrets, lifecycle
from store.db import is_sqlite
from store.launch_secrets import CannotLaunch
from store.lifecycle import LaunchAnswer, LaunchDecision
from store.logs.store import Ack
from store.tables import Instance, Job
from store.transitions import record
from store.vault import VaultError, hash_token

T = TypeVar("T")

router = APIRouter(prefix="/agent/v1", include_in_schema=False)

_NONCE = re.compile(r"[0-9a-f]{16,64}")
_FAULT_CHARACTERS = 500


# Before the launch: the bootstrap token -------------------------------------------------------------------------------


@router.post("/launch")
async def launch(request: Request) -> Response:
    """Hello and the launch spec in one: 200 with bash to source, 409 `stop`, 503 not yet, 403 another agent
    was first."""
    services = _services(request)
    attempt_id = bootstrap_attempt(services, request)
    _check_protocol(request)
    nonce = request.headers.get("headrace-nonce", "")
    if not _NONCE.fullmatch(nonce):
        raise InvalidRequest("16 to 64 lower-case hex digits are wanted", field="Headrace-Nonce")
    token = services.vault.session_token(attempt_id, nonce)
    now = services.clock()

    def fetch(session: Session) -> tuple[LaunchDecision, Mapping[str, str]]:
        decision = lifecycle.fetch_launch(session, attempt_id, nonce, hash_token(token), now)
        if decision is None:
            raise NotAuthenticated(f"there is no attempt {attempt_id}")
        return _with_secrets(services, session, decision, now)

    decision, secrets = await services.db.write(fetch)
    if decision.answer is LaunchAnswer.REFUSED:
        raise Forbidden(f"{attempt_id} was launched by another agent")
    services.presence.note(attempt_id, now)
    if decision.answer is LaunchAnswer.STOP:
        return _text(Order.STOP, 409)
    if decision.answer is LaunchAnswer.WAIT:
        raise Unavailable(f"{attempt_id} is not written down as allocated yet; ask again")
    fragment = await run_in_threadpool(_render, services, decision, token, secrets)
    return Response(fragment, media_type="text/x-shellscript")


@router.post("/hello")
async def hello(request: Request) -> Response:
    """A host agent's sign of life, before it can launch anything."""
    await _before_launch(request, lifecycle.hello)
    return _text("ok")


@router.get("/script/{sha256}")
async def script(request: Request, sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> Response:
    """The agent's text of this digest, for the bootstrap token of an attempt that is not over: 404 where this control
    plane knows none such."""
    services = _services(request)
    attempt_id = bootstrap_attempt(services, request)

    def read(session: Session) -> str | None:
        attempt_row(session, attempt_id, lock=False)
        return agent_scripts.find(session, sha256)

    text = await services.db.read(read)
    if text is None:
        raise NotFound(f"there is no agent with the digest {sha256}")
    return Response(text, media_type="text/x-shellscript")


@router.post("/progress")
async def progress(request: Request) -> Response:
    """Lines about the boot or the image pull; they become system lines of the job's log."""
    lines = await read_lines(request)
    services = _services(request)

    def store(session: Session, instance: Instance, now: datetime) -> None:
        passwords = _pull_passwords(services, session, instance)
        services.logs.append_system(session, instance.job_id, [mask(line, passwords) for line in lines], now)

    await _before_launch(request, store)
    return _text("ok")


@router.post("/fault")
async def fault(
    request: Request, kind: Literal["bootstrap_failed", "image_pull_failed"] = "bootstrap_failed"
) -> Response:
    """The image or the host cannot run the agent: the reason goes to the attempt's row, its events and the log."""
    said = " ".join(await read_lines(request))
    services = _services(request)

    def store(session: Session, instance: Instance, now: datetime) -> None:
        passwords = _pull_passwords(services, session, instance)
        reason = mask(said, passwords)[:_FAULT_CHARACTERS] or "the agent gave no reason"
        data = {"instance_id": instance.id, "message": reason}
        if record(session, instance.job_id, EventType.AGENT_FAULT, f"fault-{instance.id}", now, data):
            instance.reason_code, instance.reason_message = kind, reason
            session.add(instance)
            services.logs.append_system(session, instance.job_id, [f"agent fault: {reason}"], now)

    await _before_launch(request, store)
    return _text("ok")


@router.post("/registry")
async def registry(request: Request) -> Response:
    """The bootstrap token in exchange for what the image's registry wants: 200 with docker's `config.json`, 204 where
    the job has no credential, 409 once there is nothing to be pulled any more.

    Whoever has pulled says hello before a container of the image runs: what runs in it has the token too.
    """
    services = _services(request)

    def exchange(session: Session, instance: Instance, now: datetime) -> Response:
        if instance.hello_at is not None or _is_over(instance):
            raise Conflict(f"{instance.id} has no image to pull")
        return _registry_config(services, session, instance, now)

    return await _before_launch(request, exchange)


@router.post("/notice")
async def notice(
    request: Request,
    at: Annotated[AwareDatetime | None, Query()] = None,
    kind: Literal["interruption", "risk"] = "interruption",
) -> Response:
    """The provider has told the host agent that it takes the machine back, or that it may. It has the bootstrap token
    only, so this one counts until the workload has ended; a workload that forges it uses up its own retries."""
    services = _services(request)
    attempt_id = bootstrap_attempt(services, request)
    now = services.clock()
    try:
        at = None if at is None else at.astimezone(UTC)
    except OverflowError:
        # A minute before the year 1, or after 9999.
        raise InvalidRequest("is no time that there is", field="at") from None

    def store(session: Session) -> None:
        instance = attempt_row(session, attempt_id)
        if instance.exit_report is not None or _is_over(instance):
            raise Conflict(f"{attempt_id} has ended")
        hint = kind == "risk"
        if lifecycle.interruption_noticed(session, instance, now, at=at, hint=hint):
            when = "soon" if at is None else f"at {at.isoformat(timespec='seconds')}"
            risk = "the provider may take this machine back: it is at an elevated risk of interruption"
            line = risk if hint else f"the provider takes this machine back {when}: the workload gets SIGTERM"
            services.logs.append_system(session, instance.job_id, [line], now)

    await services.db.write(store)
    return _text("ok")


# From the launch on: the session token --------------------------------------------------------------------------------


@router.post("/started")
async def started(request: Request) -> Response:
    """The workload runs."""
    await _with_instance(request, lifecycle.agent_started)
    return _text("ok")


@router.post("/ssh")
async def ssh(request: Request) -> Response:
    """The public host key of the workload's sshd, which serves now; an empty body where the image has none. The first
    word counts."""
    said = (await read_body(request, MESSAGE_BYTES)).decode(errors="replace").strip()
    host_key = ssh_keys.normalise(said, field="body") if said else None
    services = _services(request)

    def store(session: Session, instance: Instance, now: datetime) -> None:
        job = session.get_one(Job, instance.job_id)
        if job.spec.get("ssh_public_key") is None:
            raise Conflict(f"{job.id} wants no SSH access")
        if lifecycle.ssh_told(session, instance, host_key, now) and host_key is None:
            why = "no SSH: the image has no sshd (openssh-server), or it does not start"
            services.logs.append_system(session, job.id, [why], now)

    await _with_instance(request, store)
    return _text("ok")


@router.post("/logs/{stream}")
async def logs(
    request: Request,
    stream: Literal["stdout", "stderr"],
    offset: Annotated[int, Query(ge=0, le=LAST_OFFSET)],
) -> Response:
    """Output from `offset` on. The answer is the acknowledged offset; 409 when bytes before `offset` are missing.

    It is taken until the instance is confirmed absent, however the job stands.
    """
    data = await read_body(request, CHUNK_BYTES)
    services = _services(request)

    def store(session: Session, instance: Instance, now: datetime) -> Ack:
        if not is_sqlite(session):
            # Against an exit report that is being stored: one of the two must see the other.
            session.refresh(instance, with_for_update=True)
        secrets = services.masks.of(session, services.vault, instance)
        ack = services.logs.append_chunk(session, instance, stream, offset, data, now, secrets)
        _finish_if_complete(services, session, instance, now)
        return ack

    ack = await _with_instance(request, store)
    count_log_bytes(stream, ack.fresh)
    return _text(str(ack.offset), 409 if ack.gap else 200)


@router.post("/exit")
async def exited(request: Request) -> Response:
    """How the workload ended. The first report counts; the agent repeats it until it is answered."""
    report = await read_exit(request)
    services = _services(request)

    def store(session: Session, instance: Instance, now: datetime) -> None:
        lifecycle.agent_exit(session, instance, report, now)
        _finish_if_complete(services, session, instance, now)

    await _with_instance(request, store)
    return _text("ok")


@router.get("/orders")
async def orders(request: Request, wait: Annotated[float, Query(ge=0, le=3600)] = 0) -> Response:
    """`stop` as soon as the instance is to stop, `none` after `wait` seconds. Being held is the sign of life."""
    services = _services(request)
    token = bearer(request)
    instance = await services.db.read(lambda session: session_row(session, token))
    order = order_of(instance)
    seconds = min(wait, services.settings.orders_wait_seconds)
    with services.presence.held(instance.id, services.clock):
        if order is Order.NONE and seconds > 0:
            order = await _held(request, instance.id, seconds)
    return _text(order)


# What they share ------------------------------------------------------------------------------------------------------


async def _held(request: Request, instance_id: str, seconds: float) -> Order:
    """Holds the poll; ends at once when the agent hangs up, for then nobody is there to be in contact with."""
    waiting = asyncio.create_task(_services(request).presence.order(instance_id, seconds))
    hung_up = asyncio.create_task(_hung_up(request))
    try:
        await asyncio.wait({waiting, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else Order.NONE
    finally:
        waiting.cancel()
        hung_up.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _before_launch(request: Request, change: Callable[[Session, Instance, datetime], T]) -> T:
    """Runs `change` on the attempt of the bootstrap token, which is good for nothing but its own launch once the spec
    was handed out: the workload can read it, and runs before its start is reported."""
    services = _services(request)
    attempt_id = bootstrap_attempt(services, request)
    now = services.clock()

    def run(session: Session) -> T:
        instance = attempt_row(session, attempt_id)
        if instance.nonce is not None:
            raise Conflict(f"{attempt_id} has launched")
        return change(session, instance, now)

    result = await services.db.write(run)
    services.presence.note(attempt_id, now)
    return result


def _pull_passwords(services: Services, session: Session, instance: Instance) -> Sequence[str]:
    """What a host agent could repeat of the job's image pull: the one secret that is known before a launch."""
    try:
        return launch_secrets.pull_passwords(session, services.vault, session.get_one(Job, instance.job_id))
    except VaultError as error:
        raise Unavailable(f"the registry credential of {instance.job_id} cannot be opened: {error}") from None


def _registry_config(services: Services, session: Session, instance: Instance, now: datetime) -> Response:
    """What a host pulls the job's image with. A secret that is of no use is the end of the attempt, as at a launch."""
    job = session.get_one(Job, instance.job_id)
    try:
        credential = launch_secrets.pull_credential(session, services.vault, job, now)
    except CannotLaunch as error:
        lifecycle.refuse_launch(session, instance, error.reason, error.message, now)
        services.logs.append_system(session, job.id, [f"not launched: {error.message}"], now)
        return _text(Order.STOP, 409)
    except VaultError as error:
        raise Unavailable(f"the registry credential of {job.id} cannot be opened: {error}") from None
    if credential is None:
        return Response(status_code=204)
    config = engine_config(images.parse(job.spec["image"]), credential, docker=True)
    return Response(config, media_type="application/json", headers={"Cache-Control": "no-store"})


def _is_over(instance: Instance) -> bool:
    """Whether it is to stop, or counts for its job no more."""
    return any((instance.stop_requested_at, instance.terminal_at, instance.delete_requested_at, instance.reason_code))


async def _with_instance(request: Request, change: Callable[[Session, Instance, datetime], T]) -> T:
    """Runs `change` in one transaction on the instance of the session token."""
    services = _services(request)
    token = bearer(request)
    now = services.clock()

    def run(session: Session) -> tuple[str, T]:
        instance = session_row(session, token)
        return instance.id, change(session, instance, now)

    instance_id, result = await services.db.write(run)
    services.presence.note(instance_id, now)
    return result


def _finish_if_complete(services: Services, session: Session, instance: Instance, now: datetime) -> None:
    """Once all bytes that the exit report counts are stored, the last lines end and the log is complete."""
    if instance.exit_report is None or instance.drained_at is not None:
        return
    report = ExitReport.model_validate(instance.exit_report)
    stored = services.logs.acked(session, instance.id)
    if stored["stdout"] >= report.stdout_bytes and stored["stderr"] >= report.stderr_bytes:
        services.logs.finish_streams(session, instance, now)
        services.masks.forget(instance.id)
        instance.drained_at = now
        session.add(instance)


def _with_secrets(
    services: Services, session: Session, decision: LaunchDecision, now: datetime
) -> tuple[LaunchDecision, Mapping[str, str]]:
    """The values of `secret_env` for a launch; without one that is needed the agent is told to stop."""
    if decision.answer is not LaunchAnswer.LAUNCH:
        return decision, {}
    job, instance = decision.job, decision.instance
    try:
        return decision, launch_secrets.resolve(session, services.vault, job, instance, now)
    except CannotLaunch as error:
        lifecycle.refuse_launch(session, decision.instance, error.reason, error.message, now)
        services.logs.append_system(session, job.id, [f"not launched: {error.message}"], now)
        return replace(decision, answer=LaunchAnswer.STOP), {}
    except VaultError as error:
        raise Unavailable(f"the secrets of {job.id} cannot be opened: {error}") from None


def _render(services: Services, decision: LaunchDecision, token: str, secrets: Mapping[str, str]) -> bytes:
    job, instance = decision.job, decision.instance
    try:
        workload = Workload.model_validate(json.loads(services.vault.open(job.workload_sealed, f"workload:{job.id}")))
    except VaultError as error:
        raise Unavailable(f"the workload of {job.id} cannot be opened: {error}") from None
    settings = services.settings
    return render(
        LaunchSpec(
            session_token=token,
            workload=workload,
            platform_env={
                "HF_ENDPOINT": settings.hf_endpoint,
                "HEADRACE_JOB_ID": job.id,
                "HEADRACE_INSTANCE_ID": instance.id,
            },
            secrets=secrets,
            spool_bytes=settings.agent_spool_bytes,
            orders_wait_seconds=max(1, int(settings.orders_wait_seconds)),
            ssh_public_key=job.spec.get("ssh_public_key"),
        )
    )


def _check_protocol(request: Request) -> None:
    spoken = request.headers.get("headrace-protocol", "")
    if spoken != str(PROTOCOL):
        raise BadRequest(
            f"agent protocol {spoken[:16]!r}: this control plane speaks {PROTOCOL}", code="unsupported_protocol"
        )


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _text(body: str, status: int = 200) -> Response:
    return PlainTextResponse(body, status)
