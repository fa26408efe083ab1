"""More jobs than slots: each freed slot goes to a job that waits, wherever it waits."""

import asyncio

from activities.slot_queue import SlotQueue
from domain.states import JobState
from tests.support.control_plane import ControlPlane


async def test_a_wake_up_before_the_wait_is_kept() -> None:
    queue = SlotQueue()
    with queue.place() as waiter:
        queue.announce()
        await asyncio.wait_for(waiter.wait(60), 5)


async def test_one_slot_wakes_one_waiter_in_the_order_of_arrival() -> None:
    queue = SlotQueue()
    woken: asyncio.Queue[int] = asyncio.Queue()

    async def wait(number: int) -> None:
        with queue.place() as waiter:
            await waiter.wait(60)
            woken.put_nowait(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    for number, _ in enumerate(tasks):
        queue.announce()
        assert await asyncio.wait_for(woken.get(), 5) == number


async def test_a_wake_up_that_its_waiter_leaves_behind_goes_to_the_next() -> None:
    queue = SlotQueue(most=2)
    with queue.place() as outer:
        with queue.place() as inner:
            assert queue.full
            queue.announce()
            queue.announce()
            assert inner.woken.is_set()
            outer.woken.clear()
        assert outer.woken.is_set()


async def test_a_crowd_goes_through_one_slot_without_a_pause(plane: ControlPlane) -> None:
    """Two wait in the worker; those in line in the database are told, or each would pause for a minute."""
    assert plane.context is not None
    plane.context.slots = SlotQueue(most=2)
    (provider,) = plane.context.providers.by_connection.values()
    provider.slots = 1  # type: ignore[misc]
    jobs = [await plane.fake(placement={"capacity_wait_seconds": 60}) for _ in range(8)]
    async with asyncio.timeout(30):
        for job_id in jobs:
            assert (await plane.until_terminal(job_id))["state"] == JobState.SUCCEEDED
            await plane.until_gone(job_id)
