"""The embedded stack: Temporal, one worker, one API server and their state, in one data directory."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

from commands.data_dir import CREDENTIALS_FILE, STACK_FILE, DataDirectory, stack_failed
from commands.loading import loading
from commands.ports import LOOPBACK, PortBook
from commands.processes import load_settings
from commands.supervisor import ChildSpec, Supervisor
from commands.temporal_server import DatabaseLock, TemporalServer, find_temporal, temporal_environment
from domain.clock import utc_now

if TYPE_CHECKING:
    from settings import Settings
    from store.db import Database

DEFAULT_API_PORT = 8080
_READY_SECONDS = 60
# What the worker and the API need to let go of their work; the agents' polls are held for 30 s and are cut short.
_STOP_SECONDS = 15


@dataclass(frozen=True)
class StackOptions:
    """What `headrace up` was asked for."""

    data_dir: Path
    api_port: int | None = None
    """None takes the port of the last start, else 8080, else any free one."""
    otel_endpoint: str | None = None
    ui: bool = True


class EmbeddedStack:
    """Use it as `async with EmbeddedStack(options, say) as stack`: ready inside, stopped in order afterwards."""

    def __init__(self, options: StackOptions, say: Callable[[str], None]) -> None:
        self.data = DataDirectory(options.data_dir)
        self.hurry = asyncio.Event()
        """Set it to have the stop killed rather than awaited."""
        self.credentials: dict[str, Any] = {}
        self._options = options
        self._say = say
        self._ports = PortBook()
        self._database_lock = DatabaseLock(self.data.path / "temporal.lock")
        self._supervisor = Supervisor(say, self._remember_processes)
        self._chosen: dict[str, int | None] = {}
        self._trimming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            with _explained(self.data.path):
                await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def api_url(self) -> str:
        return f"http://{LOOPBACK}:{self._chosen['api']}"

    async def _start(self) -> None:
        self.data.create()
        self.data.lock()
        await self._database_lock.acquire()
        self._choose_ports()
        temporal = self._temporal()
        await self._supervisor.start(
            ChildSpec(
                "temporal",
                temporal.argv(),
                temporal_environment(),
                self.data.logs / "temporal.log",
                keep_descriptors=(self._held_lock(),),
            )
        )
        # The schema is brought up to date while the server starts.
        preparing = asyncio.create_task(asyncio.to_thread(self._prepare_database))
        try:
            await self._supervisor.wait_for(temporal.is_listening, "Temporal takes no connections", _READY_SECONDS)
            failure = await temporal.set_retention()
            if failure is not None:
                self._say(f"Temporal's retention stays as it is: {failure}")
            api_key, org_id = await preparing
        finally:
            await asyncio.wait({preparing})
        self.credentials = {
            "api_url": self.api_url,
            "api_key": api_key,
            "org_id": org_id,
            "temporal_address": temporal.address,
            "temporal_ui_url": temporal.ui_url,
        }
        self.data.write(CREDENTIALS_FILE, self.credentials)
        for name in ("worker", "api"):
            await self._supervisor.start(self._own_process(name, temporal))
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            await self._supervisor.wait_for(lambda: self._is_ready(client), "the API is not ready", _READY_SECONDS)
        self._trimming = asyncio.create_task(self._supervisor.trim_logs_for_ever())

    async def _stop(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
        await self._supervisor.stop(self.hurry)
        self._database_lock.release()
        self._ports.release()
        self.data.unlock()

    def _held_lock(self) -> int:
        assert self._database_lock.descriptor is not None
        return self._database_lock.descriptor

    def _choose_ports(self) -> None:
        """The same ports as last time where they are free: bookmarks and HEADRACE_API_URL keep their meaning."""
        remembered = {
            name: port
            for name, port in self.data.read(STACK_FILE).get("ports", {}).items()
            if isinstance(port, int) and 0 < port < 65536
        }
        wanted = self._options.api_port
        if wanted is not None and not self._ports.claim(wanted):
            raise stack_failed(
                f"port {wanted} on {LOOPBACK} is taken", "choose another --port, or leave it out for a free one"
            )
        api = wanted or self._ports.choose(remembered.get("api"), DEFAULT_API_PORT)
        if wanted is None and remembered.get("api") not in {None, api}:
            self._say(f"port {remembered['api']}, which this stack had before, is taken: the API moves to {api}")
        self._chosen = {
            "api": api,
            "temporal": self._ports.choose(remembered.get("temporal")),
            "temporal_ui": self._ports.choose(remembered.get("temporal_ui")) if self._options.ui else None,
        }
        self._remember_processes({})

    def _remember_processes(self, processes: dict[str, int]) -> None:
        ports = {name: port for name, port in self._chosen.items() if port is not None}
        self.data.write(STACK_FILE, {"ports": ports, "processes": {"supervisor": os.getpid(), **processes}})

    def _temporal(self) -> TemporalServer:
        port = self._chosen["temporal"]
        assert port is not None
        return TemporalServer(
            program=find_temporal(),
            database=self.data.path / "temporal.db",
            port=port,
            ui_port=self._chosen["temporal_ui"],
            codec_endpoint=f"{self.api_url}/codec",
        )

    def _prepare_database(self) -> tuple[str, str]:
        """Migrates, makes what a first start makes, and returns a valid admin key and its organization."""
        with loading():
            from pydantic import SecretStr

            from store import access, bootstrap, schema
            from store.db import Database

        settings = load_settings().model_copy(update={"data_dir": self.data.path})
        database = Database(settings.sqlalchemy_url)
        try:
            schema.upgrade(database)
            _require_key(settings, database)
            made = bootstrap.first_start(database, utc_now())
            known = SecretStr(str(self.data.read(CREDENTIALS_FILE).get("api_key", "")))
            if made is None:
                token = known.get_secret_value()
                principal = database.run_read(lambda session: access.authenticate(session, token, utc_now()))
                if principal is not None:
                    return token, principal.org_id
                self._say(f"{CREDENTIALS_FILE} holds no valid key: a new admin key is made")
                made = bootstrap.new_admin_key(database, utc_now())
            return made.api_key, made.org_id
        finally:
            database.engine.dispose()

    def _own_process(self, name: str, temporal: TemporalServer) -> ChildSpec:
        environment = {
            **os.environ,
            "HEADRACE_DATA_DIR": str(self.data.path),
            "HEADRACE_API_PORT": str(self._chosen["api"]),
            "HEADRACE_TEMPORAL_ADDRESS": temporal.address,
            "HEADRACE_TEMPORAL_NAMESPACE": "default",
            # Its output goes to a file.
            "PYTHONUNBUFFERED": "1",
        }
        if temporal.ui_url is not None:
            environment["HEADRACE_TEMPORAL_UI_URL"] = temporal.ui_url
        if self._options.otel_endpoint is not None:
            environment["HEADRACE_OTEL_ENDPOINT"] = self._options.otel_endpoint
        # -P: a file named cli.py in the current directory is not ours.
        argv = [sys.executable, "-P", "-m", "cli", name]
        return ChildSpec(name, argv, environment, self.data.logs / f"{name}.log", stop_seconds=_STOP_SECONDS)

    async def _is_ready(self, client: httpx.AsyncClient) -> bool:
        try:
            answer = await client.get(f"{self.api_url}/readyz")
        except httpx.TransportError:
            return False
        return answer.status_code == 200


def _require_key(settings: "Settings", database: "Database") -> None:
    """Makes the master key of a new installation.

    Raises:
        CommandError: an old one has lost its key. Another key would open nothing that it has sealed, and running jobs
            would be strangers.
    """
    from store import bootstrap
    from store.vault import create_key_file

    if settings.master_key is not None or settings.key_file.exists():
        return
    with contextlib.suppress(LookupError):
        database.run_read(bootstrap.owner_id)
        raise stack_failed(
            f"{settings.key_file} is missing, and the database holds what was sealed with it",
            "put it back from where it is kept (see Backup in docs/operations.md)",
        )
    create_key_file(settings.key_file, settings.master_key_kms)


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """What the disk or the database refuses, as an error for people."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except OSError as error:
        raise stack_failed(
            f"the stack cannot be started: {error.strerror or error}", f"its data is in {directory}"
        ) from error
    except DBAPIError as error:
        raise stack_failed(
            f"the database cannot be used: {error.orig}", f"by default it is headrace.db in {directory}"
        ) from error
