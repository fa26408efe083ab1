"""Simulated agents: they speak the real agent protocol, and only pretend to run something.

Each has a client of its own (one held poll, one connection for the rest) and sleeps otherwise, so that a thousand of
them cost next to nothing.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable

import httpx

from providers.fake.cloud import Instance
from providers.fake.script import AgentScript, Launch, UnreadableLaunch, read_launch

CHUNK_BYTES = 1 << 20
KILLED = (137, 9)
"""Status and signal of a workload that a stop order killed."""

Tell = Callable[[str], None]

# Building a TLS context reads the machine's certificates: once, not once an agent.
_TLS = ssl.create_default_context()


async def run_agent(instance: Instance, tell: Tell) -> int | None:
    """Lives through the instance's script until its exit report is acknowledged.

    Returns the exit status, or None when the agent ends without one: never said hello, was told to stop before the
    launch, or was refused.
    """
    script = instance.script
    if script.never_hello:
        return None
    await asyncio.sleep(script.hello_delay_seconds)
    async with _client(instance) as client:
        agent = _Agent(client, instance, tell)
        try:
            launch = await agent.launch()
            if launch is None:
                return None
            script = launch.script or script
            async with asyncio.timeout(script.silent_after_seconds):
                return await agent.work(launch, script)
        except TimeoutError:
            tell("silent")
            await asyncio.Event().wait()
        except (_Dismissed, UnreadableLaunch) as end:
            tell(str(end))
        return None


class _Dismissed(Exception):
    """The control plane wants no more of this agent."""


class _Agent:
    def __init__(self, client: httpx.AsyncClient, instance: Instance, tell: Tell) -> None:
        self._client = client
        self._instance = instance
        self._tell = tell
        self._random = random.Random(instance.id)  # noqa: S311 - jitter, and the same in every run
        self._stop = asyncio.Event()
        self._written: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._acknowledged = {"stdout": 0, "stderr": 0}
        self._dirty = asyncio.Event()

    async def launch(self) -> Launch | None:
        """Hello and the launch spec in one; None where there is nothing to launch."""
        token = self._instance.bootstrap["token"]
        self._client.headers["Authorization"] = f"Bearer {token}"
        if self._instance.script.fault is not None:
            await self._post("/agent/v1/fault", content=self._instance.script.fault.encode())
            self._tell("fault")
            return None
        nonce = f"{self._random.getrandbits(128):032x}"
        answer = await self._post("/agent/v1/launch", headers={"Headrace-Nonce": nonce})
        self._tell("hello")
        if answer.status_code == httpx.codes.CONFLICT:
            self._tell("stop")
            return None
        launch = read_launch(answer.text)
        self._client.headers["Authorization"] = f"Bearer {launch.session_token}"
        return launch

    async def work(self, launch: Launch, script: AgentScript) -> int:
        """Started, output, orders and the exit report, as a real agent would."""
        self._tell("started")
        helpers = [
            asyncio.create_task(self._post("/agent/v1/started")),
            asyncio.create_task(self._take_orders(launch.orders_wait_seconds, script)),
            asyncio.create_task(self._ship_as_written()),
        ]
        try:
            status, signal = await self._run(script)
            self._tell("exited")
            # The exit implies the start, so a start that was not taken yet need not be waited for.
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._ship()
            report = {"status": status, "signal": signal, **{k: len(v) for k, v in self._written.items()}}
            report["interrupted"] = int(script.notice)
            await self._post("/agent/v1/exit", data={name: str(value) for name, value in report.items()})
            self._tell("acknowledged")
            return status
        finally:
            for helper in helpers:
                helper.cancel()

    async def _run(self, script: AgentScript) -> tuple[int, int]:
        pause = script.run_seconds / max(1, script.repeat)
        for _ in range(script.repeat):
            self._written["stdout"] += script.stdout.encode()
            self._written["stderr"] += script.stderr.encode()
            self._dirty.set()
            if not pause:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
                    return KILLED
        if script.notice:
            token = self._instance.bootstrap["token"]
            await self._post("/agent/v1/notice", headers={"Authorization": f"Bearer {token}"})
        if script.hold_run and await self._stopped_before_release():
            return KILLED
        return script.status, script.signal

    async def _stopped_before_release(self) -> bool:
        waits = [asyncio.create_task(event.wait()) for event in (self._stop, self._instance.released)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._stop.is_set()

    async def _take_orders(self, wait_seconds: int, script: AgentScript) -> None:
        path = f"/agent/v1/orders?wait={wait_seconds}"
        while True:
            answer = await self._send("GET", path, timeout=wait_seconds + 15)
            if answer.text.strip() != "stop":
                continue
            self._tell("stop")
            if not script.ignore_stop:
                self._stop.set()
                return
            # An order that stands is answered at once, each time.
            await asyncio.sleep(1)

    async def _ship_as_written(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._ship()

    async def _ship(self) -> None:
        for stream, written in self._written.items():
            while (offset := self._acknowledged[stream]) < len(written):
                chunk = bytes(written[offset : offset + CHUNK_BYTES])
                answer = await self._post(f"/agent/v1/logs/{stream}?offset={offset}", content=chunk)
                # A gap is answered with where the server stands: 409, and the loop goes on from there.
                self._acknowledged[stream] = int(answer.text)

    async def _post(self, path: str, **parts: object) -> httpx.Response:
        return await self._send("POST", path, **parts)

    async def _send(self, method: str, path: str, **parts: object) -> httpx.Response:
        """Repeats until it is answered by more than a failure: the control plane may be down for a long time."""
        delay = 0.1
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await self._client.request(method, path, **parts)  # type: ignore[arg-type]
                if answer.is_success or answer.status_code == httpx.codes.CONFLICT:
                    return answer
                if answer.is_client_error and answer.status_code not in (408, 429):
                    raise _Dismissed(f"dismissed: {path.partition('?')[0]} answered {answer.status_code}")
            await asyncio.sleep(delay * (0.5 + self._random.random()))
            delay = min(5.0, delay * 2)


def _client(instance: Instance) -> httpx.AsyncClient:
    socket, url = instance.bootstrap.get("socket"), instance.bootstrap.get("url")
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(verify=_TLS, uds=socket, trust_env=False),
        base_url=url or "http://agent",
        headers={"Headrace-Protocol": "1"},
        timeout=30,
        trust_env=False,
    )
