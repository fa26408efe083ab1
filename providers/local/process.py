"""Runs the engines' command lines: bounded in time and output, in a session of their own, never with a shell."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

_OUTPUT_LIMIT = 16 * 1024 * 1024
_LINE_LIMIT = 1024 * 1024


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


class Child:
    """A running command. Nobody but the command itself gets its pipes, whatever the event loop: what stays in the
    background, such as a container's monitor, must not keep them open. (uvloop's own children hand them on.)
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], *, stderr: int) -> None:
        self._process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # Ctrl-C in the terminal of an embedded stack must not reach an engine in the middle of its work.
            start_new_session=True,
            # A container's monitor stays here, and leaves a file `oom` where it is when the kernel ends its container.
            cwd="/",
        )
        self._pipes: list[asyncio.ReadTransport] = []
        self.stdout = asyncio.StreamReader(_LINE_LIMIT)
        self.stderr = asyncio.StreamReader(_LINE_LIMIT)

    async def open(self) -> None:
        """Begins to read its output."""
        loop = asyncio.get_running_loop()
        for reader, pipe in ((self.stdout, self._process.stdout), (self.stderr, self._process.stderr)):
            if pipe is None:
                reader.feed_eof()
                continue
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._pipes.append(transport)

    async def wait(self) -> int:
        """Its exit code; negative for a signal."""
        if self._process.poll() is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            handle = os.pidfd_open(self._process.pid)
            try:
                loop.add_reader(handle, ended.set)
                await ended.wait()
            finally:
                loop.remove_reader(handle)
                os.close(handle)
        return self._process.wait()

    async def close(self) -> None:
        """Kills it with its process group if it still runs, and lets go of its pipes."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self.wait()
        for transport in self._pipes:
            transport.close()


async def run(argv: Sequence[str], *, environment: Mapping[str, str], timeout: float = 60) -> Completed:
    """Runs a command to its end. Cancellation and the time-out (seconds) kill it.

    Raises:
        CommandTimeout: it did not end in time.
        OSError: the program does not exist.
    """
    child = Child(argv, environment, stderr=subprocess.PIPE)
    try:
        async with asyncio.timeout(timeout):
            await child.open()
            stdout, stderr = await asyncio.gather(_all_of(child.stdout), _all_of(child.stderr))
            code = await child.wait()
    except TimeoutError:
        raise CommandTimeout(f"{' '.join(argv[:2])} did not end within {timeout:g} s") from None
    finally:
        await child.close()
    return Completed(code, _text(stdout), _text(stderr))


@contextlib.asynccontextmanager
async def stream(argv: Sequence[str], *, environment: Mapping[str, str]) -> AsyncIterator[Child]:
    """A running command whose standard output and error come out of one pipe; killed when the block is left."""
    child = Child(argv, environment, stderr=subprocess.STDOUT)
    try:
        await child.open()
        yield child
    finally:
        await child.close()


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


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end; beyond the bound it is read and dropped."""
    kept = bytearray()
    while part := await reader.read(1 << 16):
        if len(kept) < _OUTPUT_LIMIT:
            kept += part
    return bytes(kept)


def _text(output: bytes) -> str:
    return output[:_OUTPUT_LIMIT].decode("utf-8", "replace")
