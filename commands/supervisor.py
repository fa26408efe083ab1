"""Child processes that are started, restarted when they die, stopped in order, and that die with their supervisor."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from commands.data_dir import stack_failed

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_FIRST_PAUSE_SECONDS = 0.1
_LAST_PAUSE_SECONDS = 10.0
# A process that lived this long has started well: its next death is a new story.
_SETTLED_SECONDS = 20.0
_HOPELESS_DEATHS = 4
_LOG_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class ChildSpec:
    """What to run, and how long it may take to stop before it is killed."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    stop_seconds: float = 10
    keep_descriptors: tuple[int, ...] = ()


@dataclass
class Child:
    """One supervised process: restarted with growing pauses until `stop`."""

    spec: ChildSpec
    on_change: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda message: None
    process: asyncio.subprocess.Process | None = None
    early_deaths: int = 0
    last_status: int | None = None
    _stopping: bool = False
    _task: asyncio.Task[None] | None = None
    _born: float = field(default=0.0)

    @property
    def pid(self) -> int | None:
        """The running process; None between a death and the restart."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    @property
    def hopeless(self) -> bool:
        """Died again and again within seconds of its start."""
        return self.early_deaths >= _HOPELESS_DEATHS

    async def start(self) -> None:
        """Starts the process and its supervision."""
        await self._spawn()
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.spec.name}")

    def leave_dead(self) -> None:
        """From now on a death is not followed by a restart."""
        self._stopping = True
        if self._task is not None and self.pid is None:
            self._task.cancel()  # between a death and the restart

    async def stop(self, *, now: bool = False) -> None:
        """SIGTERM, then SIGKILL once `stop_seconds` have passed (at once with `now`); returns when it is gone."""
        self.leave_dead()
        if self.process is not None and self.pid is not None:
            self._signal(signal.SIGKILL if now else signal.SIGTERM)
            try:
                await asyncio.wait_for(asyncio.shield(self.process.wait()), self.spec.stop_seconds)
            except TimeoutError:
                self.say(f"{self.spec.name} did not stop within {self.spec.stop_seconds:g} s and is killed")
                self._signal(signal.SIGKILL)
                await self.process.wait()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def log_tail(self, lines: int = 15) -> list[str]:
        """The last lines that the process wrote."""
        with contextlib.suppress(OSError), self.spec.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            return file.read().decode(errors="replace").splitlines()[-lines:]
        return []

    def trim_log(self, limit_bytes: int = _LOG_BYTES) -> None:
        """Moves a log that has grown too long to `.1` and goes on in an empty file (the process appends)."""
        with contextlib.suppress(OSError):
            if self.spec.log.stat().st_size > limit_bytes:
                shutil.copyfile(self.spec.log, self.spec.log.with_suffix(".log.1"))
                os.truncate(self.spec.log, 0)

    async def _spawn(self) -> None:
        descriptor = os.open(self.spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(self.spec.environment),
                # Away from the terminal's process group: Ctrl-C reaches the supervisor alone, which stops in order.
                start_new_session=True,
                preexec_fn=die_with(os.getpid(), signal.SIGKILL),
                pass_fds=self.spec.keep_descriptors,
            )
        finally:
            os.close(descriptor)
        self._born = time.monotonic()
        self.on_change()

    async def _supervise(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            assert self.process is not None
            self.last_status = await self.process.wait()
            if self._stopping:
                return
            if time.monotonic() - self._born >= _SETTLED_SECONDS:
                pause, self.early_deaths = _FIRST_PAUSE_SECONDS, 0
            self.early_deaths += 1
            self.say(f"{self.spec.name} {_how(self.last_status)}; starting it again in {pause:g} s")
            self.on_change()
            pause = await self._restart(pause)

    async def _restart(self, pause: float) -> float:
        """Starts the process again after `pause` seconds, or later if the machine has no room; the next pause."""
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)
            try:
                await self._spawn()
            except OSError as error:
                self.say(f"{self.spec.name} could not be started ({error.strerror}); trying again in {pause:g} s")
            else:
                return pause

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            assert self.process is not None
            self.process.send_signal(number)


class Supervisor:
    """Children in the order in which they depend on each other: stopped from the last to the first."""

    def __init__(self, say: Callable[[str], None], on_change: Callable[[dict[str, int]], None]) -> None:
        self._say = _best_effort(say)
        self._on_change = _best_effort(on_change)
        self.children: list[Child] = []

    async def start(self, spec: ChildSpec) -> Child:
        """Starts one more child, behind those that it depends on."""
        child = Child(spec, on_change=self._changed, say=self._say)
        self.children.append(child)
        await child.start()
        return child

    async def wait_for(self, check: Callable[[], Awaitable[bool]], what: str, timeout_seconds: float) -> None:
        """Returns once `check` says yes.

        Raises:
            CommandError: a child dies again and again, or the time is over; the message holds the end of the log.
        """
        deadline = time.monotonic() + timeout_seconds
        while not await check():
            for child in self.children:
                if child.hopeless:
                    raise stack_failed(
                        f"{child.spec.name} {_how(child.last_status)}, {child.early_deaths} times",
                        f"its whole log is {child.spec.log}",
                        excerpt=child.log_tail(),
                    )
            if time.monotonic() > deadline:
                raise stack_failed(
                    f"{what} after {timeout_seconds:g} s", f"the logs are in {self.children[0].spec.log.parent}"
                )
            await asyncio.sleep(0.05)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stops every child in reverse order of the start; once `hurry` is set, by SIGKILL."""
        for child in self.children:
            child.leave_dead()
        for child in reversed(self.children):
            self._say(f"stopping {child.spec.name}")
            gently = asyncio.create_task(child.stop(now=hurry.is_set()))
            watch = asyncio.create_task(hurry.wait())
            await asyncio.wait({gently, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not gently.done():
                await child.stop(now=True)
            await gently
            watch.cancel()

    async def trim_logs_for_ever(self, interval_seconds: float = 60) -> None:
        """Keeps the logs bounded."""
        while True:
            for child in self.children:
                child.trim_log()
            await asyncio.sleep(interval_seconds)

    def _changed(self) -> None:
        self._on_change({child.spec.name: child.pid for child in self.children if child.pid is not None})


def _best_effort(tell: Callable[[T], None]) -> Callable[[T], None]:
    """`tell`, but a full disk or a closed terminal must not end the supervision of which it tells."""

    def told(what: T) -> None:
        with contextlib.suppress(OSError):
            tell(what)

    return told


def _how(status: int | None) -> str:
    if status is None:
        return "runs"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with status {status}"


def die_with(supervisor: int, number: signal.Signals) -> Callable[[], None] | None:
    """What a child does before it becomes the program: asks the kernel for `number` when process `supervisor` is gone.

    The stack's own processes are made to be killed at any moment, so they get SIGKILL: a gentle signal could leave one
    behind without anybody to see to it. Only Linux has this: elsewhere children of a killed supervisor stay.
    """
    if sys.platform != "linux":
        return None
    # Looked up before the fork: between fork and exec as little as possible may happen.
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != supervisor:  # it was gone before the kernel was asked
            os._exit(127)

    return prepare
