"""The fake cloud's truth: offers, instances, their sub-resources and states, and when a call may see them.

It knows nothing of Headrace's rows: what it holds and charges is the other side of every test's comparison.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from providers.fake.billing import charge
from providers.fake.faults import NO_FAULT, READS, REFUSALS, Fault, Operation, Schedule
from providers.fake.script import AgentScript, ScriptRule

INSTANCE = "instance"


class Refused(Exception):
    """The cloud says no: HTTP status, stable code, sentence, and what else belongs into the error object."""

    def __init__(self, status: int, code: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.extra = status, code, message, extra


class CloudOffer(BaseModel):
    """What the cloud sells. `capacity` is how many instances may live at once; None is no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    accelerator: str
    gpu_count: int
    gpu_memory_gb: int = 0
    vcpus: int = 8
    memory_gb: float = 32
    disk_gb: int = 1000
    interconnect: str | None = None
    region: str = "fake-1"
    zone: str | None = None
    price_usd_hr: Decimal
    unit_seconds: Literal[1, 60] = 1
    minimum_seconds: int = 0
    stopped_usd_hr: Decimal | None = None
    """What an instance that was taken back costs until it is deleted; None is nothing."""
    boot_charged: bool = True
    """Whether an instance is charged from its creation on, or from its workload's start."""
    teardown_seconds: float = 1
    spot: bool = False
    capacity: int | None = None
    exclusive: bool = False
    """One machine, as on a marketplace."""
    sub_resources: tuple[str, ...] = ()
    """Types of what is made before each instance, and has to be deleted with it: `disk`, `nic`."""

    @property
    def most(self) -> int | None:
        """How many instances may live at once."""
        return 1 if self.exclusive else self.capacity


DEFAULT_OFFERS = (
    CloudOffer(id="cpu", accelerator="cpu-general", gpu_count=0, price_usd_hr=Decimal("0.36")),
    CloudOffer(id="l4", accelerator="nvidia-l4-24gb", gpu_count=1, gpu_memory_gb=24, price_usd_hr=Decimal("0.72")),
    CloudOffer(
        id="h100", accelerator="nvidia-h100-80gb", gpu_count=1, gpu_memory_gb=80, price_usd_hr=Decimal("3.60"),
        interconnect="pcie", sub_resources=("disk", "nic"),
    ),
)  # fmt: skip


class CloudSettings(BaseModel):
    """How the cloud behaves when nothing goes wrong. Times are in seconds."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    api_key: str | None = None
    """None takes any."""
    dedupe: Literal["none", "same", "conflict"] = "none"
    """What a create with the name of a live instance gets: another instance, that instance, or 409."""
    page_size: int = 500
    pending_seconds: float = 0
    starting_seconds: float = 0
    stopping_seconds: float = 0
    tombstone_seconds: float = 0
    """For so long a deleted instance is still listed, as `terminated`."""
    sub_resource_lag_seconds: float = 0
    """From a sub-resource's making until a read sees it."""
    exits_with_agent: bool = True
    """Whether the instance shows `exited` once its agent ended (a container), or runs on (a virtual machine)."""
    missing_images: frozenset[str] = frozenset()


@dataclass
class Hide:
    """Keeps a resource from some reads: for a number of calls, or until an instant."""

    operations: frozenset[Operation]
    calls: int = 0
    until: datetime | None = None


@dataclass
class Resource:
    """An instance or a sub-resource. It is charged from `created_at` to `ended_at`, and listed until it is `gone`."""

    id: str
    type: str
    name: str
    labels: dict[str, str]
    created_at: datetime
    ended_at: datetime | None = None
    gone: bool = False
    hides: list[Hide] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    """The ids of an instance's sub-resources."""
    holder: str | None = None
    goes_with_holder: bool = False


@dataclass
class Instance(Resource):
    offer: CloudOffer = DEFAULT_OFFERS[0]
    image: str = ""
    ports: list[dict[str, Any]] = field(default_factory=list)
    bootstrap: dict[str, str] = field(default_factory=dict)
    status: str = "pending"
    shown_status: str | None = None
    failure_code: str | None = None
    message: str = ""
    exit_code: int | None = None
    prices: list[tuple[datetime, Decimal]] = field(default_factory=list)
    lingering_calls: int | None = None
    script: AgentScript = field(default_factory=AgentScript)
    console: list[str] = field(default_factory=list)
    agent_events: list[tuple[datetime, str]] = field(default_factory=list)
    """What its agent did, by the cloud's clock: hello, started, stop, exited, ..."""
    life: asyncio.Task[None] | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets a machine or a workload go on whose script holds it."""


AgentRunner = Callable[[Instance, Callable[[str], None]], Awaitable[int | None]]
"""Runs an instance's agent, telling what happens through the callback, until it ends: its exit status, or None."""


class Cloud:
    def __init__(
        self, run_agent: AgentRunner, settings: CloudSettings | None = None, clock: Callable[[], datetime] | None = None
    ) -> None:
        self.settings = settings or CloudSettings()
        self._clock = clock or (lambda: datetime.now(UTC))
        self.offers: dict[str, CloudOffer] = {offer.id: offer for offer in DEFAULT_OFFERS}
        self.resources: dict[str, Resource] = {}
        self.schedule = Schedule()
        self.rules: list[ScriptRule] = []
        self.skew = timedelta(0)
        self._run_agent = run_agent
        self._background: set[asyncio.Task[None]] = set()

    def now(self) -> datetime:
        """The cloud's own clock; `skew` moves it."""
        return self._clock() + self.skew

    def instances(self) -> Iterator[Instance]:
        return (resource for resource in self.resources.values() if isinstance(resource, Instance))

    def create(self, name: str, labels: dict[str, str], offer_id: str, body: dict[str, Any], fault: Fault) -> Instance:
        """Makes sub-resources, then the instance, whose life begins at once.

        Raises:
            Refused: unknown offer, no capacity, a name in use; or the fault's refusal between the two steps.
        """
        offer = self.offers.get(offer_id)
        if offer is None:
            raise Refused(404, "offer_not_found", f"offer {offer_id} is no longer there")
        twin = next((i for i in self.instances() if i.name == name and not i.gone), None)
        if twin is not None and self.settings.dedupe == "same":
            return twin
        if twin is not None and self.settings.dedupe == "conflict":
            raise Refused(409, "name_in_use", f"the name {name} is in use", resource_id=twin.id)
        if offer.most is not None and self._occupied(offer) >= offer.most:
            raise Refused(409, "no_capacity", f"no {offer.id} is free")
        held = [self._sub_resource(name, labels, type_) for type_ in offer.sub_resources]
        if fault.stage == "resources" and fault.answer is not None:
            raise Refused(*REFUSALS[fault.answer])
        now = self.now()
        price = offer.price_usd_hr if fault.price_usd_hr is None else fault.price_usd_hr
        instance = Instance(
            self._new_id(INSTANCE), INSTANCE, name, labels, now, offer=offer, holds=[r.id for r in held],
            prices=[(now, price)], shown_status=fault.shown_status, **body,
        )  # fmt: skip
        if fault.hide_calls or fault.hide_seconds:
            self.hide(instance, fault.hide_from, fault.hide_calls, fault.hide_seconds)
        for resource in held:
            resource.holder = instance.id
        keys = {**labels, "offer": offer.id}
        instance.script = next((rule.script for rule in self.rules if rule.matches(keys)), AgentScript())
        self.resources[instance.id] = instance
        failure = (fault.boot_failure, fault.boot_message)
        if instance.image in self.settings.missing_images:
            failure = ("image_pull_failed", f"manifest for {instance.image} not found")
        instance.life = asyncio.create_task(self._live(instance, *failure))
        return instance

    def hide(self, resource: Resource, operations: frozenset[Operation], calls: int, seconds: float) -> None:
        """Whichever of the two bounds is given; of both, the later one."""
        until = self.now() + timedelta(seconds=seconds) if seconds else None
        resource.hides.append(Hide(operations, calls, until))

    def sees(self, operation: Operation, resource: Resource) -> bool:
        """Whether this read sees the resource. It counts: hides wear off, and lingering instances end at last."""
        if resource.gone:
            return self._has_tombstone(resource)
        hidden = False
        for hide in resource.hides:
            if operation not in hide.operations:
                continue
            if hide.calls > 0:
                hide.calls -= 1
                hidden = True
            elif hide.until is not None and self.now() < hide.until:
                hidden = True
        if hidden:
            return False
        if isinstance(resource, Instance) and resource.lingering_calls is not None:
            resource.lingering_calls -= 1
            if resource.lingering_calls < 0:
                self._end(resource)
        return not resource.gone or self._has_tombstone(resource)

    def delete(self, resource: Resource, fault: Fault = NO_FAULT) -> None:
        """A sub-resource in use goes with its instance; an instance stops first, or lingers, as the fault says."""
        if not isinstance(resource, Instance):
            holder = self.resources.get(resource.holder or "")
            if holder is not None and not holder.gone:
                resource.goes_with_holder = True
            else:
                self._end(resource)
        elif fault.linger_calls:
            resource.lingering_calls = fault.linger_calls
        elif fault.linger_seconds:
            self._later(fault.linger_seconds, resource)
        elif self.settings.stopping_seconds:
            if resource.status != "stopping":
                resource.status = "stopping"
                self._halt(resource)
                self._later(self.settings.stopping_seconds, resource)
        else:
            self._end(resource)

    def vanish(self, instance: Instance) -> None:
        """The machine is gone from one moment to the next, as if it had never been."""
        self._end(instance)

    def interrupt(self, instance: Instance) -> None:
        """A spot machine is taken back: it stops, costs no more than its offer says, and stays listed until it is
        deleted."""
        self._halt(instance)
        instance.status, instance.message = "interrupted", "the capacity was reclaimed"
        if instance.offer.stopped_usd_hr is None:
            instance.ended_at = self.now()
        else:
            self.set_price(instance, instance.offer.stopped_usd_hr)

    def release(self, instance: Instance) -> None:
        """What its script holds goes on: the boot first, then the workload."""
        instance.released.set()

    def fail(self, instance: Instance, code: str, message: str) -> None:
        """The boot fails. The machine is charged until it is deleted."""
        self._halt(instance)
        instance.status, instance.failure_code, instance.message = "failed", code, message

    def set_price(self, instance: Instance, usd_per_hour: Decimal) -> None:
        instance.prices.append((self.now(), usd_per_hour))

    def bill(self, instance: Instance) -> Fraction:
        """USD so far, by the cloud's own arithmetic."""
        end = instance.ended_at or self.now()
        prices = [(since, Fraction(usd_per_hour)) for since, usd_per_hour in instance.prices]
        begin = instance.created_at
        if not instance.offer.boot_charged:
            begin = next((at for at, what in instance.agent_events if what == "started"), end)
        return charge(begin, end, prices, instance.offer.unit_seconds, instance.offer.minimum_seconds)

    async def close(self) -> None:
        """Ends every agent; for the end of the process."""
        tasks = [i.life for i in self.instances() if i.life is not None] + list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, instance: Instance, failure_code: str | None, message: str) -> None:
        await asyncio.sleep(self.settings.pending_seconds)
        instance.status = "starting"
        await asyncio.sleep(self.settings.starting_seconds)
        if instance.script.hold_boot:
            await instance.released.wait()
            instance.released.clear()
        if failure_code is not None:
            instance.status, instance.failure_code, instance.message = "failed", failure_code, message
            return
        instance.status = "running"
        instance.console.append(f"booted {instance.image}")

        def tell(what: str) -> None:
            instance.agent_events.append((self.now(), what))
            instance.console.append(f"agent: {what}")

        try:
            exit_code = await self._run_agent(instance, tell)
        except Exception as error:
            # Nobody awaits an agent: a mistake in it must show where a test looks.
            tell(f"crashed: {error!r}")
            raise
        if exit_code is not None and self.settings.exits_with_agent:
            instance.status, instance.exit_code = "exited", exit_code
        tell("ended")

    def _has_tombstone(self, resource: Resource) -> bool:
        if not isinstance(resource, Instance) or resource.ended_at is None:
            return False
        return self.now() < resource.ended_at + timedelta(seconds=self.settings.tombstone_seconds)

    def _end(self, resource: Resource) -> None:
        if resource.gone:
            return
        resource.gone = True
        resource.ended_at = resource.ended_at or self.now()
        if isinstance(resource, Instance):
            resource.status = "terminated"
            self._halt(resource)
        for held in (self.resources[held_id] for held_id in resource.holds):
            if held.goes_with_holder:
                self._end(held)

    def _halt(self, instance: Instance) -> None:
        if instance.life is not None:
            instance.life.cancel()

    def _later(self, seconds: float, resource: Resource) -> None:
        async def end() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(seconds)
                self._end(resource)

        task = asyncio.create_task(end())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _sub_resource(self, name: str, labels: dict[str, str], type_: str) -> Resource:
        """The one of that name where an earlier try left it, else a new one."""
        full_name = f"{name}-{type_}"
        for resource in self.resources.values():
            if resource.name == full_name and not resource.gone and resource.holder is None:
                return resource
        made = Resource(self._new_id(type_), type_, full_name, labels, self.now())
        if self.settings.sub_resource_lag_seconds:
            self.hide(made, READS, 0, self.settings.sub_resource_lag_seconds)
        self.resources[made.id] = made
        return made

    def _occupied(self, offer: CloudOffer) -> int:
        return sum(1 for instance in self.instances() if instance.offer.id == offer.id and not instance.gone)

    def _new_id(self, type_: str) -> str:
        return f"{type_}-{len(self.resources) + 1:06d}"
