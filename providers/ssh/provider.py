"""The adapter to a fleet of hosts. `create` takes a lease on the host that the offer names, `provision` starts its
container there; the host itself keeps what it has promised, so nothing is lost with this process.

A host that cannot be reached keeps its jobs: nothing there is ever called gone before the host has said so.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from domain.clock import Clock, utc_now
from domain.errors import Ambiguous, AuthError, NoCapacity, PermissionDenied, ProviderError, ProviderNotFound
from domain.ids import AttemptId
from domain.offers import Capabilities, Offer
from providers.base import (
    CredentialReport,
    Handle,
    HostReport,
    InstanceSpec,
    InstanceView,
    LogPage,
    OfferQuery,
    Progress,
    ProviderContext,
    ProviderState,
    TerminateState,
)
from providers.local.naming import attempt_of, workload_name
from providers.local.records import Record
from providers.ssh.addresses import resolvers
from providers.ssh.host import Host
from providers.ssh.hostkeys import HostKeysInMemory
from providers.ssh.link import HostUnreachable, Link, target_of
from providers.ssh.offers import host_of, host_offers
from providers.ssh.probe import probe
from providers.ssh.settings import Fleet, SshOptions

T = TypeVar("T")
_ENDED = (ProviderState.EXITED, ProviderState.FAILED, ProviderState.STOPPING)


class SshProvider:
    """The hosts by their names. Their keys are pinned where the context says."""

    name = "ssh"
    slots: int | None = None
    """A host says itself when it is full: each has slots, or GPUs, of its own."""
    capabilities = Capabilities(
        shared_host=True,
        http_ports=True,
        tcp_ports=True,
        ssh=True,
        private_image=True,
        logs_api=True,
    )

    def __init__(
        self,
        context: ProviderContext,
        fleet: Fleet,
        *,
        clock: Clock = utc_now,
    ) -> None:
        options = SshOptions.model_validate(context.options)
        self._context = context
        self._options = options
        self._clock = clock
        self._agent_socket = options.agent_socket
        keys = context.host_keys or HostKeysInMemory()
        self._resolvers = resolvers()
        self._bastion = (
            Link(target_of(fleet, fleet.bastion), keys, options, None, self._resolvers) if fleet.bastion else None
        )
        self._hosts = {
            host.hostname: Host(
                host,
                fleet,
                Link(target_of(fleet, host), keys, options, self._bastion, self._resolvers),
                options,
                context.owner_id,
                clock,
            )
            for host in fleet.hosts
        }

    async def probe(self) -> list[HostReport]:
        """What each host has, or why that is not known; for people. Never raises for a host."""
        return list(await asyncio.gather(*(probe(host.link, self._options) for host in self._hosts.values())))

    async def verify(self) -> CredentialReport:
        """`ok` when some host can be used; the message then names those that cannot."""
        reports = await self.probe()
        bad = [report for report in reports if not report.usable]
        message = "; ".join(f"{report.hostname}: {report.message}" for report in bad)[:2000]
        if len(bad) < len(reports):
            return CredentialReport(status="ok", message=message, hosts=tuple(reports))
        statuses = {report.status for report in bad}
        if statuses <= {"auth", "host_key"}:
            return CredentialReport(status="auth", message=message, hosts=tuple(reports))
        status = "unreachable" if statuses <= {"unreachable", "auth", "host_key"} else "permission"
        return CredentialReport(status=status, message=message, hosts=tuple(reports))

    async def offers(self, query: OfferQuery) -> list[Offer]:
        """Those of the hosts that answer.

        Raises:
            ProviderError: no host does.
        """
        results = await asyncio.gather(*map(self._offers_of, self._hosts.values()), return_exceptions=True)
        errors = [_provider_error(result) for result in results if isinstance(result, BaseException)]
        if len(errors) == len(results):
            raise errors[0] if len(errors) == 1 else _of_all(errors)
        return [offer for result in results if isinstance(result, list) for offer in result]

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        host = self._hosts.get(host_of(offer))
        if host is None:
            raise NoCapacity(f"{host_of(offer)} is not in the fleet any more")
        wanted = spec.compute
        try:
            facts = await host.facts()
            record = Record(
                attempt_id=spec.attempt_id,
                owner_id=self._context.owner_id,
                job_id=spec.job_id,
                org_id=spec.org_id,
                name=workload_name(self._context.owner_id, spec.attempt_id),
                engine=await host.engine_in_use(),
                accelerator=wanted.accelerator,
                gpu_count=wanted.gpu_count,
                created_at=self._clock(),
            )
            lease = await host.leases.reserve(
                record,
                shared=self._options.multi_tenant,
                gpus=[gpu.id for gpu in facts.gpus if gpu.model.name == wanted.accelerator],
                slots=0 if facts.gpu_names else host.slots,
                lifetime_seconds=spec.lifetime_seconds,
            )
        except (HostUnreachable, AuthError, PermissionDenied) as error:
            # Nothing was asked of the host by this call. What an earlier one may have left is a lease and no more:
            # nothing runs before `provision`.
            raise NoCapacity(error.message) from error
        return host.handle(lease.record.name, lease.record.engine, lease.record.created_at)

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        with self._host(handle) as host:
            lease = await host.leases.of(handle.provider_id)
            if lease is None or lease.doomed:
                raise ProviderNotFound(f"{spec.attempt_id} is not reserved on {host.hostname}; it was terminated")
            self._agent_socket = spec.agent.socket or self._agent_socket
            published = await host.start(lease, spec, progress)
            ready = host.handle(lease.record.name, lease.record.engine, lease.record.created_at)
            return ready.model_copy(update={"data": {**ready.data, "published": published}})

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        name = workload_name(self._context.owner_id, attempt_id)

        async def look(host: Host) -> list[Handle]:
            lease = await host.leases.of(name)
            if lease is not None:
                return [host.handle(name, lease.record.engine, lease.record.created_at)]
            engine = await host.engine_in_use()
            seen = await host.engine(engine).inspect(name, Path())
            return [] if seen is None else [host.handle(name, engine, seen.created_at)]

        answers, errors = await self._everywhere(look)
        found = [handle for handles in answers for handle in handles]
        if errors and not found:
            raise errors[0]
        return found

    async def get(self, handle: Handle) -> InstanceView | None:
        attempt_of(handle)
        with self._host(handle) as host:
            engine = await self._engine_of(host, handle)
            seen = await host.engine(engine).inspect(handle.provider_id, Path())
            if seen is not None:
                self._keep_reachable(host, seen.state)
                return host.seen_view(seen, engine)
            lease = await host.leases.of(handle.provider_id)
            return None if lease is None else host.lease_view(lease)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        """The tail of the agent's own output; `cursor` is a digest of what was shown, so that news shows as news."""
        with self._host(handle) as host:
            engine = host.engine(await self._engine_of(host, handle))
            text = await engine.output(handle.provider_id, Path())
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return LogPage(text="" if digest == cursor else text, cursor=digest)

    async def terminate(self, handle: Handle) -> TerminateState:
        attempt_of(handle)
        with self._host(handle) as host:
            engine = host.engine(await self._engine_of(host, handle))
            # First the lease: a start that is under way looks at it last. It holds its devices until all is gone.
            await host.leases.doom(handle.provider_id)
            if not await engine.remove(handle.provider_id, Path()):
                return TerminateState.REQUESTED
            await host.leases.forget(handle.provider_id)
            return TerminateState.GONE

    async def list_owned(self) -> list[InstanceView]:
        async def look(host: Host) -> list[InstanceView]:
            return await host.owned(self._context.owner_id)

        found, errors = await self._everywhere(look)
        if errors:
            # Half of a list would make what is on the other hosts look gone.
            raise errors[0]
        for host, views in zip(self._hosts.values(), found, strict=True):
            for view in views:
                self._keep_reachable(host, view.state)
        return [view for views in found for view in views]

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in self._hosts.values()))
        if self._bastion is not None:
            await self._bastion.close()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def _offers_of(self, host: Host) -> list[Offer]:
        try:
            async with asyncio.timeout(self._options.offers_seconds):
                facts = await host.facts()
        except TimeoutError:
            raise HostUnreachable(f"{host.hostname} was not done within {self._options.offers_seconds:g} s") from None
        if host.has_ours(facts):
            host.keep_reachable(self._agent_socket)
        return host_offers(
            host.hostname,
            facts,
            connection_id=self._context.connection_id,
            price_usd_hr=host.price_usd_hr,
            slots=host.slots,
            observed_at=self._clock(),
        )

    async def _everywhere(self, ask: Callable[[Host], Awaitable[T]]) -> tuple[list[T], list[ProviderError]]:
        """The answers of all hosts, in their order, and the errors of those that gave none."""

        async def one(host: Host) -> T:
            with self._told_of(host):
                return await ask(host)

        results = await asyncio.gather(*map(one, self._hosts.values()), return_exceptions=True)
        errors = [_provider_error(result) for result in results if isinstance(result, BaseException)]
        return [result for result in results if not isinstance(result, BaseException)], errors

    @contextlib.contextmanager
    def _host(self, handle: Handle) -> Iterator[Host]:
        host = self._hosts.get(handle.host or "")
        if host is None:
            raise Ambiguous(
                f"{handle.host} is not in the fleet any more: put it back, or {handle.provider_id} stays open"
            )
        with self._told_of(host):
            yield host

    @contextlib.contextmanager
    def _told_of(self, host: Host) -> Iterator[None]:
        """One host of several that refuses us is no reason to stop using the others: it counts as unreachable."""
        try:
            yield
        except (AuthError, PermissionDenied) as error:
            if len(self._hosts) == 1:
                raise
            raise HostUnreachable(f"{host.hostname}: {error.message}") from error

    async def _engine_of(self, host: Host, handle: Handle) -> str:
        return str(handle.data.get("engine") or await host.engine_in_use())

    def _keep_reachable(self, host: Host, state: ProviderState) -> None:
        if state not in _ENDED:
            host.keep_reachable(self._agent_socket)


def _provider_error(error: BaseException) -> ProviderError:
    if isinstance(error, ProviderError):
        return error
    raise error


def _of_all(errors: list[ProviderError]) -> ProviderError:
    """One error for a fleet of which no host answers: its worst that is common to all."""
    message = "; ".join(error.message for error in errors)[:2000]
    return AuthError(message) if all(isinstance(error, AuthError) for error in errors) else Ambiguous(message)
