"""Schedules of connections come and go with them, also while no worker runs; another installation's are left alone."""

from temporalio.client import Client

from activities.schedules import ConnectionSchedules
from tests.support.control_plane import ControlPlane, until

OURS, THEIRS, KEPT = "conn_0000000000000001", "conn_0000000000000002", "conn_0000000000000003"


async def names(client: Client) -> set[str]:
    return {s.id async for s in await client.list_schedules() if "conn_000" in s.id}


def pair(connection_id: str) -> set[str]:
    return {f"offers-{connection_id}", f"reconcile-{connection_id}"}


async def test_those_of_connections_that_are_no_more_are_deleted(plane: ControlPlane) -> None:
    client = plane.temporal
    # The worker's own keeper drops stale ones as it starts.
    assert plane._keeper_task is not None
    plane._keeper_task.cancel()
    ours = ConnectionSchedules(client, plane.settings)
    theirs = ConnectionSchedules(client, plane.settings.model_copy(update={"task_queue": "theirs"}))
    await ours.keep(OURS)
    await ours.keep(OURS)
    await ours.keep(KEPT)
    await theirs.keep(THEIRS)

    async def listed() -> bool:
        return await names(client) == pair(OURS) | pair(THEIRS) | pair(KEPT)

    await until(listed, what="listings follow")
    await ours.drop_stale({KEPT})

    async def dropped() -> bool:
        return await names(client) == pair(THEIRS) | pair(KEPT)

    await until(dropped, what="the stale ones go")
    await ours.drop(OURS)
    await ours.drop(KEPT)
    await theirs.drop(THEIRS)
