"""What Temporal starts again and again: polls and reconciliations of each connection, and housekeeping."""

from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.context import Context
from settings import Settings
from store import connections
from workflows.contract import HOUSEKEEPING, POLL_OFFERS, RECONCILE

_OFFERS, _RECONCILE = "offers-", "reconcile-"


async def keep_schedules(client: Client, context: Context) -> None:
    """Those of what the settings configure: `PollOffers` and `Reconcile` of this machine, and `Housekeeping`; also once
    right away."""
    settings = context.settings
    schedules = ConnectionSchedules(client, settings)
    for connection_id in context.providers.by_connection:
        if not connections.is_stored(connection_id):
            await schedules.keep(connection_id)
    interval = timedelta(seconds=settings.retention_interval_seconds)
    await _schedule(client, settings, "housekeeping", HOUSEKEEPING, [], interval)


class ConnectionSchedules:
    """One `PollOffers` and one `Reconcile` per connection, at the settings' intervals."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings

    async def keep(self, connection_id: str) -> None:
        """Creates them, or replaces what they were; also runs them once right away."""
        client, settings, arguments = self._client, self._settings, [connection_id]
        interval = timedelta(seconds=settings.offers_interval_seconds)
        await _schedule(client, settings, f"{_OFFERS}{connection_id}", POLL_OFFERS, arguments, interval)
        interval = timedelta(seconds=settings.reconcile_interval_seconds)
        await _schedule(client, settings, f"{_RECONCILE}{connection_id}", RECONCILE, arguments, interval)

    async def drop(self, connection_id: str) -> None:
        """Deletes them; those that another worker has deleted are fine."""
        for name in (f"{_OFFERS}{connection_id}", f"{_RECONCILE}{connection_id}"):
            try:
                await self._client.get_schedule_handle(name).delete()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    async def drop_stale(self, stored: set[str]) -> None:
        """Deletes those of connections that are no more."""
        gone = set()
        async for listed in await self._client.list_schedules():
            for prefix in (_OFFERS, _RECONCILE):
                connection_id = listed.id.removeprefix(prefix)
                if listed.id.startswith(prefix) and connections.is_stored(connection_id):
                    gone |= {connection_id} - stored
        for connection_id in gone:
            if await self._is_ours(connection_id):
                await self.drop(connection_id)

    async def _is_ours(self, connection_id: str) -> bool:
        """Whether they are this installation's: another one may use the same namespace, with its own task queue."""
        for name in (f"{_OFFERS}{connection_id}", f"{_RECONCILE}{connection_id}"):
            try:
                action = (await self._client.get_schedule_handle(name).describe()).schedule.action
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                return (
                    isinstance(action, ScheduleActionStartWorkflow) and action.task_queue == self._settings.task_queue
                )
        return False


async def _schedule(
    client: Client, settings: Settings, name: str, workflow: str, args: list[Any], interval: timedelta
) -> None:
    action = ScheduleActionStartWorkflow(workflow, args=args, id=name, task_queue=settings.task_queue)
    schedule = Schedule(
        action=action,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=interval)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await client.create_schedule(name, schedule, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(name)

        def replace(_: ScheduleUpdateInput) -> ScheduleUpdate:
            return ScheduleUpdate(schedule=schedule)

        await handle.update(replace)
        await handle.trigger(overlap=ScheduleOverlapPolicy.SKIP)
