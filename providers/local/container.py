"""Docker and podman, driven by their command lines."""

import asyncio
import weakref
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from domain.clock import Clock, utc_now
from domain.errors import Ambiguous, BootstrapFailed, ProviderNotFound
from domain.images import ImageReference
from providers.base import Progress, ProviderState
from providers.local.container_flags import Setup, run_arguments
from providers.local.container_view import LABEL_GPUS, LABEL_OWNER, seen
from providers.local.engine import FAULT_EXIT_CODE, FAULT_PREFIX, Launch, Seen
from providers.local.images import must_ask, qualify
from providers.local.place import Place
from providers.local.process import CommandTimeout, Completed

_START_TIMEOUT = 180.0
_CALL_TIMEOUT = 60.0
_OUTPUT_BYTES = 65536
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class ContainerEngine:
    """One engine. Nothing is remembered of a container: its labels and the engine's answers say everything."""

    resource_type = "container"
    notice: str | None = None
    takes_image = True

    def __init__(self, setup: Setup, place: Place, *, clock: Clock = utc_now) -> None:
        """`clock` is that of the engine's machine."""
        self.setup = setup
        self.name = setup.name
        self.publishes_ports = setup.network != "none"
        self.enforces_disk = setup.enforces_disk
        # However the engine's network is closed, the private networks around the machine are reached.
        self.isolates_network = setup.network == "none"
        self.takes_gpus = setup.takes_gpus
        self._place = place
        self._clock = clock
        self._slots = asyncio.Semaphore(place.starts_at_once)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._running: set[asyncio.Task[bool]] = set()

    async def start(self, launch: Launch, progress: Progress) -> None:
        reference = qualify(launch.image)
        if must_ask(reference) and (launch.registry is not None or await self._place.is_private(reference)):
            await self._place.pull(self.setup, reference, launch, progress)
        if await self._to_the_end(self._start(launch, reference)):
            return
        await self._place.pull(self.setup, reference, launch, progress)
        if not await self._to_the_end(self._start(launch, reference)):
            raise BootstrapFailed(f"the image {launch.image} was pulled and is gone again; start the job once more")

    async def inspect(self, name: str, directory: Path) -> Seen | None:
        answer = await self._call("inspect", "--type=container", name)
        if answer.returncode == 0:
            seen_now = self._read(answer)
            if len(seen_now) != 1:
                raise Ambiguous(f"{self.name} described {len(seen_now)} containers where {name} was asked for")
            found = seen_now[0]
            return await self._explained(found) if found.exit_code == FAULT_EXIT_CODE else found
        if await self._is_absent(name):
            return None
        raise Ambiguous(f"{self.name} cannot say how {name} is: {answer.last_line}")

    async def owned(self, owner_id: str) -> list[Seen]:
        return await self._matching(f"label={LABEL_OWNER}={owner_id}")

    async def held_gpus(self) -> set[str]:
        """The ids of GPUs that containers of any owner hold: what ended holds nothing."""
        ended = (ProviderState.EXITED, ProviderState.FAILED)
        holders = [item for item in await self._matching(f"label={LABEL_GPUS}") if item.state not in ended]
        return {gpu for item in holders for gpu in item.labels[LABEL_GPUS].split(",")}

    async def output(self, name: str, directory: Path) -> str:
        answer = await self._call("logs", "--tail=500", name)
        return (answer.stdout + answer.stderr)[-_OUTPUT_BYTES:] if answer.returncode == 0 else ""

    async def remove(self, name: str, directory: Path) -> bool:
        # Behind a start that is under way in this process: what it makes is removed, not missed.
        async with self._lock(name):
            return await self._remove(name)

    def describe(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "command": " ".join(self.setup.argv),
            "network": self.setup.network or "the engine's default",
            "disk_enforced": self.enforces_disk,
            "gpus": self.takes_gpus,
        }

    async def _start(self, launch: Launch, reference: ImageReference) -> bool:
        """Whether the container was started; False when the image is not on this machine."""
        async with self._lock(launch.name), self._slots:
            await self._require(launch)
            arguments = run_arguments(self.setup, launch, str(reference))
            answer = await self._call(*arguments, timeout=_START_TIMEOUT, extra=dict(launch.environment))
            if answer.returncode not in (0, _NOT_FOUND, _NOT_EXECUTABLE):
                existing = await self.inspect(launch.name, launch.directory)
                if existing is None and not await self._has_image(reference):
                    return False
                if existing is not None and existing.state in (ProviderState.STARTING, ProviderState.FAILED):
                    # An earlier call was killed between creating and starting. If it did run before, the agent's
                    # nonce keeps it from launching the workload a second time.
                    answer = await self._call("start", launch.name, timeout=_START_TIMEOUT)
                elif existing is not None:
                    return True
            if answer.returncode != 0:
                raise BootstrapFailed(_why_not_started(launch, answer, self.name))
            if not await self._place.still_wanted(launch):
                await self._remove(launch.name)
                raise _unwanted(launch)
            return True

    async def _require(self, launch: Launch) -> None:
        if not await self._place.still_wanted(launch):
            raise _unwanted(launch)

    async def _remove(self, name: str) -> bool:
        patience = [] if self.setup.is_docker else ["--time=0"]
        answer = await self._call("rm", "--force", "--volumes", *patience, name)
        if await self._is_absent(name):
            return True
        if answer.returncode != 0:
            raise Ambiguous(f"{self.name} could not remove {name}: {answer.last_line}")
        return False

    async def _matching(self, label: str) -> list[Seen]:
        for _ in range(5):
            listed = await self._call("ps", "--all", "--quiet", "--no-trunc", f"--filter={label}")
            if listed.returncode != 0:
                raise Ambiguous(f"{self.name} does not list containers: {listed.last_line}")
            ids = listed.stdout.split()
            if not ids:
                return []
            answer = await self._call("inspect", "--type=container", *ids)
            if answer.returncode == 0:
                return self._read(answer)
            # One of them was removed between the two calls.
        raise Ambiguous(f"{self.name} does not describe its containers: {answer.last_line}")

    async def _explained(self, found: Seen) -> Seen:
        """The agent could not start: its own sentence is the reason."""
        lines = [line for line in (await self.output(found.name, Path())).splitlines() if FAULT_PREFIX in line]
        reason = lines[-1].partition(FAULT_PREFIX)[2].strip() if lines else "the agent could not start"
        return replace(found, state=ProviderState.FAILED, message=reason[:2000])

    async def _is_absent(self, name: str) -> bool:
        answer = await self._call("ps", "--all", "--quiet", f"--filter=name=^/?{name}$")
        return answer.returncode == 0 and not answer.stdout.strip()

    async def _has_image(self, reference: ImageReference) -> bool:
        arguments = ["image", "inspect", "--format={{.Id}}", str(reference)]
        return (await self._call(*arguments)).returncode == 0

    def _read(self, answer: Completed) -> list[Seen]:
        try:
            items: list[dict[str, Any]] = orjson.loads(answer.stdout)
            now, booted_at = self._clock(), self._place.booted_at
            return [seen(item, now=now, booted_at=booted_at, knows_oom=self.setup.is_docker) for item in items]
        except (AttributeError, TypeError, ValueError, LookupError, RecursionError) as error:
            raise Ambiguous(f"{self.name} answered `inspect` with something unreadable: {error}") from error

    async def _call(
        self, *arguments: str, timeout: float = _CALL_TIMEOUT, extra: dict[str, str] | None = None
    ) -> Completed:
        environment = {**dict(self.setup.environment), **(extra or {})}
        try:
            return await self._place.run([*self.setup.argv, *arguments], environment=environment, timeout=timeout)
        except (CommandTimeout, OSError) as error:
            raise Ambiguous(f"{self.name} {arguments[0]} gave no answer: {error}") from error

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _to_the_end(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Runs `work` to its end even when the caller is cancelled: a client killed in the middle of a start leaves
        a half-made container behind."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: "asyncio.Task[bool]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()


def _unwanted(launch: Launch) -> ProviderNotFound:
    return ProviderNotFound(f"{launch.attempt_id} was terminated; it is not started any more")


def _why_not_started(launch: Launch, answer: Completed, engine: str) -> str:
    if answer.returncode in (_NOT_FOUND, _NOT_EXECUTABLE) and not launch.gpu_ids:
        return (
            f"the image {launch.image} has no bash that can be run; an image needs bash, curl, base64 and coreutils "
            f"({engine}: {answer.last_line})"
        )
    return f"{engine} could not start the image {launch.image}: {answer.last_line}"
