"""The local provider: this machine's own hardware, behind the contract that every backend keeps."""

import asyncio
import hashlib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import psutil

from domain.clock import Clock, utc_now
from domain.errors import NoCapacity, ProviderNotFound
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
    ProviderContext,
    ProviderState,
    TerminateState,
)
from providers.local import gpus
from providers.local.container import ContainerEngine
from providers.local.container_flags import Setup
from providers.local.engine import Engine, Launch, Seen
from providers.local.images import PrivateRepositories
from providers.local.launching import agent_directory, build_launch, install_script
from providers.local.naming import attempt_of, workload_name
from providers.local.offers import Machine, local_offers
from providers.local.place import Here
from providers.local.records import Record, Records, reserved_gpus
from providers.local.sandbox import SandboxEngine
from providers.local.select import FIREWALL, SANDBOX, Selection, select

_SLOTS_PER_CORE = 4


class LocalSettings(Protocol):
    """The settings that this provider reads; see `settings.Settings` for their meaning."""

    @property
    def local_engine(self) -> str: ...
    @property
    def local_network(self) -> str: ...
    @property
    def local_slots(self) -> int | None: ...
    @property
    def local_price_usd_hr(self) -> Decimal: ...
    @property
    def local_multi_tenant(self) -> bool: ...
    @property
    def api_host(self) -> str: ...


class LocalProvider:
    """Jobs on this machine. `create` reserves, `provision` starts, and a record on disk ties them together.

    The engine is found out at the first use, by running a container; `describe` says which and why.
    """

    name = "local"

    def __init__(self, context: ProviderContext, settings: LocalSettings, *, clock: Clock = utc_now) -> None:
        self._context = context
        self._settings = settings
        self._clock = clock
        self._root = Path(context.data_dir).resolve() / "local"
        self._records = Records(self._root)
        self._here = Here(PrivateRepositories(self._root / "private"))
        self._engines: dict[str, Engine] = {}

    @property
    def owner_id(self) -> str:
        """Whose workloads these are: the value of their owner label."""
        return self._context.owner_id

    @property
    def slots(self) -> int:
        """How many jobs may run on this machine at once; the allocation counts them."""
        return self._settings.local_slots or _SLOTS_PER_CORE * (psutil.cpu_count() or 1)

    @property
    def capabilities(self) -> Capabilities:
        """Of the engine in use; finding it out blocks for a moment the first time."""
        selection = self._selection()
        image = selection.name not in (None, SANDBOX)
        ports = image and self._settings.local_network != "none"
        return Capabilities(
            shared_host=True,
            custom_image=image,
            http_ports=ports,
            tcp_ports=ports,
            # On the host's own network port 22 is the host's.
            ssh=image and self._settings.local_network == "bridge",
            private_image=image,
            logs_api=True,
        )

    def describe(self) -> dict[str, Any]:
        """For logs and people: the engine, why others were rejected, and what the isolation lacks here."""
        selection = self._selection()
        engine = self._engine_named(selection.name).describe() if selection.name else {"engine": None}
        return {**engine, "slots": self.slots, "rejected": dict(selection.rejected), "notes": list(selection.notes)}

    async def verify(self) -> CredentialReport:
        selection = await asyncio.to_thread(self._selection)
        if selection.name is None:
            return CredentialReport(status="unreachable", message=f"no engine runs here: {selection.explain()}")
        return CredentialReport(status="ok")

    async def offers(self, query: OfferQuery) -> list[Offer]:
        selection = await asyncio.to_thread(self._selection)
        if selection.name is None:
            raise NoCapacity(f"no engine runs workloads on this machine: {selection.explain()}", scope="connection")
        engine = self._engine_named(selection.name)
        machine = await asyncio.to_thread(self._machine, engine)
        return local_offers(
            machine,
            connection_id=self._context.connection_id,
            price_usd_hr=self._settings.local_price_usd_hr,
            disk_enforced=engine.enforces_disk,
            network_isolated=engine.isolates_network,
            observed_at=self._clock(),
        )

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        selection = await asyncio.to_thread(self._selection)
        if selection.name is None:
            raise NoCapacity(f"no engine runs workloads on this machine: {selection.explain()}")
        wanted = spec.compute
        existing = 0
        if wanted.gpu_count:
            machine = await asyncio.to_thread(self._machine, self._engine_named(selection.name))
            existing = sum(gpu.model.name == wanted.accelerator for gpu in machine.gpus)
        record = Record(
            attempt_id=spec.attempt_id,
            owner_id=self._context.owner_id,
            job_id=spec.job_id,
            org_id=spec.org_id,
            name=workload_name(self._context.owner_id, spec.attempt_id),
            engine=selection.name,
            accelerator=wanted.accelerator,
            gpu_count=wanted.gpu_count,
            created_at=self._clock(),
        )
        kept = self._records.reserve(
            record, share_between_organizations=self._settings.local_multi_tenant, gpus=existing
        )
        return self._handle(kept)

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        record = self._records.read(spec.attempt_id)
        if record is None:
            raise ProviderNotFound(f"{spec.attempt_id} is not reserved on this machine; it was terminated")
        engine = self._engine_named(record.engine)
        if self._settings.local_network == "bridge" and isinstance(engine, ContainerEngine):
            await asyncio.to_thread(FIREWALL.ensure)
        machine = await asyncio.to_thread(self._machine, engine)
        directory = agent_directory(spec, self._context.data_dir)
        launch = build_launch(
            record,
            spec,
            machine,
            directory=self._records.directory(record.attempt_id),
            agent_directory=directory,
            script_name=await asyncio.to_thread(install_script, directory, spec.agent.script),
            publish_address=self._settings.api_host if engine.publishes_ports else None,
            still_wanted=lambda: self._records.read(record.attempt_id) is not None,
        )
        if spec.compute.gpu_count:
            await self._start_with_gpus(engine, launch, spec, machine, progress)
        else:
            await engine.start(launch, progress)
        self._records.mark_begun(record.attempt_id)
        ready = self._handle(record)
        return ready.model_copy(update={"data": {**ready.data, "published": bool(launch.ports)}})

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        record = self._records.read(attempt_id)
        if record is not None:
            return [self._handle(record)]
        return [view.handle for view in await self.list_owned() if view.attempt_id == attempt_id]

    async def get(self, handle: Handle) -> InstanceView | None:
        attempt_id = attempt_of(handle)
        seen = await self._engine_of(handle).inspect(handle.provider_id, self._records.directory(attempt_id))
        if seen is not None:
            return self._view(seen, handle)
        record = self._records.read(attempt_id)
        return None if record is None else self._reserved_view(record)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        """The tail of the agent's own output; `cursor` is a digest of what was shown, so that news shows as news."""
        directory = self._records.directory(attempt_of(handle))
        text = await self._engine_of(handle).output(handle.provider_id, directory)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return LogPage(text="" if digest == cursor else text, cursor=digest)

    async def terminate(self, handle: Handle) -> TerminateState:
        attempt_id = attempt_of(handle)
        # First the record: a start that is under way looks at it last.
        self._records.withdraw(attempt_id)
        if not await self._engine_of(handle).remove(handle.provider_id, self._records.directory(attempt_id)):
            return TerminateState.REQUESTED
        await asyncio.to_thread(self._records.wipe, attempt_id)
        return TerminateState.GONE

    async def list_owned(self) -> list[InstanceView]:
        await asyncio.to_thread(self._selection)
        ours = [record for record in self._records.all() if record.owner_id == self._context.owner_id]
        records = {record.attempt_id: record for record in ours}
        current = self._selection().name
        names = {record.engine for record in records.values()} | ({current} if current else set())
        views: dict[AttemptId, InstanceView] = {}
        for name in sorted(names):
            engine = self._engine_named(name)
            for seen in await engine.owned(self._context.owner_id):
                if seen.attempt_id is not None:
                    views[seen.attempt_id] = self._view(seen, _handle(engine, seen.name))
        for attempt_id, record in records.items():
            views.setdefault(attempt_id, self._reserved_view(record))
        return [views[attempt_id] for attempt_id in sorted(views)]

    async def close(self) -> None:
        """Nothing is held open: every call to an engine is a process of its own."""

    def _selection(self) -> Selection:
        return select(self._settings.local_engine, self._settings.local_network, self._root / "podman")

    def _engine_of(self, handle: Handle) -> Engine:
        """The engine that holds the instance, which is not the one in use when that changed since."""
        return self._engine_named(str(handle.data.get("engine") or self._selection().name))

    def _engine_named(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = self._build(name)
        return self._engines[name]

    def _build(self, name: str) -> Engine:
        if name == SANDBOX:
            return SandboxEngine(self._root)
        selection = self._selection()
        setup = selection.setup if selection.name == name else None
        return ContainerEngine(setup or Setup(name=name, argv=(name,)), self._here, clock=self._clock)

    def _machine(self, engine: Engine) -> Machine:
        return Machine(
            vcpus=psutil.cpu_count() or 1,
            memory_gb=round(psutil.virtual_memory().total / 1e9, 1),
            disk_gb=int(psutil.disk_usage(str(self._root)).free // 1e9),
            gpus=tuple(gpus.discover()) if engine.takes_gpus else (),
            reserved_gpus=reserved_gpus(self._records.all()),
        )

    async def _start_with_gpus(
        self, engine: Engine, launch: Launch, spec: InstanceSpec, machine: Machine, progress: Progress
    ) -> None:
        """Chooses devices that no live container holds, and starts before anybody else may choose."""
        assert isinstance(engine, ContainerEngine)
        wanted = spec.compute
        async with gpus.assignment_lock():
            seen = await engine.inspect(launch.name, launch.directory)
            held = await engine.held_gpus()
            chosen = gpus.choose(machine.gpus, wanted.accelerator, wanted.gpu_count, held)
            if chosen is None and seen is None:
                raise NoCapacity(f"{wanted.gpu_count} {wanted.accelerator} wanted, and other containers hold them")
            await engine.start(replace(launch, gpu_ids=chosen or ()), progress)

    def _handle(self, record: Record) -> Handle:
        return _handle(self._engine_named(record.engine), record.name)

    def _view(self, seen: Seen, handle: Handle) -> InstanceView:
        return InstanceView(
            attempt_id=seen.attempt_id,
            handle=handle,
            state=seen.state,
            exit_code=seen.exit_code,
            message=seen.message,
            oom_killed=seen.oom_killed,
            created_at=seen.created_at,
            endpoints=seen.endpoints,
        )

    def _reserved_view(self, record: Record) -> InstanceView:
        """Reserved, and the engine has nothing of it: its workload was not started yet, or somebody removed it."""
        begun = self._records.has_begun(record.attempt_id)
        return InstanceView(
            attempt_id=record.attempt_id,
            handle=self._handle(record),
            state=ProviderState.FAILED if begun else ProviderState.PENDING,
            message=f"it was removed from {record.engine} by somebody else" if begun else "",
            created_at=record.created_at,
        )


def _handle(engine: Engine, name: str) -> Handle:
    data = {"engine": engine.name, "notice": engine.notice}
    return Handle(provider_id=name, resource_type=engine.resource_type, region="local", data=data)
