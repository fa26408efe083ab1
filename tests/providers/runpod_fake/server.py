"""Serves a RunPod of its own on the test's event loop."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

import uvicorn

from providers.runpod.credentials import RunPodEndpoints
from tests.providers.runpod_fake.account import Account
from tests.providers.runpod_fake.app import create_app

HOST = "127.0.0.1"


@dataclass(frozen=True)
class RunningRunPod:
    url: str
    account: Account

    @property
    def endpoints(self) -> RunPodEndpoints:
        return RunPodEndpoints(rest=f"{self.url}/v2", graphql=f"{self.url}/graphql")


@contextlib.asynccontextmanager
async def serve_runpod(clock: Callable[[], datetime] | None = None) -> AsyncIterator[RunningRunPod]:
    account = Account(clock)
    config = uvicorn.Config(
        create_app(account), host=HOST, port=0, http="httptools", lifespan="off", access_log=False,
        log_level="warning", proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        assert server.started
        yield RunningRunPod(f"http://{HOST}:{server.servers[0].sockets[0].getsockname()[1]}", account)
    finally:
        await account.cloud.close()
        await server.shutdown()
