"""Calls of RunPod's REST v2 and GraphQL APIs. Each is made once: repeating is the caller's."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from domain.errors import Ambiguous
from providers.runpod.answers import (
    Answer,
    Pagination,
    Pod,
    PodPage,
    Registry,
    RegistryPage,
    read_graphql,
    read_rest,
)
from providers.runpod.credentials import RunPodCredentials, RunPodEndpoints

_MOST_PAGES = 100
_MOST_BYTES = 16 << 20
_FRAMING = {"content-encoding", "content-length", "transfer-encoding"}
"""Of a body on its way: it has arrived, and is decoded."""


class RunPodClient:
    """`timeout_seconds` bounds the wait for each answer."""

    def __init__(self, credentials: RunPodCredentials, endpoints: RunPodEndpoints, timeout_seconds: float) -> None:
        self._endpoints = endpoints
        self._key = credentials.api_key.get_secret_value()
        self.http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=httpx.Timeout(timeout_seconds, connect=min(10, timeout_seconds)),
        )

    async def rest(
        self,
        method: str,
        path: str,
        model: type[Answer],
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        secrets: Iterable[str] = (),
    ) -> Answer:
        """Raises as `read_rest`; `Ambiguous` where there is no answer."""
        response = await self._send(method, self.url(path), what, params=params, body=body)
        return read_rest(response, model, what, self.secrets(secrets))

    async def graphql(
        self, query: str, variables: Mapping[str, Any], what: str, *, secrets: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The answer's `data`. What varies goes into `variables`, never into the query."""
        body = {"query": query, "variables": variables}
        response = await self._send("POST", self._endpoints.graphql, what, body=body)
        return read_graphql(response, what, self.secrets(secrets))

    async def pods(self, what: str) -> list[Pod]:
        """All pods of the account. Raises Ambiguous for half of a list."""
        pods: list[Pod] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self.rest("GET", "/pods", PodPage, what, params=_after(cursor))
            pods += page.pods
            if (cursor := _following(page.pagination, cursor, what)) is None:
                return pods
        raise Ambiguous(f"{what}: more than {_MOST_PAGES} pages")

    async def registries(self, what: str) -> list[Registry]:
        """All registry credentials of the account."""
        found: list[Registry] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self.rest("GET", "/registries", RegistryPage, what, params=_after(cursor))
            found += page.registries
            if (cursor := _following(page.pagination, cursor, what)) is None:
                return found
        raise Ambiguous(f"{what}: more than {_MOST_PAGES} pages")

    def url(self, path: str) -> str:
        return self._endpoints.rest + path

    def secrets(self, more: Iterable[str] = ()) -> tuple[str, ...]:
        return (self._key, *more)

    async def _send(
        self,
        method: str,
        url: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            async with self.http.stream(method, url, params=params, content=content, headers=headers) as response:
                return await _whole(response, what)
        except httpx.HTTPError as error:
            # Time-outs, resets, refused connections, broken framing: nobody knows what the other side did.
            raise Ambiguous(f"{what}: {type(error).__name__}: no answer") from error


async def _whole(response: httpx.Response, what: str) -> httpx.Response:
    """The answer with its body, which is not kept beyond what any answer of the vendor's has."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise Ambiguous(f"{what}: an answer of more than {_MOST_BYTES >> 20} MiB")
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in _FRAMING]
    return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=response.request)


def _after(cursor: str | None) -> dict[str, str]:
    """The vendor's document knows neither pages nor a limit: only what an answer names is asked for."""
    return {"cursor": cursor} if cursor else {}


def _following(pagination: Pagination | None, cursor: str | None, what: str) -> str | None:
    if pagination is None or not pagination.has_next:
        return None
    if not pagination.next_cursor or pagination.next_cursor == cursor:
        raise Ambiguous(f"{what}: there are more pages, and the answer does not say where")
    return pagination.next_cursor
