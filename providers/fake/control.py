"""A client of the fake cloud's admin API: what tests use to set the stage, in whichever process the cloud runs."""

import ssl
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx

from providers.fake.cloud import CloudOffer
from providers.fake.faults import Answer, Operation
from providers.fake.script import AgentScript


class CloudControl:
    """Every argument that is left out keeps the default of `Fault`, `ScriptRule` or `CloudSettings`."""

    def __init__(self, url: str) -> None:
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used: the server speaks plain HTTP on this machine
        self._client = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=plain)

    async def settings(self, **values: Any) -> None:
        """Changes fields of `CloudSettings`."""
        await self._call("PATCH", "/admin/settings", values)

    async def fault(self, operation: Operation | str, answer: Answer | str | None = None, **fields: Any) -> None:
        """Adds a `Fault` to the schedule."""
        wanted = {"operation": operation, "answer": answer, **fields}
        await self._call("POST", "/admin/faults", {name: _plain(value) for name, value in wanted.items()})

    async def clear_faults(self) -> None:
        await self._call("DELETE", "/admin/faults")

    async def script(
        self, script: AgentScript | None = None, *, job: str | None = None, attempt: str | None = None,
        offer: str | None = None, skip: int = 0, times: int | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """What agents of matching instances do: a script, or its fields. The newest rule that matches counts."""
        chosen = script or AgentScript(**fields)
        rule = {"job": job, "attempt": attempt, "offer": offer, "skip": skip, "times": times}
        await self._call("POST", "/admin/scripts", {**rule, "script": chosen.model_dump(mode="json")})

    async def offers(self, *offers: CloudOffer) -> None:
        """Replaces all offers."""
        await self._call("PUT", "/admin/offers", [offer.model_dump(mode="json") for offer in offers])

    async def advance(self, seconds: float) -> None:
        """Moves the cloud's clock, which its bills follow."""
        await self._call("POST", "/admin/clock", {"advance_seconds": seconds})

    async def vanish(self, key: str) -> None:
        """The instance (by id, or by attempt) is gone at once."""
        await self._change(key, action="vanish")

    async def interrupt(self, key: str) -> None:
        """The instance is taken back by the cloud: stopped, listed as interrupted."""
        await self._change(key, action="interrupt")

    async def fail(self, key: str, code: str = "boot_failed", message: str = "the boot failed") -> None:
        """The instance's boot fails."""
        await self._change(key, action="fail", code=code, message=message)

    async def release(self, key: str) -> None:
        """What the instance's script holds goes on: its boot, or its workload."""
        await self._change(key, action="release")

    async def set_price(self, key: str, usd_per_hour: Decimal | str) -> None:
        await self._change(key, action="price", usd_per_hour=str(usd_per_hour))

    async def show_status(self, key: str, status: str | None) -> None:
        """Reads show this status, whatever the state; None shows the truth again."""
        await self._change(key, action="status", status=status)

    async def hide(self, key: str, *, calls: int = 0, seconds: float = 0, operations: list[str] | None = None) -> None:
        """Hides the instance from reads (`get`, `find`, `list`) for so many calls, or so long."""
        chosen = {"operations": operations} if operations else {}
        await self._change(key, action="hide", calls=calls, seconds=seconds, **chosen)

    async def journal(self, operation: Operation | str | None = None) -> list[dict[str, Any]]:
        """Every call that the cloud received, in order."""
        calls: list[dict[str, Any]] = await self._call("GET", "/admin/journal")
        return [call for call in calls if operation is None or call["operation"] == str(operation)]

    async def resources(self) -> list[dict[str, Any]]:
        """Everything that ever was: instances and sub-resources, with states, agents' events and bills."""
        found: list[dict[str, Any]] = await self._call("GET", "/admin/resources")
        return found

    async def instances(self, attempt: str | None = None) -> list[dict[str, Any]]:
        found = await self.resources()
        return [r for r in found if r["type"] == "instance" and attempt in (None, r["attempt"])]

    async def alive(self) -> list[dict[str, Any]]:
        """What is not gone: after a test, nothing."""
        return [resource for resource in await self.resources() if not resource["gone"]]

    async def charged(self, job: str | None = None) -> Fraction:
        """USD of all instances (of a job), by the cloud's own arithmetic."""
        found = await self.instances()
        return sum((Fraction(i["charged_fraction"]) for i in found if job in (None, i["job"])), Fraction(0))

    async def close(self) -> None:
        await self._client.aclose()

    async def _change(self, key: str, **change: Any) -> None:
        await self._call("PATCH", f"/admin/resources/{key}", change)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._client.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    return sorted(value) if isinstance(value, frozenset | set) else value
