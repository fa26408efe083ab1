"""Pages of a pod's log, which RunPod has as an endless stream of server-sent events.

A page ends when the stream falls silent for a moment, or has spoken for long enough. An event's id is a timestamp that
a resumed stream starts from, and that several lines may share, so a cursor also counts the lines of its last id:
`{id}#{count}`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from domain.errors import Ambiguous
from providers.base import LogPage
from providers.runpod.answers import NoContent, read_rest
from providers.runpod.client import RunPodClient

SYSTEM = "system"
_BACKFILL_LINES = 5_000
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Event:
    id: str
    line: str


@dataclass(frozen=True, slots=True)
class Patience:
    """When a page ends: after a silence of `idle_seconds`, and after `page_seconds` however much is still being said.
    The first word may take three silences."""

    idle_seconds: float = 2
    page_seconds: float = 10


async def read_page(
    client: RunPodClient, pod_id: str, cursor: str | None, *, source: str | None, patience: Patience
) -> LogPage:
    """What was logged after `cursor`, up to 1 MiB, and where to go on.

    Raises:
        ProviderNotFound: there is no such pod.
        ProviderError: as of every call; `Ambiguous` for a stream that broke.
    """
    what = f"logs {pod_id}"
    last_id, _, counted = (cursor or "").rpartition("#")
    skip = count = int(counted) if counted.isdigit() else 0
    lines: list[str] = []
    size = 0
    async for event in _events(client, pod_id, last_id, source, patience, what):
        if event.id == last_id and skip:
            skip -= 1
            continue
        count = count + 1 if event.id == last_id else 1
        last_id, skip = event.id, 0
        lines.append(event.line + "\n")
        size += len(event.line.encode()) + 1
        if size >= _MOST_BYTES:
            break
    return LogPage("".join(lines), f"{last_id}#{count}" if last_id else None)


async def _events(
    client: RunPodClient, pod_id: str, last_id: str, source: str | None, patience: Patience, what: str
) -> AsyncIterator[_Event]:
    params = {} if last_id else {"tail": str(_BACKFILL_LINES)}
    if source is not None:
        params["source"] = source
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    try:
        async with client.http.stream("GET", client.url(f"/pods/{pod_id}/logs"), params=params, headers=headers) as r:
            if not r.headers.get("content-type", "").startswith("text/event-stream"):
                await r.aread()
                read_rest(r, NoContent, what, client.secrets())
                raise Ambiguous(f"{what}: HTTP {r.status_code} with an answer that is no event stream")
            rest = ""
            async for chunk in _until_silence(r.aiter_text(), patience):
                *blocks, rest = (rest + chunk).replace("\r\n", "\n").split("\n\n")
                for block in blocks:
                    if (event := _event(block, what)) is not None:
                        yield event
                if not chunk and rest.strip():
                    raise Ambiguous(f"{what}: the stream ended in the middle of a line")
    except httpx.HTTPError as error:
        raise Ambiguous(f"{what}: {type(error).__name__}: no answer") from error


async def _until_silence(chunks: AsyncIterator[str], patience: Patience) -> AsyncIterator[str]:
    """The chunks of a page; the empty one is the end of the stream itself. What a silence or the page's end cuts in two
    is read again by the next page."""
    deadline = time.monotonic() + patience.page_seconds
    wait = 3 * patience.idle_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(min(wait, remaining)):
                chunk = await anext(chunks, "")
        except TimeoutError:
            return
        yield chunk
        if not chunk:
            return
        wait = patience.idle_seconds


def _event(block: str, what: str) -> _Event | None:
    """None for a comment (how servers keep streams open) and for events without data."""
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, colon, value = line.partition(":")
        if colon and name:
            fields[name] = value.removeprefix(" ")
    if "data" not in fields:
        return None
    try:
        data = json.loads(fields["data"])
        return _Event(fields.get("id") or str(data["ts"]), str(data["line"]))
    except (ValueError, KeyError, TypeError):
        raise Ambiguous(f"{what}: an event that cannot be read") from None
