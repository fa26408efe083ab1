"""Runs the engines' command lines: bounded in time and output, in a session of their own, never with a shell."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

_OUTPUT_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. `returncode` is negative for a signal, as in `subprocess`."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line that says something, of standard error or else of standard output; for people."""
        lines = [line.strip() for line in (self.stderr + "\n" + self.stdout).splitlines() if line.strip()]
        spoken = [line.strip() for line in self.stderr.splitlines() if line.strip()] or lines
        return spoken[-1][:500] if spoken else f"exit code {self.returncode}, no message"


class CommandTimeout(Exception):
    """The command did not end in time and was killed."""


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without Headrace's own settings (they hold keys), and with `extra`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    path = kept.get("PATH", "")
    return {**kept, "PATH": f"{path}:/usr/local/sbin:/usr/sbin:/sbin", **extra}


async def run(
    argv: Sequence[str], *, environment: Mapping[str, str], timeout: float = 60, stdin: bytes | None = None
) -> Completed:
    """Runs a command to its end. Cancellation and the time-out (seconds) kill it.

    Raises:
        CommandTimeout: it did not end in time.
        OSError: the program does not exist.
    """
    process = await _spawn(argv, environment, stdin is not None, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(timeout):
            stdout, stderr = await process.communicate(stdin)
    except TimeoutError:
        raise CommandTimeout(f"{' '.join(argv[:2])} did not end within {timeout:g} s") from None
    finally:
        await _reap(process)
    code = process.returncode
    return Completed(-1 if code is None else code, _text(stdout), _text(stderr))


@contextlib.asynccontextmanager
async def stream(argv: Sequence[str], *, environment: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running command whose standard output and error come out of one pipe; killed when the block is left."""
    process = await _spawn(argv, environment, False, stderr=asyncio.subprocess.STDOUT)
    try:
        yield process
    finally:
        await _reap(process)


def run_blocking(
    argv: Sequence[str], *, environment: Mapping[str, str], timeout: float = 60, stdin: bytes = b""
) -> Completed:
    """The same for code that runs in a thread. A missing program is exit code 127, a time-out 124."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environment),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Completed(124, "", f"{' '.join(argv[:2])} did not end within {timeout:g} s")
    except OSError as error:
        return Completed(127, "", f"{argv[0]}: {error.strerror}")
    return Completed(done.returncode, _text(done.stdout), _text(done.stderr))


async def _spawn(
    argv: Sequence[str], environment: Mapping[str, str], has_input: bool, *, stderr: int
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *argv,
        env=dict(environment),
        stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        # Ctrl-C in the terminal of an embedded stack must not reach an engine in the middle of its work.
        start_new_session=True,
        limit=1024 * 1024,
    )


async def _reap(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _text(output: bytes) -> str:
    return output[:_OUTPUT_LIMIT].decode("utf-8", "replace")
