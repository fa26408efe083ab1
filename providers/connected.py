"""A connection's provider as activities hold it: credentials may be replaced while calls are under way."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from domain.ids import AttemptId
from domain.offers import Capabilities, Offer
from providers.base import (
    CredentialReport,
    Handle,
    InstanceSpec,
    InstanceView,
    LogPage,
    OfferQuery,
    Progress,
    Provider,
    TerminateState,
)


@dataclass
class _Held:
    provider: Provider
    calls: int = 0
    retired: bool = False


class ConnectedProvider:
    """Every call goes to the newest provider; a former one is closed once its last call is over."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self._held = _Held(provider)
        self._closing: set[asyncio.Task[None]] = set()

    def replace(self, provider: Provider) -> None:
        """From now on calls go to `provider`."""
        former, self._held = self._held, _Held(provider)
        self._retire(former)

    def retire(self) -> None:
        """The connection is no more: closes as soon as nothing is under way."""
        self._retire(self._held)

    def _retire(self, held: _Held) -> None:
        held.retired = True
        self._close_if_over(held)

    def _close_if_over(self, held: _Held) -> None:
        if held.retired and not held.calls:
            task = asyncio.get_running_loop().create_task(held.provider.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    @contextmanager
    def _in_call(self) -> Iterator[Provider]:
        held = self._held
        held.calls += 1
        try:
            yield held.provider
        finally:
            held.calls -= 1
            self._close_if_over(held)

    # The provider's own -------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self._held.provider.capabilities

    @property
    def slots(self) -> int | None:
        return self._held.provider.slots

    async def verify(self) -> CredentialReport:
        with self._in_call() as provider:
            return await provider.verify()

    async def offers(self, query: OfferQuery) -> list[Offer]:
        with self._in_call() as provider:
            return await provider.offers(query)

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        with self._in_call() as provider:
            return await provider.create(spec, offer)

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        with self._in_call() as provider:
            return await provider.provision(handle, spec, progress)

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        with self._in_call() as provider:
            return await provider.find(attempt_id)

    async def get(self, handle: Handle) -> InstanceView | None:
        with self._in_call() as provider:
            return await provider.get(handle)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        with self._in_call() as provider:
            return await provider.logs(handle, cursor)

    async def terminate(self, handle: Handle) -> TerminateState:
        with self._in_call() as provider:
            return await provider.terminate(handle)

    async def list_owned(self) -> list[InstanceView]:
        with self._in_call() as provider:
            return await provider.list_owned()

    async def close(self) -> None:
        """At the end of the process, whatever is under way."""
        await self._held.provider.close()
        await asyncio.gather(*self._closing, return_exceptions=True)
