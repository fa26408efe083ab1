"""A real stack for end-to-end tests: `headrace up` as people start it, whose processes are killed and started by pid.

Real code and real processes with shorter waits: what takes a minute in production takes seconds here.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import text
from sqlmodel import Session
from temporalio.client import Client

from domain.ids import new_id
from domain.states import TERMINAL
from settings import Settings
from store.db import Database
from store.temporal import connect
from store.vault import Vault

HOST_IMAGE = "localhost/headrace/host:latest"

SCALED: Mapping[str, str] = {
    "HEADRACE_CONTACT_TIMEOUT_SECONDS": "3",
    "HEADRACE_HEARTBEAT_INTERVAL_SECONDS": "0.5",
    "HEADRACE_ORDERS_WAIT_SECONDS": "5",
    "HEADRACE_ACTIVITY_TIMEOUT_SECONDS": "5",
    "HEADRACE_PROVISIONING_TIMEOUT_SECONDS": "90",
    "HEADRACE_FINALIZE_GRACE_SECONDS": "20",
    "HEADRACE_TERMINATE_DRAIN_SECONDS": "1",
    "HEADRACE_ABSENCE_GAP_SECONDS": "0.2",
    "HEADRACE_DELETE_ACCEPT_SECONDS": "3",
    "HEADRACE_SWEEP_INTERVAL_SECONDS": "0.5",
    "HEADRACE_RECOVER_INTERVAL_SECONDS": "2",
    # Often and with little grace: whatever a fault leaves unexplained for a moment must not be taken for an orphan.
    "HEADRACE_RECONCILE_INTERVAL_SECONDS": "2",
    "HEADRACE_ORPHAN_GRACE_SECONDS": "4",
    "HEADRACE_LOCAL_SLOTS": "16",
}

_READY_SECONDS = 60.0
_TERMINAL = {state.value for state in TERMINAL}


def until(condition: Callable[[], Any], what: Callable[[], str] | str, seconds: float = 60, pause: float = 0.02) -> Any:
    """Polls until the condition holds and answers its value; fails with what was awaited."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(pause)
    return value


class Stack:
    """One data directory with the stack on it, running or not. Everything is for a test in one process; the client's
    calls may come from several threads, and wait for an API that is being restarted."""

    def __init__(self, engine: str, environment: Mapping[str, str]) -> None:
        self.engine = engine
        # A short path: a Unix socket's may have 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="headrace-e2e-"))
        self.data_dir = self.root / "d"
        self.environment = {**SCALED, "HEADRACE_LOCAL_ENGINE": engine, **environment}
        self.process: subprocess.Popen[bytes] | None = None
        self._database: Database | None = None
        self._client: httpx.Client | None = None

    # Life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the stack on its data directory and waits until it is ready."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        with (self.root / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cli", "up", "--no-ui", "--data-dir", str(self.data_dir)],
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                env={**inherited, **self.environment},
            )
        until(self._has_come_up, self.said, _READY_SECONDS, pause=0.05)
        self.until_ready()
        # Its port may be another one than before.
        self._client = None

    def stop(self) -> None:
        """As Ctrl-C does. What is left of its processes after that is killed and fails the test."""
        if self.process is None:
            return
        family = self._family()
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            left = psutil.wait_procs(family, timeout=5)[1]
            for process in left:
                process.kill()
            self.process = None
        assert not left, left

    def kill_everything(self) -> None:
        """`kill -9` of the supervisor, with whom its children die. Workloads run on."""
        assert self.process is not None
        family = self._family()
        self.process.kill()
        self.process.wait()
        assert not psutil.wait_procs(family, timeout=10)[1]
        self.process = None

    def kill(self, name: str) -> None:
        """`kill -9` of one process; the supervisor starts it again."""
        os.kill(self.pid(name), signal.SIGKILL)

    @contextlib.contextmanager
    def held_down(self, name: str) -> Iterator[None]:
        """The process is killed and stays dead inside: its supervisor stands still."""
        assert self.process is not None
        victim = psutil.Process(self.pid(name))
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            victim.kill()
            until(lambda: not _lives(victim.pid), f"the death of {name}")
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
        until(lambda: self.pid(name) != victim.pid, f"{name} is started again")
        self.until_ready()

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """The process exists and does nothing inside."""
        victim = psutil.Process(self.pid(name))
        victim.suspend()
        try:
            yield
        finally:
            victim.resume()

    def processes(self) -> dict[str, int]:
        """The pids of the stack's processes, by name, as it wrote them down."""
        return dict(json.loads((self.data_dir / "stack.json").read_text())["processes"])

    def pid(self, name: str) -> int:
        """The pid of a process, once it runs (again)."""

        def alive() -> int | None:
            number = self.processes().get(name)
            return number if number is not None and _lives(number) else None

        return int(until(alive, f"{name} runs", _READY_SECONDS))

    def until_ready(self) -> None:
        def ready() -> bool:
            try:
                return httpx.get(f"{self.url}/readyz", trust_env=False, timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        until(ready, lambda: f"ready: {self.said()}", _READY_SECONDS, pause=0.05)

    def said(self) -> str:
        """What the supervisor said, for messages."""
        return (self.root / "said").read_text()[-2000:]

    def close(self) -> None:
        """Stops it, and removes its workloads and its directory."""
        try:
            self.stop()
        finally:
            self._remove_workloads()
            if self._client is not None:
                self._client.close()
            if self._database is not None:
                self._database.close()
            shutil.rmtree(self.root, ignore_errors=True)

    def _has_come_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        processes = self.processes() if (self.data_dir / "stack.json").exists() else {}
        return processes.get("supervisor") == self.process.pid and "api" in processes

    def _family(self) -> list[psutil.Process]:
        """The stack's own processes; sandboxes and containers are not of them."""
        assert self.process is not None
        return [psutil.Process(pid) for name, pid in self.processes().items() if psutil.pid_exists(pid)]

    # A client's view ----------------------------------------------------------------------------------------------

    @property
    def credentials(self) -> dict[str, Any]:
        return dict(json.loads((self.data_dir / "credentials.json").read_text()))

    @property
    def url(self) -> str:
        return str(self.credentials["api_url"])

    def call(self, method: str, path: str, seconds: float = 60, **more: Any) -> httpx.Response:
        """One request to the public API, repeated while nobody answers: an API that was killed comes back."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._http().request(method, f"/api/v1/compute{path}", **more)
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def post(self, body: Mapping[str, Any], key: str | None = None) -> httpx.Response:
        """The answer to a create request."""
        return self.call("POST", "/jobs", json=body, headers={"Idempotency-Key": key or new_id("k")})

    def create(
        self,
        command: list[str] | None = None,
        *,
        container: Mapping[str, Any] | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> str:
        """Submits a job and answers its id; `container` adds to or replaces what `command` makes."""
        answer = self.post(job_body(command, container, **fields), key=key)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def script(self, bash: str, **fields: Any) -> str:
        """Submits a job that runs this text with bash."""
        return self.create(["bash", "-c", bash], **fields)

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.call("GET", f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def terminate(self, job_id: str) -> dict[str, Any]:
        answer = self.call("POST", f"/jobs/{job_id}/terminate")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def events(self, job_id: str) -> list[dict[str, Any]]:
        answer = self.call("GET", f"/jobs/{job_id}/events", params={"limit": 1000})
        return list(answer.json()["data"])

    def instances(self, job_id: str) -> list[dict[str, Any]]:
        return list(self.call("GET", f"/jobs/{job_id}/instances").json()["data"])

    def lines(self, job_id: str, source: str = "user", limit: int = 1000) -> list[dict[str, Any]]:
        """The whole log, all pages."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {"source": source, "limit": limit}
        while True:
            page = self.call("GET", f"/jobs/{job_id}/logs", params=params).json()
            found += page["data"]
            if page["next_cursor"] is None:
                return found
            params["cursor"] = page["next_cursor"]

    def output(self, job_id: str, stream: str = "stdout") -> list[str]:
        """The messages of one stream, in order; lines that were chunked are joined."""
        joined, open_line = [], ""
        for line in self.lines(job_id):
            if line["stream"] == stream:
                open_line += line["message"]
                if not line.get("continued"):
                    joined.append(open_line)
                    open_line = ""
        return joined + ([open_line] if open_line else [])

    def until_terminal(self, job_id: str, seconds: float = 90) -> dict[str, Any]:
        """The finished job's record."""
        what = lambda: f"{self.job(job_id)} {self.events(job_id)}"  # noqa: E731
        until(lambda: self.state(job_id) in _TERMINAL, what, seconds, pause=0.05)
        return self.job(job_id)

    def _http(self) -> httpx.Client:
        if self._client is None:
            self._client = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self.credentials['api_key']}"},
                trust_env=False,
                timeout=30,
            )
        return self._client

    # Rows ---------------------------------------------------------------------------------------------------------

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Reads the stack's database, past the API: quick enough to see a phase that lasts milliseconds."""
        if self._database is None:
            url = self.environment.get("HEADRACE_DATABASE_URL") or f"sqlite:///{self.data_dir / 'headrace.db'}"
            self._database = Database(url)

        def read(session: Session) -> list[Any]:
            return list(session.connection().execute(text(query), values).all())

        return self._database.run_read(read)

    def state(self, job_id: str) -> str:
        return str(self.rows("SELECT state FROM job WHERE id = :id", id=job_id)[0][0])

    def until_state(self, job_id: str, *states: str, seconds: float = 60) -> str:
        """Waits for one of the states by the rows; the end of the job in another one fails."""

        def reached() -> str | None:
            state = self.state(job_id)
            assert state in states or state not in _TERMINAL, f"{job_id} is {state}, wanted {states}"
            return state if state in states else None

        return str(until(reached, lambda: f"{job_id} is {self.state(job_id)}, wanted {states}", seconds, pause=0.01))

    def until_gone(self, job_id: str, seconds: float = 60) -> None:
        """Waits until every attempt of the job is confirmed absent."""
        query = "SELECT count(*) FROM instance WHERE job_id = :id AND confirmed_absent_at IS NULL"
        until(lambda: self.rows(query, id=job_id)[0][0] == 0, f"{job_id}: all attempts gone", seconds, pause=0.1)

    @property
    def owner_id(self) -> str:
        return str(self.rows("SELECT owner_id FROM installation")[0][0])

    # Temporal -----------------------------------------------------------------------------------------------------

    async def temporal(self) -> Client:
        """A client of the stack's own Temporal server, which reads its payloads."""
        settings = Settings(data_dir=self.data_dir, temporal_address=self.credentials["temporal_address"])
        return await connect(settings, Vault.load(None, settings.key_file))

    async def workflow_runs(self, workflow_id: str) -> int:
        """How many runs a workflow has had."""
        client = await self.temporal()
        await client.get_workflow_handle(workflow_id).describe()
        return len([run async for run in client.list_workflows(f"WorkflowId = '{workflow_id}'")])

    # The machine --------------------------------------------------------------------------------------------------

    def workloads(self) -> list[str]:
        """The names of containers, or attempt ids of sandboxes, that are on this machine for this stack."""
        if self.engine == "podman":
            return self.containers()
        marks = {path.name for path in (self.data_dir / "local").glob("inst-*")}
        return sorted(marks | {attempt for attempt in self._attempts() if sandbox_processes(attempt)})

    def podman(self, *arguments: str) -> str:
        """What podman answers when it is called as this stack calls it. Its store is one for the whole machine."""
        configuration = self.data_dir / "local" / "podman" / "containers-lean.conf"
        if not configuration.exists():
            configuration = configuration.with_name("containers.conf")
        environment = {**os.environ, "CONTAINERS_CONF": str(configuration)}
        done = subprocess.run(
            ["podman", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"podman {arguments[0]}: {done.stderr}"
        return done.stdout

    def containers(self, **labels: str) -> list[str]:
        """The names of this stack's containers, in any state; with these labels (`job="job_..."`)."""
        wanted = {"owner": self.owner_id, **labels}
        filters = [f"--filter=label=headrace.{name}={value}" for name, value in wanted.items()]
        return sorted(self.podman("ps", "--all", "--format={{.Names}}", *filters).split())

    def running_containers(self, job_id: str) -> list[str]:
        """The names of the job's containers that run."""
        return self.podman("ps", "--format={{.Names}}", f"--filter=label=headrace.job={job_id}").split()

    def containers_ever_made(self, job_id: str) -> int:
        """How many containers the engine has ever created for the job, by its own journal."""
        found = self.podman(
            "events", "--stream=false", "--filter=event=create", f"--filter=label=headrace.job={job_id}",
            "--format={{.ID}}",
        )  # fmt: skip
        return len(set(found.split()))

    def _attempts(self) -> list[str]:
        return [str(row[0]) for row in self.rows("SELECT id FROM instance")]

    def _remove_workloads(self) -> None:
        if not (self.data_dir / "headrace.db").exists() and "HEADRACE_DATABASE_URL" not in self.environment:
            return
        if self.engine == "podman":
            names = self.containers()
            if names:
                self.podman("rm", "--force", "--volumes", "--time=0", *names)
            return
        for attempt in self._attempts():
            for process in sandbox_processes(attempt):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def job_body(
    command: list[str] | None = None, container: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """The body of a create request for one vCPU of this machine."""
    ran = {} if command is None else {"command": command}
    return {
        "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
        "container": {"image": HOST_IMAGE, **ran, **(container or {})},
        **fields,
    }


def _lives(pid: int) -> bool:
    """Whether the process runs; a zombie, at which its parent has not looked yet, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sandbox_processes(attempt_id: str) -> list[psutil.Process]:
    """The processes of an attempt's sandbox on this machine."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if attempt_id in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.contextmanager
def running_stack(engine: str, **environment: str) -> Iterator[Stack]:
    """A stack that is ready; everything of it is gone afterwards. `environment` adds HEADRACE_* settings."""
    stack = Stack(engine, environment)
    try:
        stack.start()
        yield stack
    finally:
        stack.close()
