"""One host of a fleet: its connection, its leases, its engine, and the way from it to the control plane."""

import asyncio
import time
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath

from domain.clock import Clock
from domain.errors import Ambiguous
from domain.ids import AttemptId
from providers.base import Handle, InstanceSpec, InstanceView, Progress, ProviderState, PublishedPort
from providers.local.container import ContainerEngine
from providers.local.container_flags import Setup
from providers.local.engine import Launch, Seen
from providers.local.launching import build_launch, name_of_script
from providers.ssh import scripts, wall
from providers.ssh.forward import Forward
from providers.ssh.leases import Lease, Leases
from providers.ssh.link import Link
from providers.ssh.offers import REGION, machine_of
from providers.ssh.probe import Facts, look
from providers.ssh.remote import RemoteHost
from providers.ssh.settings import Fleet, FleetHost, SshOptions

_SECONDS = 60.0
_ENGINES = ("docker", "podman")


class Host:
    """What is remembered of it is a cache: the host itself says everything."""

    def __init__(
        self, host: FleetHost, fleet: Fleet, link: Link, options: SshOptions, owner_id: str, clock: Clock
    ) -> None:
        self.hostname = host.hostname
        self.address = host.address or host.hostname
        self.price_usd_hr: Decimal = fleet.price_usd_hr if host.price_usd_hr is None else host.price_usd_hr
        self.slots = host.cpu_slots or fleet.cpu_slots
        self.link = link
        self.leases = Leases(link, options)
        self._options = options
        self._owner = scripts.digest(owner_id)
        self._clock = clock
        self._place = RemoteHost(link, self.leases, options)
        self._engines: dict[str, ContainerEngine] = {}
        self._forwards: dict[str, Forward] = {}
        self._facts: tuple[float, Facts] | None = None
        self._looking = asyncio.Lock()

    async def facts(self, *, fresh_within: float | None = None) -> Facts:
        """What the host has, asked for at most every `probe_seconds`, or `fresh_within`; everyone shares one look.

        Raises:
            ProviderError: it cannot be reached.
        """
        within = self._options.probe_seconds if fresh_within is None else fresh_within
        asked = time.monotonic()
        async with self._looking:
            # What was learnt while this call waited is new enough for it.
            if self._facts is None or (time.monotonic() - self._facts[0] > within and self._facts[0] < asked):
                self._facts = (time.monotonic(), await look(self.link, self._options))
            return self._facts[1]

    async def engine_in_use(self) -> str:
        """The engine that new workloads are started with.

        Raises:
            Ambiguous: the host has none any more.
        """
        facts = self._facts[1] if self._facts is not None else await self.facts()
        if facts.engine is None:
            raise Ambiguous(f"{self.hostname} has no engine that runs: {'; '.join(facts.rejected)}")
        return facts.engine

    def engine(self, name: str) -> ContainerEngine:
        """The engine of that name. A handle may name one that is not in use any more."""
        if name not in _ENGINES:
            raise Ambiguous(f"{self.hostname} has no engine {name[:40]!r}")
        if name not in self._engines:
            setup = Setup(name=name, argv=(name,), enforces_disk=True, takes_gpus=True)
            self._engines[name] = ContainerEngine(setup, self._place, clock=self._now)
        return self._engines[name]

    async def start(self, lease: Lease, spec: InstanceSpec, progress: Progress) -> bool:
        """Starts the workload of a lease; whether ports are published."""
        facts = await self.facts(fresh_within=3600)
        launch = self._launch(lease, spec, facts)
        name = lease.record.engine
        script = scripts.prepare_agent(
            self._options.directory,
            self._owner,
            launch.script_name,
            spec.agent.script,
            name,
            wall.ensure(self._options.workload_networks),
        )
        prepared = await self.link.run(script, timeout=_SECONDS)
        if prepared.returncode != 0:
            raise Ambiguous(f"{self.hostname} takes no agent: {prepared.last_line}")
        if spec.agent.socket is not None:
            await self._forward(spec.agent.socket).ensure(spec.agent.socket)
        around = wall.read(prepared.stdout)
        if facts.network and not around.network:
            # Offered as kept from its neighbours, it joins no open network: until the rules are there again, or a later
            # look at the host finds that it has none and its offers say so.
            raise Ambiguous(f"{self.hostname} lays no packet rules around jobs: {around.problem[:500]}")
        await self.engine(name).start(replace(launch, network=around.network), progress)
        await self.leases.mark_begun(lease.record.name, wall.part(around.bridge) if around.bridge else "")
        return bool(launch.ports)

    def has_ours(self, facts: Facts) -> bool:
        """Whether something on the host is this control plane's."""
        return any(owner == self._owner for _, owner in facts.leases)

    def keep_reachable(self, agent_socket: str | None) -> None:
        """Jobs of ours live there: their agents find the control plane, also after a restart of it."""
        if agent_socket is not None:
            self._forward(agent_socket).watch(agent_socket)

    def handle(self, name: str, engine: str, created_at: datetime | None) -> Handle:
        return Handle(
            provider_id=name,
            resource_type="container",
            region=REGION,
            host=self.hostname,
            created_at=created_at,
            data={"engine": engine},
        )

    def seen_view(self, seen: Seen, engine: str) -> InstanceView:
        return InstanceView(
            attempt_id=seen.attempt_id,
            handle=self.handle(seen.name, engine, None),
            state=seen.state,
            exit_code=seen.exit_code,
            message=seen.message,
            oom_killed=seen.oom_killed,
            created_at=seen.created_at,
            endpoints=tuple(
                PublishedPort(port.name, port.protocol, self.address, port.port) for port in seen.endpoints
            ),
        )

    def lease_view(self, lease: Lease) -> InstanceView:
        """Promised, and the engine has nothing of it: not started yet, being removed, or removed by somebody else."""
        record = lease.record
        state, message = ProviderState.PENDING, ""
        if lease.expired:
            state, message = ProviderState.FAILED, "the host ended it by itself: its time was over"
        elif lease.doomed:
            state = ProviderState.STOPPING
        elif lease.begun:
            state, message = ProviderState.FAILED, f"it was removed from {record.engine} by somebody else"
        return InstanceView(
            attempt_id=record.attempt_id,
            handle=self.handle(record.name, record.engine, record.created_at),
            state=state,
            message=message,
            created_at=record.created_at,
        )

    async def owned(self, owner_id: str) -> list[InstanceView]:
        """Every instance of ours on the host, by its leases and by the labels of its containers."""
        leases = [lease for lease in await self.leases.all(owner_id) if lease.record.owner_id == owner_id]
        views: dict[AttemptId, InstanceView] = {}
        for name in sorted({lease.record.engine for lease in leases} | {await self.engine_in_use()}):
            for seen in await self.engine(name).owned(owner_id):
                if seen.attempt_id is not None:
                    views[seen.attempt_id] = self.seen_view(seen, name)
        for lease in leases:
            views.setdefault(lease.record.attempt_id, self.lease_view(lease))
        return list(views.values())

    async def close(self) -> None:
        for forward in self._forwards.values():
            await forward.close()
        await self.link.close()

    def _launch(self, lease: Lease, spec: InstanceSpec, facts: Facts) -> Launch:
        launch = build_launch(
            lease.record,
            spec,
            machine_of(facts, self.slots),
            directory=Path(self._options.directory) / "leases" / lease.record.name,
            agent_directory=Path(self._agent_directory()),
            script_name=name_of_script(spec.agent.script),
            publish_address=self._options.publish_address,
        )
        return replace(launch, gpu_ids=lease.gpu_ids, disk_gb=launch.disk_gb if facts.disk_enforced else None)

    def _forward(self, agent_socket: str) -> Forward:
        path = f"{self._agent_directory()}/{PurePosixPath(agent_socket).name}"
        if path not in self._forwards:
            self._forwards[path] = Forward(self.link, path, self._options.forward_seconds, 64 + 8 * self.slots)
        return self._forwards[path]

    def _agent_directory(self) -> str:
        return f"{self._options.directory}/agents/{self._owner}"

    def _now(self) -> datetime:
        """By the host's own clock, which its engine's times are of."""
        return self._clock() + self.link.ahead
