"""The API process: the public listener, the agents' Unix socket, and the tasks beside them, in one event loop."""

import asyncio
import contextlib
import gc
import resource
import signal
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

import observability
from api.agent import create_agent_app
from api.agent.contacts import Contacts
from api.agent.orders import OrderBoard
from api.app import create_app
from api.connection_expiry import wipe_unverified
from api.connections import AgentProtocol, BoundedProtocol
from api.dispatcher import Dispatcher
from api.services import Services
from api.webhook_delivery import WebhookSender
from domain.clock import utc_now
from domain.ids import new_id
from settings import Settings
from store import liveness
from store.stores import open_stores
from store.temporal import connect

logger = structlog.get_logger(__name__)

BEAT_SECONDS = 3.0
_RECONNECT_SECONDS = 0.5
_SHUTDOWN_SECONDS = 3
_SOCKET_LOOK_SECONDS = 2.0
# A process that starts beside this one removes the socket for a moment before it makes its own.
_SOCKET_MISSES = 2
# Linux's sun_path holds 108 bytes, the terminating NUL included.
_SOCKET_PATH_BYTES = 107


def open_services(settings: Settings) -> Services:
    """Everything that routes work with, but Temporal, which `keep_connecting` adds once it answers."""
    stores = open_stores(settings, utc_now)
    return Services(settings, stores.db, stores.vault, stores.logs, utc_now)


async def run_api(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then lets open requests end for a few seconds.

    A task beside the listeners that fails ends the process: half an API would be mistaken for a whole one.
    """
    _allow_connections()
    telemetry = observability.setup(settings, "headrace-api")
    services = open_services(settings)
    socket = _socket_path(settings)
    listeners = [
        _Listener(_config(create_app(services), BoundedProtocol, host=settings.api_host, port=settings.api_port)),
        _Listener(_config(create_agent_app(services), AgentProtocol, uds=str(socket))),
    ]
    _stop_on_signals(listeners)
    # What was made until here stays: the collector need not look at it again and again while it serves.
    gc.collect()
    gc.freeze()
    try:
        await _serve(listeners, [keep_connecting(services), watch_socket(listeners[1], socket), *duties(services)])
    finally:
        services.db.close()
        # The exporters wait for their receiver.
        await asyncio.to_thread(telemetry.shutdown)


def duties(services: Services) -> list[Coroutine[Any, Any, None]]:
    """What an API process does beside answering requests; each runs until it is cancelled."""
    dispatcher = Dispatcher(services)
    return [
        beat(services, new_id("api")),
        dispatcher.run(),
        OrderBoard(services).run(),
        Contacts(services, dispatcher.heartbeat).run(),
        services.logs.run_upkeep(),
        WebhookSender(services).run(),
        wipe_unverified(services),
        services.key_use.run(services.db),
    ]


async def keep_connecting(services: Services) -> None:
    """Connects to Temporal, trying until it answers. A connection that breaks later mends itself."""
    while services.temporal is None:
        try:
            services.temporal = await connect(services.settings, services.vault)
        except RuntimeError as error:
            logger.info("temporal_not_reached", address=services.settings.temporal_address, error=str(error)[:200])
            await asyncio.sleep(_RECONNECT_SECONDS)


async def watch_socket(listener: uvicorn.Server, path: Path) -> None:
    """Raises RuntimeError once nobody can connect at `path` any more: somebody removed the agents' socket, or a process
    that has ended took its place. Only a new start makes it again."""
    misses = 0
    while misses < _SOCKET_MISSES:
        await asyncio.sleep(_SOCKET_LOOK_SECONDS)
        if listener.should_exit:
            return
        misses = misses + 1 if listener.started and not await _is_listening(path) else 0
    raise RuntimeError(f"the agents' socket {path} was removed or replaced")


async def _is_listening(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        # Such as a full queue: somebody is there, and busy.
        return True
    writer.close()
    return True


async def beat(services: Services, lease_id: str) -> None:
    """Proves, beat by beat, that this process was there for agents to reach."""
    while True:
        now = services.clock()
        try:
            await services.db.write(partial(liveness.beat, lease_id=lease_id, kind=liveness.API, now=now))
            services.write_problem = None
        except Exception as error:
            # The driver's own sentence, such as "database or disk is full": without the statement and its values.
            services.write_problem = str(getattr(error, "orig", None) or type(error).__name__)[:200]
            # A beat that is missed is time that is not counted; the next one begins a new stretch.
            logger.exception("beat_failed")
        await asyncio.sleep(BEAT_SECONDS)


class _Listener(uvicorn.Server):
    """A server among several: the signals are the process's, not one server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: FastAPI, protocol: type[asyncio.Protocol], **where: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        **where,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


def _allow_connections() -> None:
    """Many systems let a process open 1024 files unless it asks for more; each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _socket_path(settings: Settings) -> Path:
    path = settings.agent_socket
    if len(str(path).encode()) > _SOCKET_PATH_BYTES:
        raise ValueError(f"the data directory's path is too long for a Unix socket: {path} has over 107 bytes")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _stop_on_signals(listeners: list[_Listener]) -> None:
    def stop() -> None:
        logger.info("api_stopping")
        for listener in listeners:
            # The second signal no longer waits for open requests.
            listener.force_exit = listener.should_exit
            listener.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _serve(listeners: list[_Listener], beside: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all until the listeners have stopped, or a task beside them has failed."""
    tasks = [asyncio.create_task(coroutine) for coroutine in beside]
    serving = asyncio.gather(*(listener.serve() for listener in listeners))
    failed = asyncio.create_task(_first_failure(tasks))
    ends: list[asyncio.Future[Any]] = [serving, failed]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            for listener in listeners:
                listener.should_exit = True
            await serving
            await failed
        # Raises what a listener failed with.
        await serving
    finally:
        for task in (failed, *tasks):
            task.cancel()
        await asyncio.gather(failed, *tasks, return_exceptions=True)


async def _first_failure(tasks: list[asyncio.Task[None]]) -> None:
    """Ends only by raising what the first failed task raised; a task that ends by itself is fine."""
    await asyncio.gather(*tasks)
    await asyncio.Event().wait()
