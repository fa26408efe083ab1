"""`provision`: from an allocated instance to a running workload.

The agent's hello and start are rows before anybody acts on them, so this activity reads rows; no signal is needed.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from sqlmodel import Session
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.context import Context, fenced_job, heartbeating, log
from activities.diagnosis import last_words
from activities.failures import boot_error, bounded, cannot_launch, to_application_error
from activities.instances import instance_spec, refuse_unlaunchable
from domain.errors import BootstrapFailed, ImagePullFailed, ProviderError
from domain.masking import mask
from domain.spec import JobSpec
from domain.ssh_access import endpoint_entries, with_ssh
from domain.states import EventType, JobState, Reason
from providers.base import Handle, InstanceView, Provider, ProviderState, PublishedPort
from store import attempts
from store.tables import Instance, Job
from store.transitions import record
from workflows.contract import AttemptInput, FailureType

_FIRST_POLL_SECONDS = 0.015
_LONGEST_POLL_SECONDS = 1.0
_PROVIDER_POLL_SECONDS = 2.0
_ENDPOINT_LOOKS = 5
_DIAGNOSIS_SECONDS = 20.0


class ProvisionActivities:
    """Boots an attempt and watches it until its agent connects."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def provision(self, request: AttemptInput) -> None:
        """Ends with the workload's start; fails with what the provider or the image did wrong. Repeatable."""
        async with heartbeating():
            job, instance = await self._context.db.read(lambda session: self._rows(session, request))
            if instance.hello_at is None:
                await refuse_unlaunchable(self._context, job)
                await self._boot(job, instance)
            await self._await_start(request, job, instance)

    def _rows(self, session: Session, request: AttemptInput) -> tuple[Job, Instance]:
        job = fenced_job(session, request.job_id, request.token, lock=False)
        instance = attempts.peek(session, request.attempt_id)
        _refuse_when_stopped(job, instance)
        return job, instance

    async def _boot(self, job: Job, instance: Instance) -> None:
        provider = self._context.providers.of(instance.connection_id)
        handle = Handle.model_validate(instance.handle)
        spec = await instance_spec(self._context, job, instance)
        # A registry or an engine may repeat what it was given.
        secrets = () if spec.registry is None else (spec.registry.password.get_secret_value(),)

        async def progress(line: str) -> None:
            line = bounded(mask(line, secrets))
            activity.heartbeat(line)
            await self._context.say(job.id, line)

        call = asyncio.create_task(provider.provision(handle, spec, progress))
        self._context.in_flight[instance.id] = call
        try:
            booted = await call
        except ProviderError as error:
            error.message = mask(error.message, secrets)
            await self._context.say(job.id, f"provisioning failed ({error.kind}): {bounded(error.message)}")
            if isinstance(error, BootstrapFailed):
                await last_words(self._context, provider, instance)
            raise boot_error(error) from error
        finally:
            self._context.in_flight.pop(instance.id, None)
            if not call.done():
                call.cancel()
        stopped = await self._store(instance, booted)
        if stopped:
            # The deletion was asked for while the provider was starting it: nothing may be left behind its back.
            await provider.terminate(booted)
            raise ApplicationError("stopped while booting", type=FailureType.STOPPED, non_retryable=True)

    async def _store(self, instance: Instance, booted: Handle) -> bool:
        now = self._context.clock()

        def store(session: Session) -> bool:
            row = attempts.locked(session, instance.id)
            row.handle = booted.model_dump(mode="json")
            session.add(row)
            notice = booted.data.get("notice")
            if notice:
                data = {"instance_id": row.id, "message": notice}
                if record(session, row.job_id, EventType.SANDBOXED, f"notice-{row.id}", now, data):
                    self._context.logs.append_system(session, row.job_id, [str(notice)], now)
            return row.delete_requested_at is not None

        return await self._context.db.write(store)

    async def _await_start(self, request: AttemptInput, job: Job, instance: Instance) -> None:
        provider = self._context.providers.of(instance.connection_id)
        pause, loop = _FIRST_POLL_SECONDS, asyncio.get_running_loop()
        look_at = loop.time() + _PROVIDER_POLL_SECONDS
        row, seen = instance, None
        diagnose_at = _diagnose_at(loop.time())
        while True:
            marks = await self._context.db.read(lambda session: attempts.boot_marks(session, instance.id))
            if marks != seen:
                _, row = await self._context.db.read(lambda session: self._rows(session, request))
                seen = marks
            if row.started_at is not None or row.exit_report is not None:
                await self._store_endpoints(provider, job, row)
                return
            _refuse_when_not_launched(row)
            if diagnose_at is not None and loop.time() >= diagnose_at:
                # Once the time is up it may be gone before it is asked.
                diagnose_at = None
                await last_words(self._context, provider, row)
            self._check_launch(row)
            if loop.time() >= look_at:
                await self._check(provider, row)
                look_at = loop.time() + _PROVIDER_POLL_SECONDS
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_SECONDS)

    def _check_launch(self, instance: Instance) -> None:
        limit = self._context.settings.launch_timeout_seconds
        if instance.hello_at is None or self._context.clock() - instance.hello_at <= timedelta(seconds=limit):
            return
        raise ApplicationError(
            f"the agent connected and did not start the workload within {limit:g} s",
            type=FailureType.LAUNCH_TIMEOUT,
            non_retryable=True,
        )

    async def _store_endpoints(self, provider: Provider, job: Job, instance: Instance) -> None:
        """Where the job's ports are reached. Some backends publish them a moment after the workload's start."""
        spec = JobSpec.model_validate(job.spec)
        wanted = with_ssh(spec.ports, spec.ssh_public_key)
        data = (instance.handle or {}).get("data", {})
        if not wanted or not (data.get("published") or data.get("ports")):
            return
        found: tuple[PublishedPort, ...] = ()
        for look in range(_ENDPOINT_LOOKS):
            if look:
                await asyncio.sleep(_PROVIDER_POLL_SECONDS)
            try:
                view = await provider.get(Handle.model_validate(instance.handle))
            except ProviderError as error:
                log.warning("endpoints_unknown", attempt_id=instance.id, kind=error.kind)
                continue
            found = () if view is None else view.endpoints
            if view is None or len(found) >= len(wanted):
                break
        if not found:
            return
        published = [{"name": e.name, "protocol": e.protocol, "host": e.host, "port": e.port} for e in found]
        shown = endpoint_entries(spec.ports, spec.ssh_public_key, published)

        def store(session: Session) -> None:
            row = attempts.locked(session, instance.id)
            row.endpoints = shown
            session.add(row)

        await self._context.db.write(store)

    async def _check(self, provider: Provider, instance: Instance) -> None:
        """Ends the wait when the instance cannot say hello any more."""
        handle = Handle.model_validate(instance.handle)
        try:
            view = await provider.get(handle)
        except ProviderError as error:
            log.warning("instance_unknown", attempt_id=instance.id, kind=error.kind)
            return
        if view is None or view.state in {ProviderState.GONE, ProviderState.INTERRUPTED}:
            why = view.message if view is not None and view.message else "the provider no longer has it"
            raise ApplicationError(bounded(why), type=FailureType.INSTANCE_GONE, non_retryable=True)
        if view.state in {ProviderState.EXITED, ProviderState.FAILED}:
            raise to_application_error(BootstrapFailed(await self._diagnose(provider, instance, view)))

    async def _diagnose(self, provider: Provider, instance: Instance, view: InstanceView) -> str:
        """Why the agent never connected, from the instance's own output where the provider shows it."""
        output = await last_words(self._context, provider, instance)
        faults = [line for line in output.splitlines() if "headrace-agent: fault:" in line]
        if faults:
            return faults[-1].split("fault:", 1)[1].strip()
        ended = "" if view.exit_code is None else f" with exit code {view.exit_code}"
        tail = output[-500:]
        return f"the instance ended{ended} before the agent connected. {view.message} {tail}".strip()


def _diagnose_at(now: float) -> float | None:
    """When, on a clock that says `now`, to read what the instance has said so far: shortly before the time is up."""
    info = activity.info()
    if info.schedule_to_close_timeout is None:
        return None
    left = info.schedule_to_close_timeout - (datetime.now(UTC) - info.scheduled_time)
    return now + max(left.total_seconds() - min(_DIAGNOSIS_SECONDS, left.total_seconds() / 3), 0)


def _refuse_when_not_launched(instance: Instance) -> None:
    """The agent said why it cannot launch; or it came for its launch spec or its image's credential, and was sent away
    for a secret that does not resolve."""
    if instance.reason_code is None or instance.terminal_at is not None:
        return
    reason, message = Reason(instance.reason_code), instance.reason_message or instance.reason_code
    if instance.nonce is not None or reason is Reason.SECRET_EXPIRED:
        raise cannot_launch(reason, message)
    failure = ImagePullFailed if reason is Reason.IMAGE_PULL_FAILED else BootstrapFailed
    raise to_application_error(failure(message))


def _refuse_when_stopped(job: Job, instance: Instance) -> None:
    if JobState(job.state) is JobState.TERMINATING or instance.delete_requested_at is not None:
        raise ApplicationError(
            f"{job.id} is being terminated",
            type=FailureType.STOPPED,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )
