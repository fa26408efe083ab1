"""The smallest HTTP client that speaks to the API, so that a load generator is not what is measured.

One request costs it some 60 microseconds; a library's client costs a millisecond, as much as the server.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from bench.stack import Stack
from providers.local.host_image import HOST_IMAGE

_PREFIX = "/api/v1/compute"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One kept connection: `async with Client(stack) as client`."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {stack.api_key}\r\n"

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._stack.port, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def request(self, method: str, path: str, body: bytes = b"", headers: str = "") -> Reply:
        """Raises RuntimeError for any answer but a success: a benchmark of errors is none."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
        head = f"{method} {_PREFIX}{path} HTTP/1.1\r\n{self._head}{headers}{length}\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(answer.partition("content-length:")[2].partition("\r\n")[0])
        reply = Reply(int(answer[9:12]), await self._reader.readexactly(size))
        if reply.status >= 300:
            raise RuntimeError(f"{method} {path}: {reply.status} {reply.body[:500]!r}")
        return reply

    async def get(self, path: str) -> Any:
        return (await self.request("GET", path)).json()

    async def get_raw(self, path: str) -> Reply:
        """Without reading the JSON, for load."""
        return await self.request("GET", path)

    async def create(self, job: bytes) -> str:
        """Creates a job; its id."""
        reply = await self.request("POST", "/jobs", job, f"Idempotency-Key: {uuid4().hex}\r\n")
        return str(reply.json()["id"])

    async def terminate(self, job_id: str) -> None:
        await self.request("POST", f"/jobs/{job_id}/terminate")

    async def poll(self, path: str, done: Callable[[Any], bool], pause_seconds: float = 0.01) -> Any:
        """Asks until the answer is what is waited for; that answer."""
        while True:
            answer = await self.get(path)
            if done(answer):
                return answer
            await asyncio.sleep(pause_seconds)

    async def until(self, job_id: str, states: frozenset[str], pause_seconds: float = 0.01) -> dict[str, Any]:
        """The job, once it is in one of `states`."""
        job: dict[str, Any] = await self.poll(f"/jobs/{job_id}", lambda job: job["state"] in states, pause_seconds)
        return job

    async def until_total(self, state: str, count: int, pause_seconds: float = 0.05) -> None:
        """Until so many jobs are in this state; a failed one is an error."""
        await self.poll(f"/jobs?limit=1&state={state}", lambda page: page["total"] >= count, pause_seconds)
        failed = await self.get("/jobs?limit=1&state=failed")
        assert failed["total"] == 0, failed


TERMINAL = frozenset({"succeeded", "failed", "terminated"})


def job_request(*command: str, accelerator: str = "cpu-general") -> bytes:
    """The body of a create request for one CPU or one GPU, in the image of this machine's programs."""
    if accelerator == "cpu-general":
        compute = {"accelerator": accelerator, "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1}
    else:
        compute = {"accelerator": accelerator, "gpu_count": 1, "ephemeral_disk_gb": 1}
    return json.dumps({"compute": compute, "container": {"image": HOST_IMAGE, "command": command}}).encode()
