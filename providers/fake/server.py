"""The fake cloud as a process of its own, which outlives the worker that uses it.

    python -m providers.fake.server --port 9090

In one process with a test: `async with serve() as running: FakeProvider(context, running.url)`.
"""

import argparse
import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

import uvicorn
import uvloop

from providers.fake.agent import run_agent
from providers.fake.app import create_app
from providers.fake.cloud import AgentRunner, Cloud, CloudSettings

HOST = "127.0.0.1"


@dataclass(frozen=True)
class RunningCloud:
    url: str
    cloud: Cloud


@contextlib.asynccontextmanager
async def serve(
    settings: CloudSettings | None = None,
    *,
    port: int = 0,
    agent: AgentRunner = run_agent,
    clock: Callable[[], datetime] | None = None,
) -> AsyncIterator[RunningCloud]:
    """Serves a new cloud on this event loop; port 0 takes any free one, and no `clock` is the machine's."""
    cloud = Cloud(agent, settings, clock)
    config = uvicorn.Config(
        create_app(cloud), host=HOST, port=port, http="httptools", lifespan="off", access_log=False,
        log_level="warning", proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    config.load()
    # Not `serve()`: that takes the process's signals and ends on a tick, and a test wants neither.
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        if not server.started:
            raise OSError(f"cannot listen on {HOST}:{port}")
        yield RunningCloud(f"http://{HOST}:{server.servers[0].sockets[0].getsockname()[1]}", cloud)
    finally:
        await cloud.close()
        await server.shutdown()


async def _main(port: int) -> None:
    async with serve(port=port) as running:
        sys.stdout.write(f"listening on {running.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted fake cloud for tests; listens on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port, and prints it")
    arguments = parser.parse_args()
    # A thousand agents hold two connections each.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_main(arguments.port))


if __name__ == "__main__":
    main()
