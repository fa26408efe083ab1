"""The sandbox: a workload as a process of this machine, in namespaces of its own. For machines without an engine.

The image is not used and limits are not enforced; the owner of the job is told so. Nothing holds a sandbox but the
kernel: it outlives the worker, and `status.json`, which bubblewrap itself writes, says its pid and its exit code.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from domain.errors import Ambiguous, BootstrapFailed, ProviderNotFound
from domain.ids import ATTEMPT_PATTERN, AttemptId
from providers.base import Progress, ProviderState
from providers.local.container_view import LABEL_OWNER
from providers.local.engine import AGENT_MOUNT, FAULT_EXIT_CODE, FAULT_PREFIX, Launch, Seen
from providers.local.process import run_blocking
from providers.local.sandbox_command import command, find_paths, user_id

NOTICE = "sandboxed process: the image is not used and limits are not enforced"
_STATUS, _OUTPUT, _STARTED = "status.json", "output", "started"
_OUTPUT_BYTES = 65536
_GONE_WITHIN_SECONDS = 5.0
_POLL_SECONDS = 0.002
_SPAWN_SECONDS = 5.0
_MEMORY_BYTES = 1 << 30
"""Where nothing else is asked for."""
"""A start that has left no process after so long was killed before its spawn, and may be done again."""


class SandboxEngine:
    """Starts workloads under bubblewrap. Their state lives in the attempt's own directory."""

    name = "sandbox"
    resource_type = "process"
    notice: str | None = NOTICE
    takes_image = False
    publishes_ports = False
    enforces_disk = False
    isolates_network = True
    takes_gpus = False

    def __init__(self, root: Path) -> None:
        """`root` holds one directory per attempt, and `etc`, which every sandbox sees."""
        self._root = root
        self._paths = find_paths(root / "etc")
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Held so that they are reaped: the kernel keeps an ended child until its parent looks."""

    async def start(self, launch: Launch, progress: Progress) -> None:
        # Synchronous from the check to the spawn: within one process nothing can come between.
        if _pids(launch.directory) or _status(launch.directory):
            return
        if not launch.still_wanted():
            raise ProviderNotFound(f"{launch.attempt_id} was terminated; it is not started any more")
        marker = launch.directory / _STARTED
        try:
            with marker.open("x") as stream:
                json.dump({"name": launch.name, "labels": dict(launch.labels)}, stream)
        except FileNotFoundError:
            raise ProviderNotFound(f"{launch.attempt_id} was terminated; it is not started any more") from None
        except FileExistsError:
            if _age_seconds(marker) < _SPAWN_SECONDS:
                return  # another process is at it
            os.utime(marker)
        try:
            child = self._spawn(launch)
        except OSError as error:
            marker.unlink(missing_ok=True)
            raise Ambiguous(f"the sandbox could not be spawned: {error.strerror}") from error
        await self._settled(launch, child)
        if not launch.still_wanted():
            await self.remove(launch.name, launch.directory)
            raise ProviderNotFound(f"{launch.attempt_id} was terminated while it started")

    async def inspect(self, name: str, directory: Path) -> Seen | None:
        self._reap()
        started = directory / _STARTED
        try:
            created_at = datetime.fromtimestamp(started.stat().st_mtime, UTC)
            written: dict[str, Any] = json.loads(started.read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError:
            written = {}  # killed in the middle of a start
        state, code, message = _verdict(directory)
        return Seen(
            name=name or str(written.get("name", "")),
            attempt_id=AttemptId(directory.name),
            state=state,
            exit_code=code,
            message=message[:2000],
            created_at=created_at,
            labels=written.get("labels", {}),
        )

    async def owned(self, owner_id: str) -> list[Seen]:
        directories = [self._root / name for name in sorted(os.listdir(self._root)) if ATTEMPT_PATTERN.match(name)]
        found = [await self.inspect("", directory) for directory in directories]
        return [item for item in found if item is not None and item.labels.get(LABEL_OWNER) == owner_id]

    async def output(self, name: str, directory: Path) -> str:
        try:
            with (directory / _OUTPUT).open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _OUTPUT_BYTES))
                return stream.read(_OUTPUT_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    async def remove(self, name: str, directory: Path) -> bool:
        # The first process of a pid namespace takes the whole namespace with it, and tmpfs goes with the namespace.
        # A start that is cut off here may still fork: what is found is killed until nothing is found.
        deadline = time.monotonic() + _GONE_WITHIN_SECONDS
        while pids := _pids(directory):
            if time.monotonic() > deadline:
                return False
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_SECONDS)
            self._reap()
        return True

    def describe(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "command": str(self._paths.bubblewrap),
            "network": "loopback only",
            "notice": NOTICE,
        }

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        uid = user_id(launch.attempt_id) if os.geteuid() == 0 else None
        environment = {
            "PATH": self._paths.search_path,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **launch.environment,
        }
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        status = os.open(launch.directory / _STATUS, flags, 0o600)
        output = os.open(launch.directory / _OUTPUT, flags, 0o600)
        try:
            argv = command(
                self._paths,
                hostname=launch.attempt_id,
                uid=uid,
                agent=launch.agent_directory,
                status_fd=status,
                memory_bytes=launch.memory_bytes or _MEMORY_BYTES,
                argv=["bash", f"{AGENT_MOUNT}/{launch.script_name}"],
            )
            child = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(status,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(status)
            os.close(output)
        self._children[launch.name] = child
        return child

    async def _settled(self, launch: Launch, child: subprocess.Popen[bytes]) -> None:
        """Until bubblewrap has said its child's pid, or ended without; a termination may have killed it, and looked
        at its end, before."""
        while True:
            code = child.poll()
            status = _status(launch.directory)
            if "child-pid" in status and (code is None or "exit-code" in status):
                return
            if code is not None and not launch.still_wanted():
                return
            if code is not None:
                reason = await self.output(launch.name, launch.directory)
                raise BootstrapFailed(f"the sandbox could not be made: {_last_line(reason) or f'exit code {code}'}")
            await asyncio.sleep(_POLL_SECONDS)

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[name]


def probe() -> str | None:
    """Runs a sandboxed process; the reason why that did not work, or None."""
    with tempfile.TemporaryDirectory(prefix="headrace-sandbox-") as directory:
        try:
            paths = find_paths(Path(directory, "etc"))
        except OSError as error:
            return str(error)
        uid = user_id("probe") if os.geteuid() == 0 else None
        argv = command(
            paths,
            hostname="probe",
            uid=uid,
            agent=None,
            status_fd=None,
            memory_bytes=_MEMORY_BYTES,
            argv=["bash", "-c", "exit 0"],
        )
        answer = run_blocking(argv, environment={"PATH": paths.search_path}, timeout=20)
        return None if answer.returncode == 0 else answer.last_line


def _verdict(directory: Path) -> tuple[ProviderState, int | None, str]:
    if (code := _status(directory).get("exit-code")) is None:
        if _pids(directory):
            return ProviderState.RUNNING, None, ""
        if _status(directory) and _search(directory):
            # Its first process has ended, and the layer around it has not written down how yet.
            return ProviderState.RUNNING, None, ""
        if not _status(directory) and _age_seconds(directory / _STARTED) < _SPAWN_SECONDS:
            return ProviderState.STARTING, None, ""
        code = _status(directory).get("exit-code")
    if code is None:
        return ProviderState.FAILED, None, "the sandbox was killed from outside, or the machine restarted"
    if code == FAULT_EXIT_CODE:
        return ProviderState.FAILED, code, _fault(directory)
    return ProviderState.EXITED, code, ""


def _pids(directory: Path) -> list[int]:
    """The live processes of the sandbox: its first inner process, or its outer layers before that one is known.

    A recorded pid counts only while its command line still holds the attempt's id: pids are used again.
    """
    pid = _status(directory).get("child-pid")
    if pid is not None:
        return [pid] if _is_ours(pid, directory.name) else []
    # Killed between the spawn and bubblewrap's first word: look for it.
    return _search(directory) if (directory / _STARTED).exists() else []


def _search(directory: Path) -> list[int]:
    """Every process of this machine that belongs to the attempt's sandbox."""
    return [process.pid for process in psutil.process_iter() if _is_ours(process.pid, directory.name)]


def _status(directory: Path) -> dict[str, int]:
    """What bubblewrap wrote: one JSON document a line; a line that is being written does not count yet."""
    found: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (directory / _STATUS).read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found |= json.loads(line)
    return found


def _age_seconds(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _is_ours(pid: int, attempt_id: str) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and attempt_id in process.cmdline()
    except psutil.Error:
        return False


def _fault(directory: Path) -> str:
    lines = [line for line in (directory / _OUTPUT).read_text(errors="replace").splitlines() if FAULT_PREFIX in line]
    return lines[-1].partition(FAULT_PREFIX)[2].strip() if lines else "the agent could not start"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
