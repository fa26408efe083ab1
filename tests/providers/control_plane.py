"""The control plane's side of agent protocol 1, small and in memory, for tests of simulated agents."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agent.bootstrap import script_digest
from agent.launch_spec import LaunchSpec, render
from agent.script import agent_script
from domain.spec import Workload


@dataclass
class ControlPlane:
    """Serves every agent the same workload. Tokens are `hrb.{attempt}` before the launch and `hrs.{attempt}` after."""

    workload: Workload = field(default_factory=lambda: Workload(argv=("echo",)))
    refuse_launch: tuple[int, str] | None = None
    outage_calls: int = 0
    """So many calls are answered with 503."""
    acknowledge_bytes: int | None = None
    """At most so many bytes of each chunk are taken."""
    nonces: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Attempt and path of each call that was taken."""
    output: dict[tuple[str, str], bytes] = field(default_factory=dict)
    exits: dict[str, dict[str, str]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    held: int = 0
    """Polls for orders that are held now."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        """Waits for what agents bring about."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(condition)

    def paths(self, attempt: str) -> list[str]:
        return [path for caller, path in self.calls if caller == attempt]

    async def launch(self, request: Request) -> Response:
        attempt = _caller(request, "hrb.")
        assert request.headers["headrace-protocol"] == "1"
        nonce = self.nonces.setdefault(attempt, request.headers["headrace-nonce"])
        if nonce != request.headers["headrace-nonce"]:
            return PlainTextResponse("forbidden", 403)
        if self.refuse_launch is not None:
            return PlainTextResponse(self.refuse_launch[1], self.refuse_launch[0])
        spec = LaunchSpec(f"hrs.{attempt}", self.workload, {"HF_ENDPOINT": "https://example.com"}, 1 << 20, 30)
        return Response(render(spec))

    async def script(self, request: Request) -> Response:
        _caller(request, "hrb.")
        known = request.path_params["sha256"] == script_digest(agent_script())
        return PlainTextResponse(agent_script()) if known else PlainTextResponse("not found", 404)

    async def fault(self, request: Request) -> Response:
        self.faults[_caller(request, "hrb.")] = (await request.body()).decode()
        return PlainTextResponse("ok")

    async def started(self, request: Request) -> Response:
        _caller(request, "hrs.")
        return PlainTextResponse("ok")

    async def logs(self, request: Request) -> Response:
        key = (_caller(request, "hrs."), request.path_params["stream"])
        known, offset = self.output.get(key, b""), int(request.query_params["offset"])
        if offset > len(known):
            return PlainTextResponse(str(len(known)), 409)
        new = (await request.body())[len(known) - offset :][: self.acknowledge_bytes]
        self.output[key] = known + new
        return PlainTextResponse(str(len(known) + len(new)))

    async def exit(self, request: Request) -> Response:
        self.exits[_caller(request, "hrs.")] = dict(parse_qsl((await request.body()).decode()))
        return PlainTextResponse("ok")

    async def orders(self, request: Request) -> Response:
        _caller(request, "hrs.")
        self.held += 1
        await self._announce()
        try:
            async with asyncio.timeout(float(request.query_params["wait"])):
                await self.stop.wait()
        except TimeoutError:
            return PlainTextResponse("none")
        finally:
            self.held -= 1
        return PlainTextResponse("stop")

    async def _announce(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _route(self, path: str, method: str, handler: Callable[[Request], object]) -> Route:
        async def endpoint(request: Request) -> Response:
            if self.outage_calls > 0:
                self.outage_calls -= 1
                return PlainTextResponse("unavailable", 503)
            response = await handler(request)  # type: ignore[misc]
            self.calls.append((request.headers["authorization"].split(".", 1)[1], request.url.path))
            await self._announce()
            return response  # type: ignore[no-any-return]

        return Route(path, endpoint, methods=[method])

    @contextlib.asynccontextmanager
    async def listening(self, socket_path: str | None = None) -> AsyncIterator[str]:
        """Serves on a Unix socket, or on a free port; gives the base URL."""
        app = Starlette(
            routes=[
                self._route("/agent/v1/script/{sha256}", "GET", self.script),
                self._route("/agent/v1/launch", "POST", self.launch),
                self._route("/agent/v1/fault", "POST", self.fault),
                self._route("/agent/v1/started", "POST", self.started),
                self._route("/agent/v1/logs/{stream}", "POST", self.logs),
                self._route("/agent/v1/exit", "POST", self.exit),
                self._route("/agent/v1/orders", "GET", self.orders),
            ]
        )
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, uds=socket_path, lifespan="off", log_level="critical",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        try:
            port = None if socket_path else server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            self.stop.set()
            await server.shutdown()


def _caller(request: Request, prefix: str) -> str:
    token = request.headers["authorization"].removeprefix("Bearer ")
    assert token.startswith(prefix)
    return token.removeprefix(prefix)
