"""Commands of the engines: their end, their output, and what they leave behind, on both event loops."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from providers.local.process import CommandTimeout, run, stream

Runner = Callable[[Coroutine[Any, Any, Any]], Any]

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner


def bash(script: str, timeout: float = 60) -> Coroutine[Any, Any, Any]:
    return run(["bash", "-c", script], environment=ENVIRONMENT, timeout=timeout)


def test_a_command_ends_although_it_left_a_process_in_the_background(on_loop: Runner) -> None:
    """As an engine leaves a container's monitor, which closes its own standard streams and nothing else."""
    began = time.monotonic()
    ended = on_loop(bash("echo id; (exec </dev/null >/dev/null 2>&1; sleep 30) & echo $! >&2"))
    assert (ended.returncode, ended.stdout, time.monotonic() - began < 20) == (0, "id\n", True)
    os.kill(int(ended.stderr), 9)


def test_a_command_inherits_its_standard_streams_and_nothing_else(on_loop: Runner) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    try:
        # 255 is the shell's own.
        opened = on_loop(bash("for n in {0..254}; do [[ ! -e /proc/$$/fd/$n ]] || echo $n; done")).stdout.split()
    finally:
        os.close(reader)
        os.close(writer)
    assert opened == ["0", "1", "2"]


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("true", 0)])
def test_the_exit_code_is_the_commands(on_loop: Runner, script: str, code: int) -> None:
    assert on_loop(bash(script)).returncode == code


def test_both_streams_are_kept_apart_and_whole(on_loop: Runner) -> None:
    ended = on_loop(bash("head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2"))
    assert (ended.stdout, ended.stderr) == ("o" * 300_000, "e" * 300_000)


def test_a_command_over_its_time_is_killed_with_all_that_it_started(on_loop: Runner) -> None:
    with pytest.raises(CommandTimeout):
        on_loop(bash("echo $$ >&2; sleep 60 & sleep 60", timeout=0.3))


def test_a_cancelled_command_is_killed(on_loop: Runner, tmp_path: Any) -> None:
    async def cancel() -> int:
        running = asyncio.create_task(bash(f"echo $$ > {tmp_path}/pid; exec sleep 60"))
        # The command, not this loop, says it.
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return int((tmp_path / "pid").read_text())

    with pytest.raises(ProcessLookupError):
        os.kill(on_loop(cancel()), 0)


def test_a_program_that_does_not_exist_is_said_so(on_loop: Runner) -> None:
    with pytest.raises(FileNotFoundError):
        on_loop(run(["/nowhere/engine"], environment=ENVIRONMENT))


def test_a_streamed_command_gives_its_lines_as_they_come_and_its_exit_code(on_loop: Runner) -> None:
    async def read() -> tuple[list[bytes], int]:
        async with stream(["bash", "-c", "echo a; echo b >&2; exit 3"], environment=ENVIRONMENT) as child:
            return [line async for line in child.stdout], await child.wait()

    assert on_loop(read()) == ([b"a\n", b"b\n"], 3)
