"""Who waits for a free slot of this machine, in the order of arrival."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from store.db import woken


class Waiter:
    """A place in the queue."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Until a slot is announced to this waiter, or for so long: another process may have freed one."""
        await woken(self.woken, seconds)
        self.woken.clear()


class SlotQueue:
    """Wakes one waiter for each slot that this process frees. No wake-up is lost: one that comes while its waiter looks
    for a slot is kept for its next wait, and one that its waiter leaves behind goes to the next in the queue."""

    def __init__(self, most: int = 50) -> None:
        """`most`: who comes when so many wait already should line up in the database (`store.slots`) instead."""
        self._most = most
        self._waiters: deque[Waiter] = deque()

    @property
    def full(self) -> bool:
        return len(self._waiters) >= self._most

    @contextmanager
    def place(self) -> Iterator[Waiter]:
        """A place in the queue, to be taken before the first look for a slot: one may be freed right after it."""
        waiter = Waiter()
        self._waiters.append(waiter)
        try:
            yield waiter
        finally:
            self._waiters.remove(waiter)
            if waiter.woken.is_set():
                self.announce()

    def announce(self) -> None:
        """A slot is free. To wake all who wait would cost a transaction each, and all but one in vain."""
        for waiter in self._waiters:
            if not waiter.woken.is_set():
                waiter.woken.set()
                return
