"""`verify_connection`: asks a provider about credentials before they are used; and the keeper, which gives this process
the provider of every connection, as they come, change and go."""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

from sqlmodel import Session
from temporalio import activity

from activities.context import Context, heartbeating, log
from activities.failures import bounded
from activities.host_keys import StoredHostKeys
from domain.backends import Values, catalog
from domain.errors import Conflict, ProviderError
from domain.host_keys import fingerprint
from domain.masking import mask
from providers import connect
from providers.base import CredentialReport, HostReport, Provider, ProviderContext
from providers.connected import ConnectedProvider
from store import connections, fleets, offers
from store.connections import InUse, ToVerify
from store.db import woken
from workflows.contract import VerifyInput

_VERIFY_SECONDS = 100.0
"""Less than the activity may take. Hosts on slow lines take their time."""
_LOAD_AGAIN_ROUNDS = 15
_HOST_MESSAGE_CHARACTERS = 500
_HOST_NAME_CHARACTERS = 120
_MOST_GPUS = 16
_LARGEST = 10**9


class ConnectionActivities:
    """Asks providers whether they accept what was filled in."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def verify_connection(self, request: VerifyInput) -> str:
        """Answers how it went in one word: what the provider said is in the row, for those who may read it."""
        async with heartbeating():
            db, vault, id_, number = self._context.db, self._context.vault, request.connection_id, request.number
            now = self._context.clock()
            wanted = await db.read(lambda session: connections.to_verify(session, vault, id_, number, now))
            if wanted is None:
                return "nothing to verify"
            report = await self._ask(id_, wanted)
            message = bounded(_without_secrets(report.message, wanted))
            now = self._context.clock()
            hosts = [_shown(host, wanted) for host in report.hosts] or None
            status = await db.write(lambda s: _settle(s, id_, number, report.status, message, now, hosts))
            log.info("connection_verified", connection=id_, provider=wanted.provider, status=status)
            return status

    async def _ask(self, connection_id: str, wanted: ToVerify) -> CredentialReport:
        try:
            provider = await _build(self._context, connection_id, wanted.provider, wanted.values)
        except ProviderError as error:
            return CredentialReport(status="rejected", message=error.message)
        try:
            async with asyncio.timeout(_VERIFY_SECONDS):
                return await provider.verify()
        except TimeoutError:
            return CredentialReport(status="unreachable", message=f"no answer within {_VERIFY_SECONDS:g} s")
        except ProviderError as error:
            return CredentialReport(status="unreachable", message=error.message)
        except ImportError as error:
            message = f"the worker lacks the package {error.name}: install headrace[{wanted.provider}] there"
            return CredentialReport(status="rejected", message=message)
        except Exception as error:
            # A defect of an adapter must not leave its credentials pending. Its text may hold them.
            log.error("verification_crashed", connection=connection_id, error=type(error).__name__)
            return CredentialReport(status="unreachable", message=f"the adapter failed ({type(error).__name__})")
        finally:
            with suppress(Exception):
                await provider.close()


class Schedules(Protocol):
    """What is asked of a connection again and again, in Temporal."""

    async def keep(self, connection_id: str) -> None:
        """Creates its schedules, and lets them run once now; repeatable."""

    async def drop(self, connection_id: str) -> None:
        """Deletes them; those that are not there are fine."""

    async def drop_stale(self, stored: set[str]) -> None:
        """Deletes those of connections that were removed while no worker ran."""


class ConnectionKeeper:
    """One per worker process: `Providers.by_connection` follows the rows. A connection that is being removed stays
    until nothing of it is open."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loaded: dict[str, int] = {}
        self._failed: dict[str, tuple[int, int]] = {}
        """Revision, and rounds until it is tried again, of those that could not be built."""
        self._scheduled: dict[str, int] = {}

    async def run(self, schedules: Schedules) -> None:
        """Until cancelled: after each change in this process, and every few seconds for those of others."""
        db, wakeup = self._context.db, self._context.db.subscribe(connections.TOPIC)
        stale = True
        try:
            while True:
                wakeup.clear()
                try:
                    await self.refresh()
                    if stale:
                        await schedules.drop_stale(set(self._loaded))
                        stale = False
                    await self._schedule(schedules)
                except Exception:
                    log.exception("connections_not_refreshed")
                await woken(wakeup, self._context.settings.connections_interval_seconds)
        finally:
            db.unsubscribe(connections.TOPIC, wakeup)

    async def refresh(self) -> None:
        """Once."""
        db = self._context.db
        if await db.read(connections.removing):
            for connection_id in await db.write(connections.finish_removals):
                log.info("connection_removed", connection=connection_id)
        wanted = await db.read(connections.revisions)
        for connection_id in self._loaded.keys() - wanted.keys():
            self._unload(connection_id)
        for connection_id, revision in wanted.items():
            if self._loaded.get(connection_id) != revision and self._is_due(connection_id, revision):
                await self._load(connection_id)

    def _is_due(self, connection_id: str, revision: int) -> bool:
        failed = self._failed.get(connection_id)
        if failed is None or failed[0] != revision or failed[1] <= 0:
            return True
        self._failed[connection_id] = (revision, failed[1] - 1)
        return False

    async def _load(self, connection_id: str) -> None:
        context = self._context
        found: InUse | None = await context.db.read(
            lambda session: connections.in_use(session, context.vault, connection_id)
        )
        if found is None:
            return
        try:
            provider = await _build(context, connection_id, found.provider, found.values)
        except ProviderError as error:
            kind, message = error.kind, bounded(error.message)
            log.error("connection_not_loaded", connection=connection_id, provider=found.provider, message=message)
            self._failed[connection_id] = (found.revision, _LOAD_AGAIN_ROUNDS)
            name = found.provider
            await context.db.write(lambda s: offers.block(s, connection_id, name, kind, message))
            return
        self._failed.pop(connection_id, None)
        known = context.providers.by_connection.get(connection_id)
        if isinstance(known, ConnectedProvider):
            known.replace(provider)
        else:
            context.providers.by_connection[connection_id] = ConnectedProvider(provider)
        self._loaded[connection_id] = found.revision
        log.info("connection_loaded", connection=connection_id, provider=found.provider, revision=found.revision)

    def _unload(self, connection_id: str) -> None:
        del self._loaded[connection_id]
        provider = self._context.providers.by_connection.pop(connection_id, None)
        if isinstance(provider, ConnectedProvider):
            provider.retire()
        log.info("connection_unloaded", connection=connection_id)

    async def _schedule(self, schedules: Schedules) -> None:
        for connection_id in self._scheduled.keys() - self._loaded.keys():
            await schedules.drop(connection_id)
            del self._scheduled[connection_id]
        for connection_id, revision in self._loaded.items():
            if self._scheduled.get(connection_id) != revision:
                await schedules.keep(connection_id)
                self._scheduled[connection_id] = revision


async def _build(context: Context, connection_id: str, backend: str, values: Values) -> Provider:
    settings = context.settings
    given = ProviderContext(
        connection_id,
        context.owner_id,
        str(settings.data_dir),
        host_keys=StoredHostKeys(context.db, connection_id, context.clock),
        agent_socket=str(settings.agent_socket),
        fleet_networks=_networks(settings.fleet_networks),
        workload_networks=_networks(settings.workload_networks),
        multi_tenant=settings.local_multi_tenant,
    )
    return await asyncio.to_thread(connect.build, backend, given, values)


def _settle(
    session: Session,
    connection_id: str,
    number: int,
    status: str,
    message: str,
    now: datetime,
    hosts: list[dict[str, Any]] | None,
) -> str:
    """Writes the outcome down; what the provider accepts may still be in the way of a job."""
    if status == "ok":
        try:
            fleets.require_idle_before(session, connection_id)
        except Conflict as error:
            status, message = "in_use", bounded(error.message)
    connections.verified(session, connection_id, number, status, message, now, hosts)
    return status


def _networks(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _shown(host: HostReport, wanted: ToVerify) -> dict[str, Any]:
    """A host's report as it is kept: bounded, since the host may say anything, and of its key what people compare."""
    return {
        "hostname": host.hostname,
        "status": host.status,
        "usable": host.usable,
        "message": _without_secrets(host.message, wanted)[:_HOST_MESSAGE_CHARACTERS],
        "gpus": [name[:_HOST_NAME_CHARACTERS] for name in host.gpus[:_MOST_GPUS]],
        "driver": host.driver and host.driver[:_HOST_NAME_CHARACTERS],
        "engine": host.engine and host.engine[:_HOST_NAME_CHARACTERS],
        "vcpus": min(host.vcpus, _LARGEST),
        "memory_gb": min(host.memory_gb, float(_LARGEST)),
        "disk_gb": min(host.disk_gb, _LARGEST),
        "host_key_fingerprint": fingerprint(host.host_key) if host.host_key else None,
    }


def _without_secrets(message: str, wanted: ToVerify) -> str:
    """Providers repeat keys in their errors more often than one would like."""
    backend = catalog().get(wanted.provider)
    return mask(message, backend.secrets_of(wanted.values) if backend else map(str, wanted.values.values()))
