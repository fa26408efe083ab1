"""Which agents are there: polls that are held now, and when each agent was last heard. In memory, of one process.

The routes write it; `api.agent.orders` answers the polls, `api.agent.contacts` passes the contacts on.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from domain.clock import Clock


class Order(StrEnum):
    NONE = "none"
    STOP = "stop"


@dataclass(slots=True)
class Contact:
    """One agent. `stored_at` and `beaten_at` are the instants up to which its row and Temporal know of it."""

    seen_at: datetime
    held: int = 0
    """Polls that are held now: being held is being in contact."""
    stored_at: datetime | None = None
    beaten_at: datetime | None = None
    beating: bool = False


@dataclass
class Presence:
    """One per process."""

    contacts: dict[str, Contact] = field(default_factory=dict)
    _waiting: dict[str, set["asyncio.Future[Order]"]] = field(default_factory=dict)

    def note(self, instance_id: str, now: datetime) -> None:
        """The agent of the instance was heard."""
        contact = self.contacts.get(instance_id)
        if contact is None:
            self.contacts[instance_id] = Contact(now)
        else:
            contact.seen_at = now

    @contextmanager
    def held(self, instance_id: str, clock: Clock) -> Iterator[None]:
        """The agent is there for as long as the block runs."""
        self.note(instance_id, clock())
        contact = self.contacts[instance_id]
        contact.held += 1
        try:
            yield
        finally:
            contact.held -= 1
            contact.seen_at = clock()

    async def order(self, instance_id: str, seconds: float) -> Order:
        """The next order to the instance, or `none` after `seconds`."""
        future: asyncio.Future[Order] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(instance_id, set()).add(future)
        try:
            # Not `wait_for`, which in Python 3.11 loses a cancellation that comes just as the future is done.
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return Order.NONE if future.cancelled() else future.result()
        finally:
            held = self._waiting[instance_id]
            held.discard(future)
            if not held:
                del self._waiting[instance_id]

    def awaiting_orders(self) -> list[str]:
        """The instances whose polls are held."""
        return list(self._waiting)

    def give(self, instance_id: str, order: Order) -> None:
        """Answers the held polls of the instance."""
        for future in self._waiting.get(instance_id, ()):
            if not future.done():
                future.set_result(order)

    def release(self) -> None:
        """Answers every held poll with `none`: the process is about to end, and need not wait for their time."""
        for instance_id in self.awaiting_orders():
            self.give(instance_id, Order.NONE)
