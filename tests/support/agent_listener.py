"""The agent routes of a control plane under test, at a port of this machine, for agents that come over the network."""

import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn

from api.agent import create_agent_app
from tests.support.control_plane import ControlPlane


@contextlib.asynccontextmanager
async def agents_served(plane: ControlPlane, listener: socket.socket) -> AsyncIterator[None]:
    """Serves while it is open; whoever connects before waits."""
    config = uvicorn.Config(create_agent_app(plane.services), lifespan="off", log_level="warning")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])


def listening(backlog: int = 128) -> tuple[socket.socket, str]:
    """A socket on a free port, and its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"
