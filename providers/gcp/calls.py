"""google-cloud-compute, called from a coroutine: in threads, without its retries, and with answers that are answers.

The SDK is heavy (seconds, 80 MB) and is imported at the first call. It is loaded by name: a type checker would read a
hundred thousand generated lines of it. Its clients ignore their endpoint when they wait for an operation, so operations
are read by a `ZoneOperationsClient` of the same endpoint, as everything else.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

from domain.errors import Ambiguous, AuthError, ProviderError
from providers.gcp.errors import AlreadyThere, complaint_of, error_of
from providers.gcp.settings import BILLING, COMPUTE, GcpCredentials, GcpOptions

_THREADS = 16
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_HEAD_BYTES = 65_536
_NO_NEWS = ("", "NO_RESULTS_ON_PAGE")


class GcpCalls:
    """The calls of one connection. Every error is a `ProviderError`, or `AlreadyThere`."""

    def __init__(self, credentials: GcpCredentials, options: GcpOptions) -> None:
        self.project = credentials.project_id
        self._credentials = credentials
        self._options = options
        self._clients: dict[str, Any] = {}
        self._identity: Any = None
        self._plain: Any = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gcp")

    async def call(
        self, service: str, method: str, what: str, *, kind: str, secrets: Sequence[str] = (), **request: Any
    ) -> Any:
        """One request of the project; the answer is the SDK's message, of `kind` (`compute#instance`).

        `service` names the client (`Instances`), `what` begins the message of an error.

        Raises:
            Ambiguous: besides its own cases, an answer of another kind.
        """
        answer = await self._in_thread(partial(self._ask, service, method, request), what, secrets)
        if answer.kind != kind:
            raise Ambiguous(f"{what}: {service}.{method} answered something that is no {kind}")
        return answer

    async def pages(self, service: str, method: str, what: str, *, kind: str, **request: Any) -> list[Any]:
        """All pages of a list, as the SDK's messages. Partial success cannot be asked for: its requests (1.57) lack the
        field, and half a list would be none anyway.

        Raises:
            Ambiguous: a page that is none, that came before, or that says that something could not be reached.
        """
        pages: list[Any] = []
        token, seen = "", set[str]()
        while True:
            following = {"page_token": token} if token else {}
            page = await self._in_thread(
                partial(self._ask_page, service, method, {**request, "max_results": self._page_size, **following}),
                what,
                (),
            )
            if page.kind != kind:
                raise Ambiguous(f"{what}: {service}.{method} answered something that is no {kind}")
            _refuse_partial(page, f"{what}: {service}.{method}")
            pages.append(page)
            token = page.next_page_token
            if not token:
                return pages
            if token in seen:
                raise Ambiguous(f"{what}: {service}.{method} answered the same page twice")
            seen.add(token)

    async def billing(self, path: str, what: str, **parameters: str) -> Mapping[str, Any]:
        """One read of the Cloud Billing API, which has no client in this SDK."""
        answer = await self._in_thread(partial(self._read_billing, path, parameters), what, ())
        if not isinstance(answer, Mapping):
            raise Ambiguous(f"{what}: {path} answered no object")
        return answer

    def close(self) -> None:
        """Closes the connections; a call under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.transport.close()
        if self._plain is not None:
            self._plain.close()

    @property
    def _page_size(self) -> int:
        return self._options.page_size

    async def _in_thread(self, ask: partial[Any], what: str, secrets: Sequence[str]) -> Any:
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(self._threads, self._outcome, ask, what, secrets)
        if isinstance(outcome, ProviderError | AlreadyThere):
            raise outcome
        return outcome

    # In a thread --------------------------------------------------------------------------------------------------

    def _outcome(self, ask: partial[Any], what: str, secrets: Sequence[str]) -> Any:
        """The answer, or the error to raise. Errors are returned: one that was chained would show the SDK's own, whose
        text may repeat the request."""
        try:
            return ask()
        except Exception as error:
            return self._error_of(error, what, secrets)

    def _error_of(self, error: Exception, what: str, secrets: Sequence[str]) -> ProviderError | AlreadyThere:
        response = getattr(error, "response", None)
        if isinstance(getattr(error, "code", None), int) and response is not None:
            try:
                answer = response.json()
            except ValueError:
                answer = None
            complaint = complaint_of(response.status_code, answer, response.headers)
            return error_of(complaint, what, (self._credentials.key()["private_key"], *secrets))
        if type(error).__module__ == "google.auth.exceptions":
            if getattr(error, "retryable", False) or type(error).__name__ in ("TransportError", "TimeoutError"):
                return Ambiguous(f"{what}: {type(error).__name__}: no token was given")
            return AuthError(f"{what}: {type(error).__name__}: the key gives no token", scope="connection")
        # Time-outs, resets, refused connections, answers that are no JSON: nobody knows what the other side did.
        return Ambiguous(f"{what}: {type(error).__name__}: no answer from Google")

    def _ask(self, service: str, method: str, request: dict[str, Any]) -> Any:
        call = getattr(self._client(service), method)
        return call(request={"project": self.project, **request}, retry=None, timeout=self._options.timeout_seconds)

    def _ask_page(self, service: str, method: str, request: dict[str, Any]) -> Any:
        return next(iter(self._ask(service, method, request).pages))

    def _read_billing(self, path: str, parameters: dict[str, str]) -> Any:
        with self._lock:
            if self._plain is None:
                sessions = import_module("google.auth.transport.requests")
                self._plain = _prepared(sessions.AuthorizedSession(self._identified()))
        url = self._options.endpoints.get("billing", BILLING) + path
        response = self._plain.get(url, params=parameters, timeout=self._options.timeout_seconds)
        if response.status_code >= 400:
            raise import_module("google.api_core.exceptions").from_http_response(response)
        return response.json()

    def _client(self, service: str) -> Any:
        with self._lock:
            client = self._clients.get(service)
            if client is None:
                client = self._clients[service] = self._new_client(service)
            return client

    def _new_client(self, service: str) -> Any:
        compute = import_module("google.cloud.compute_v1")
        options = import_module("google.api_core.client_options")
        client = getattr(compute, f"{service}Client")(
            credentials=self._identified(),
            client_options=options.ClientOptions(api_endpoint=self._options.endpoints.get("compute", COMPUTE)),
        )
        # The methods of a client hold this session already: it is changed, not replaced.
        _prepared(client.transport._session)
        return client

    def _identified(self) -> Any:
        """Credentials that sign their own tokens: nothing is asked of a token server."""
        if self._identity is None:
            accounts = import_module("google.oauth2.service_account")
            identity = accounts.Credentials.from_service_account_info(self._credentials.key(), scopes=_SCOPES)
            self._identity = identity.with_always_use_jwt_access(True)
        return self._identity


def _prepared(session: Any) -> Any:
    """Without the repetition after a 401, which says what it says; with room for the threads; and one that sees
    errors in successes."""
    session._max_refresh_attempts = 0
    adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=_THREADS)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.hooks["response"].append(_see_errors_in_successes)
    return session


def _see_errors_in_successes(response: Any, **_: Any) -> None:
    """An error object that came with a status of success is read as the error that it is. An operation has an `error`
    too, without a code."""
    if response.status_code != 200 or b'"error"' not in response.content[:_HEAD_BYTES]:
        return
    try:
        answer = response.json()
    except ValueError:
        return
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        response.status_code = error["code"] if 400 <= error["code"] <= 599 else 500


def _refuse_partial(page: Any, what: str) -> None:
    """Half of the zones is no list."""
    if getattr(page, "unreachables", None):
        raise Ambiguous(f"{what}: could not be reached: {', '.join(page.unreachables)[:200]}")
    scopes = page.items.values() if hasattr(page.items, "values") else ()
    for warned in (page, *scopes):
        if warned.warning.code not in _NO_NEWS:
            raise Ambiguous(f"{what}: {warned.warning.code}: {warned.warning.message[:200]}")
