"""The Temporal worker process: wires providers, activities and workflows, once, by hand."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

import observability
from activities.allocate import AllocateActivities
from activities.budgets import BudgetActivities
from activities.connections import ConnectionActivities, ConnectionKeeper
from activities.context import Context
from activities.deallocate import DeallocateActivities
from activities.housekeeping import HousekeepingActivities
from activities.offers import OffersActivities
from activities.provision import ProvisionActivities
from activities.reconcile import ReconcileActivities
from activities.record import RecordActivities
from activities.recovery import sweep
from activities.schedules import ConnectionSchedules, keep_schedules
from activities.stream_logs import StreamActivities
from domain.clock import utc_now
from observability.activities import ActivityLogContext
from providers.base import Provider, ProviderContext
from providers.registry import Providers
from settings import Settings
from store import bootstrap, liveness, warnings
from store.connections import is_stored
from store.stores import open_stores
from store.temporal import connect
from store.vault import Vault
from workflows.budget import Budget
from workflows.compute_job import ComputeJob
from workflows.deallocation import Deallocation
from workflows.offers import PollOffers
from workflows.reconcile import Housekeeping, Reconcile
from workflows.recover import Recover
from workflows.verify import VerifyConnection

log = structlog.get_logger()

WORKFLOWS: Sequence[type] = (
    ComputeJob,
    Deallocation,
    Recover,
    Reconcile,
    Housekeeping,
    PollOffers,
    Budget,
    VerifyConnection,
)

_FILES = 65_536
_BEAT_SECONDS = 2.0
_RETRY_SECONDS = 5.0
_SHUTDOWN = timedelta(seconds=10)


def activities_of(context: Context) -> list[Callable[..., Awaitable[Any]]]:
    """Every activity, bound to the context."""
    record, allocate, provision = RecordActivities(context), AllocateActivities(context), ProvisionActivities(context)
    stream, deallocate = StreamActivities(context), DeallocateActivities(context)
    return [
        record.claim_job,
        record.open_attempts,
        record.begin_termination,
        record.current_deadline,
        record.fail_attempt,
        record.settle,
        record.settle_recovered,
        allocate.allocate,
        provision.provision,
        stream.stream_logs,
        stream.drain,
        deallocate.deallocate,
        deallocate.confirm_absence,
        ReconcileActivities(context).reconcile_connection,
        HousekeepingActivities(context).keep_house,
        BudgetActivities(context).review_budgets,
        OffersActivities(context).poll_offers,
        ConnectionActivities(context).verify_connection,
    ]


def build_providers(settings: Settings, owner_id: str) -> Providers:
    """What the settings configure; the keeper adds what is connected. A backend's module is imported only when it is
    wanted."""
    connections: dict[str, Provider] = {}
    data_dir = str(settings.data_dir)
    if settings.local_enabled:
        from providers.local.provider import LocalProvider

        connections["local"] = LocalProvider(ProviderContext("local", owner_id, data_dir), settings)
    if settings.fake_provider_url:
        from providers.fake.provider import FakeProvider

        connections["fake"] = FakeProvider(ProviderContext("fake", owner_id, data_dir), settings.fake_provider_url)
    return Providers(connections)


@asynccontextmanager
async def open_context(settings: Settings) -> AsyncIterator[Context]:
    """Database, vault, log store and providers, closed at the end."""
    stores = open_stores(settings, utc_now)
    owner_id = await stores.db.read(bootstrap.owner_id)
    providers = build_providers(settings, owner_id)
    try:
        yield Context(settings, stores.db, stores.vault, stores.logs, stores.blobs, utc_now, providers, owner_id)
    finally:
        await providers.close()
        stores.db.close()


def build_worker(client: Client, context: Context) -> Worker:
    """One worker for workflows and activities: kept on one task queue, activities start eagerly."""
    return Worker(
        client,
        task_queue=context.settings.task_queue,
        workflows=WORKFLOWS,
        activities=activities_of(context),
        interceptors=[ActivityLogContext()],
        # Each takes 0.25 MB for as long as its job runs. One that is not cached costs its replay, some 10 ms, once its
        # job ends: short jobs always are.
        max_cached_workflows=200,
        max_concurrent_workflow_tasks=100,
        max_concurrent_activities=200,
        max_concurrent_local_activities=100,
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=_SHUTDOWN,
    )


async def run_worker(settings: Settings) -> None:
    """Until SIGTERM or SIGINT; polling stops first, then what runs is given a moment."""
    allow_files()
    telemetry = observability.setup(settings, "headrace-worker")
    try:
        await _work(settings)
    finally:
        # The exporters wait for their receiver.
        await asyncio.to_thread(telemetry.shutdown)


def allow_files() -> None:
    """Many systems let a process open 1024 files unless it asks for more; each job on a fleet takes three, each host
    and each call of a provider one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))


async def _work(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_context(settings) as context:
        client = await _connect_patiently(settings, context.vault, stop)
        if client is None:
            return
        keeper = ConnectionKeeper(context)
        # What attempts are open on must be there before anybody is asked about them.
        await keeper.refresh()
        # Before anything is rented: what makes a copy of the database known is in the file store from the start.
        await context.is_the_one()
        await _verify(context)
        background = [
            asyncio.create_task(keeper.run(ConnectionSchedules(client, settings))),
            asyncio.create_task(_again_and_again("beat", lambda: _beat(context), _BEAT_SECONDS)),
            asyncio.create_task(
                _again_and_again("recover", lambda: sweep(context, client), settings.recover_interval_seconds)
            ),
            asyncio.create_task(_until_done("schedules", lambda: keep_schedules(client, context))),
        ]
        try:
            async with build_worker(client, context):
                log.info(
                    "worker_ready", task_queue=settings.task_queue, connections=list(context.providers.by_connection)
                )
                await stop.wait()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)


async def _connect_patiently(settings: Settings, vault: Vault, stop: asyncio.Event) -> Client | None:
    """Temporal may come up after the worker."""
    while not stop.is_set():
        try:
            return await connect(settings, vault)
        except RuntimeError as error:
            log.warning("temporal_unreachable", address=settings.temporal_address, error=str(error)[:200])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
    return None


async def _verify(context: Context) -> None:
    """Says at the start what each connection is good for; one that is not may become so, so nothing ends here."""
    settings = context.settings
    for about, text in (await context.db.read(lambda s: warnings.warnings(s, settings.public_url))).items():
        log.error("attention_wanted", about=about, message=text)
    for connection_id, provider in list(context.providers.by_connection.items()):
        if is_stored(connection_id):
            # It was verified before it was stored, and is polled.
            continue
        report = await provider.verify()
        note = log.info if report.status == "ok" else log.warning
        note("connection_verified", connection=connection_id, status=report.status, message=report.message)


async def _again_and_again(name: str, step: Callable[[], Awaitable[object]], pause_seconds: float) -> None:
    """A background duty: one failure of it is logged, and does not end it."""
    while True:
        try:
            await step()
        except Exception:
            log.exception("background_step_failed", duty=name)
        await asyncio.sleep(pause_seconds)


async def _until_done(name: str, step: Callable[[], Awaitable[object]]) -> None:
    """A duty of the start: tried until it succeeds once."""
    while True:
        try:
            await step()
        except Exception:
            log.exception("background_step_failed", duty=name)
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return


async def _beat(context: Context) -> None:
    """Extends the lease by which `/readyz` knows that a worker is there."""
    now = context.clock()
    await context.db.write(lambda session: liveness.beat(session, context.lease_id, liveness.WORKER, now))


def main() -> None:
    """Entry point of `headrace worker`. Leaves without the interpreter's finalisation, in which the Temporal core's
    threads may still call into Python and abort the process."""
    asyncio.run(run_worker(Settings()))
    os._exit(0)


if __name__ == "__main__":
    main()
