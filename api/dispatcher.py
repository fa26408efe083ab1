"""Delivers the workflow inbox to Temporal: after each commit that put a row, and by a sweep for what was missed.

Every delivery is idempotent, so a row may be delivered twice and is never lost. Rows of one job that are taken together
go in their order, and the first that fails holds back the others. A message may still overtake the start, from another
process or after a failure: it finds no workflow then, and the workflow, when it begins, goes by the row.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import structlog
from sqlalchemy import update
from sqlmodel import Session, col
from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from api.services import Services
from domain.outcome import ExitReport
from domain.spec import JobSpec
from observability import use_trace_context
from store import inbox
from store.budget_inbox import organization_of
from store.db import woken
from store.tables import InboxRow, Instance, Job
from workflows.contract import (
    BUDGET,
    COMPUTE_JOB,
    VERIFY_CONNECTION,
    BudgetInput,
    JobInput,
    TerminateSignal,
    VerifyInput,
    exit_result,
    verification_id,
)

log = structlog.get_logger()

_BATCH = 200
_CONCURRENCY = 24
_LEASE_SECONDS = 15.0
_LONGEST_PAUSE_SECONDS = 10.0
_RPC_TIMEOUT = timedelta(seconds=10)

_STATE = SearchAttributeKey.for_keyword("HeadraceState")
_ORGANIZATION = SearchAttributeKey.for_keyword("HeadraceOrganization")
_PROJECT = SearchAttributeKey.for_keyword("HeadraceProject")


class Dispatcher:
    """One per API process. Several processes share the work: a claimed row is hidden from the others for a lease."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self._busy: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        wakeup = self._services.db.subscribe(inbox.TOPIC)
        try:
            while True:
                wakeup.clear()
                claimed = 0
                if self._services.temporal is not None:
                    try:
                        claimed = await self.deliver_due(self._services.temporal)
                    except Exception:
                        # The database is away: what is due stays due.
                        log.exception("inbox_not_read")
                if claimed < _BATCH:
                    await woken(wakeup, self._services.settings.sweep_interval_seconds)
        finally:
            self._services.db.unsubscribe(inbox.TOPIC, wakeup)
            for task in self._busy.values():
                task.cancel()

    async def deliver_due(self, client: Client) -> int:
        """Takes what is due and starts its delivery; does not wait for it. Returns the number of rows taken."""
        now = self._services.clock()
        rows = await self._services.db.write(
            lambda session: inbox.claim_due(session, now, limit=_BATCH, lease_seconds=_LEASE_SECONDS)
        )
        by_job: dict[str, list[InboxRow]] = {}
        for row in rows:
            by_job.setdefault(row.job_id, []).append(row)
        for job_id, of_job in by_job.items():
            # A delivery of the same job that is still under way goes first.
            before = self._busy.get(job_id)
            task = asyncio.create_task(self._deliver_job(client, of_job, before))
            self._busy[job_id] = task
            task.add_done_callback(lambda done, job_id=job_id: self._forget(job_id, done))  # type: ignore[misc]
        return len(rows)

    def _forget(self, job_id: str, task: "asyncio.Task[None]") -> None:
        if self._busy.get(job_id) is task:
            del self._busy[job_id]
        if not task.cancelled() and task.exception() is not None:
            log.error("delivery_crashed", job_id=job_id, error=repr(task.exception()))

    async def _deliver_job(self, client: Client, rows: Sequence[InboxRow], before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        async with self._slots:
            delivered: list[int] = []
            failure: tuple[InboxRow, str] | None = None
            for row in rows:
                try:
                    await self._deliver(client, row)
                except (RPCError, OSError, RuntimeError) as error:
                    failure = (row, str(error))
                    break
                assert row.id is not None
                delivered.append(row.id)
            await self._note(delivered, failure, rows)

    async def _note(self, delivered: list[int], failure: tuple[InboxRow, str] | None, rows: Sequence[InboxRow]) -> None:
        now = self._services.clock()
        held = [row for row in rows if row.id not in delivered]

        def note(session: Session) -> None:
            if delivered:
                inbox.mark_delivered(session, delivered, now)
                started = [row.job_id for row in rows if row.id in delivered and row.kind == inbox.START]
                if started:
                    session.exec(
                        update(Job)
                        .where(col(Job.id).in_(started), col(Job.workflow_started_at).is_(None))
                        .values(workflow_started_at=now)
                    )
            if failure is not None:
                row, error = failure
                pause = min(0.5 * 2 ** min(row.tries, 6), _LONGEST_PAUSE_SECONDS)
                for waiting in held:
                    assert waiting.id is not None
                    inbox.mark_failed(session, waiting.id, error, now + timedelta(seconds=pause))

        await self._services.db.write(note)
        if failure is not None:
            log.warning("delivery_failed", job_id=failure[0].job_id, kind=failure[0].kind, error=failure[1][:200])

    async def heartbeat(self, run_id: str, activity_id: str, job_id: str, details: Mapping[str, int]) -> None:
        """Keeps an open `stream_logs` alive; the details show in the Temporal UI. One that is over is no error."""
        client = self._services.temporal
        if client is None:
            return
        handle = client.get_async_activity_handle(workflow_id=job_id, run_id=run_id, activity_id=activity_id)
        await _unless_not_found(handle.heartbeat(dict(details), rpc_timeout=_RPC_TIMEOUT))

    # One row ------------------------------------------------------------------------------------------------------

    async def _deliver(self, client: Client, row: InboxRow) -> None:
        if row.kind == inbox.START:
            await self._start(client, row)
        elif row.kind == inbox.TERMINATE:
            signal = TerminateSignal(cut_drain=bool(row.payload.get("cut_drain")))
            await _signal(client, row.job_id, "terminate", signal)
        elif row.kind == inbox.PRICE:
            await _signal(client, row.job_id, "price_changed")
        elif row.kind == inbox.CAPACITY:
            await _signal(client, row.job_id, "capacity_freed")
        elif row.kind == inbox.BUDGET:
            await self._tell_budget(client, row.job_id)
        elif row.kind == inbox.VERIFY:
            await self._verify(client, VerifyInput(row.job_id, int(row.payload["number"])))
        elif row.kind == inbox.EXIT:
            await self._complete_stream(client, row)
        else:
            raise AssertionError(f"inbox row {row.id} has the unknown kind {row.kind!r}")

    async def _start(self, client: Client, row: InboxRow) -> None:
        job = await self._services.db.read(lambda session: session.get_one(Job, row.job_id))
        with use_trace_context(job.trace_context), suppress(WorkflowAlreadyStartedError):
            await client.start_workflow(
                COMPUTE_JOB,
                JobInput(job.id),
                id=job.id,
                task_queue=self._services.settings.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=_summary(job),
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(_STATE, job.state),
                        SearchAttributePair(_ORGANIZATION, job.org_id),
                        SearchAttributePair(_PROJECT, job.project_id),
                    ]
                ),
                rpc_timeout=_RPC_TIMEOUT,
            )

    async def _tell_budget(self, client: Client, workflow_id: str) -> None:
        """Tells the organization's budget workflow, and starts it where none runs."""
        await client.start_workflow(
            BUDGET,
            BudgetInput(organization_of(workflow_id)),
            id=workflow_id,
            task_queue=self._services.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            start_signal="changed",
            static_summary=f"budgets of {organization_of(workflow_id)}",
            rpc_timeout=_RPC_TIMEOUT,
        )

    async def _verify(self, client: Client, request: VerifyInput) -> None:
        with suppress(WorkflowAlreadyStartedError):
            await client.start_workflow(
                VERIFY_CONNECTION,
                request,
                id=verification_id(request.connection_id, request.number),
                task_queue=self._services.settings.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                rpc_timeout=_RPC_TIMEOUT,
            )

    async def _complete_stream(self, client: Client, row: InboxRow) -> None:
        """Completes the open `stream_logs`. Where none is open, the next one reads the exit row before it waits."""
        attempt_id = row.payload["attempt_id"]
        instance = await self._services.db.read(lambda session: session.get_one(Instance, attempt_id))
        if instance.stream_run_id is None or instance.stream_activity_id is None:
            return
        handle = client.get_async_activity_handle(
            workflow_id=row.job_id, run_id=instance.stream_run_id, activity_id=instance.stream_activity_id
        )
        result = exit_result(ExitReport.model_validate(instance.exit_report), instance.drained_at is not None)
        await _unless_not_found(handle.complete(result, rpc_timeout=_RPC_TIMEOUT))


async def _signal(client: Client, job_id: str, name: str, *arguments: object) -> None:
    handle = client.get_workflow_handle(job_id)
    await _unless_not_found(handle.signal(name, args=arguments, rpc_timeout=_RPC_TIMEOUT))


async def _unless_not_found(call: Awaitable[None]) -> None:
    """A workflow or activity that is over needs the message no more: what it says is in the rows."""
    try:
        await call
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def _summary(job: Job) -> str:
    compute = JobSpec.model_validate(job.spec).compute
    hardware = f"{compute.gpu_count}x {compute.accelerator}" if compute.gpu_count else compute.accelerator
    return f"{job.name or job.id} on {hardware}"
