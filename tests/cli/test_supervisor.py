"""Child processes restart, stop in order, and die with their supervisor."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from commands.exits import CommandError
from commands.supervisor import Child, ChildSpec, Supervisor

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def spec(folder: Path, name: str, program: str, **more) -> ChildSpec:
    return ChildSpec(
        name, [sys.executable, "-c", program], {"PATH": os.environ["PATH"]}, folder / f"{name}.log", **more
    )


async def until(condition: Callable[[], object], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        await asyncio.sleep(0.01)


def is_up(child: Child, times: int = 1) -> bool:
    return child.spec.log.exists() and child.spec.log.read_text().count("up") >= times


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.processes: dict[str, int] = {}

    def supervisor(self) -> Supervisor:
        return Supervisor(self.lines.append, lambda processes: setattr(self, "processes", dict(processes)))


@pytest.fixture
def told() -> Told:
    return Told()


async def test_a_killed_child_is_started_again_and_the_process_list_follows(tmp_path, told):
    supervisor = told.supervisor()
    child = await supervisor.start(spec(tmp_path, "worker", SLEEPER))
    await until(lambda: is_up(child))
    first = told.processes["worker"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: is_up(child, 2))
    assert told.processes["worker"] not in {first, None}
    assert told.lines == ["worker was killed by SIGKILL; starting it again in 0.1 s"]
    await supervisor.stop(asyncio.Event())
    assert not psutil.pid_exists(told.processes["worker"])


async def test_a_killed_child_is_started_again_although_nothing_can_be_written_of_it(tmp_path):
    def full(_what: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    supervisor = Supervisor(full, full)
    child = await supervisor.start(spec(tmp_path, "worker", SLEEPER))
    await until(lambda: is_up(child))
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: is_up(child, 2))
    await supervisor.stop(asyncio.Event())
    assert child.pid is None


async def test_children_stop_in_the_reverse_order_of_their_start(tmp_path, told):
    order = tmp_path / "order"
    program = (
        "import signal, sys, time, pathlib\n"
        f"def end(*_):\n    time.sleep(0.1)\n    open({str(order)!r}, 'a').write(NAME + ' ')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    supervisor = told.supervisor()
    names = ("temporal", "worker", "api")
    children = [await supervisor.start(spec(tmp_path, name, f"NAME = {name!r}\n{program}")) for name in names]
    for child in children:
        await until(lambda child=child: is_up(child))
    await supervisor.stop(asyncio.Event())
    assert order.read_text().split() == ["api", "worker", "temporal"]


async def test_a_child_that_ignores_sigterm_is_killed_after_its_time(tmp_path, told):
    supervisor = told.supervisor()
    child = await supervisor.start(spec(tmp_path, "api", STUBBORN, stop_seconds=0.2))
    await until(lambda: is_up(child))
    await supervisor.stop(asyncio.Event())
    assert child.pid is None
    assert "api did not stop within 0.2 s and is killed" in told.lines


async def test_a_second_signal_ends_the_waiting(tmp_path, told):
    supervisor = told.supervisor()
    child = await supervisor.start(spec(tmp_path, "api", STUBBORN, stop_seconds=600))
    await until(lambda: is_up(child))
    hurry = asyncio.Event()
    stopping = asyncio.create_task(supervisor.stop(hurry))
    await asyncio.sleep(0)
    hurry.set()
    await asyncio.wait_for(stopping, 10)
    assert child.pid is None


async def test_a_child_that_dies_at_once_every_time_ends_the_waiting_with_the_end_of_its_log(tmp_path, told):
    supervisor = told.supervisor()
    await supervisor.start(spec(tmp_path, "api", "import sys; print('no such module'); sys.exit(3)"))

    async def never() -> bool:
        return False

    with pytest.raises(CommandError, match="api ended with status 3, 4 times") as caught:
        await supervisor.wait_for(never, "not ready", 60)
    assert "no such module" in caught.value.excerpt
    await supervisor.stop(asyncio.Event())


async def test_a_stop_between_a_death_and_the_restart_starts_nothing(tmp_path, told):
    supervisor = told.supervisor()
    child = await supervisor.start(spec(tmp_path, "api", "raise SystemExit(1)"))
    await until(lambda: child.early_deaths == 2 and child.pid is None)
    await supervisor.stop(asyncio.Event())
    count = child.early_deaths
    await asyncio.sleep(0.5)
    assert (child.pid, child.early_deaths) == (None, count)


async def test_a_log_that_has_grown_is_moved_aside_while_the_child_goes_on_writing(tmp_path, told):
    supervisor = told.supervisor()
    child = await supervisor.start(
        spec(tmp_path, "api", "import time\nfor n in range(10**6):\n    print('n', n, flush=True); time.sleep(0.01)")
    )
    await until(lambda: child.spec.log.exists() and child.spec.log.stat().st_size > 100)
    child.trim_log(limit_bytes=100)
    assert (tmp_path / "api.log.1").read_text().startswith("n 0\n")
    await until(lambda: child.spec.log.stat().st_size > 0)
    assert not child.spec.log.read_bytes().startswith(b"\0")
    await supervisor.stop(asyncio.Event())


def test_children_die_with_a_supervisor_that_is_killed(tmp_path):
    program = (
        "import asyncio, pathlib, sys\n"
        "from commands.supervisor import ChildSpec, Supervisor\n"
        "async def main():\n"
        "    s = Supervisor(print, lambda p: None)\n"
        f"    argv = [sys.executable, '-c', {STUBBORN!r}]\n"
        "    c = await s.start(ChildSpec('x', argv, {}, pathlib.Path(sys.argv[1])))\n"
        "    print(c.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program, tmp_path / "x.log"], stdout=subprocess.PIPE)
    child = psutil.Process(int(supervisor.stdout.readline()))
    supervisor.kill()
    supervisor.communicate()
    _, alive = psutil.wait_procs([child], timeout=10)
    assert not alive
