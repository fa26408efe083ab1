"""boto3, called from a coroutine: in threads, without its retries, and with answers that are answers.

boto3 is heavy and is imported at the first call. All sessions of a process share what it reads of its service models.
"""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from domain.errors import Ambiguous, ProviderError
from providers.aws.errors import DRY_RUN_PASSED, TokenSpent, error_of
from providers.aws.settings import AwsCredentials, AwsOptions

_THREADS = 16
_UNSET = (None, None, None, None)
_NO_FILES = {"profile": _UNSET, "config_file": _UNSET, "credentials_file": _UNSET}
"""A connection is what it was given: nothing of it comes from the profiles of the machine that the worker runs on."""


class AwsCalls:
    """The calls of one connection. Every error is a `ProviderError`, or `TokenSpent`."""

    def __init__(self, credentials: AwsCredentials, options: AwsOptions) -> None:
        self._credentials = credentials
        self._options = options
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws")
        self._session: Any = None

    async def call(
        self, service: str, region: str, operation: str, what: str, *, secrets: Sequence[str] = (), **parameters: Any
    ) -> dict[str, Any]:
        """One request; `operation` is boto3's name of it, `what` begins the message of an error."""
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(
            self._threads, self._ask, service, region, operation, what, secrets, parameters
        )
        if isinstance(outcome, dict):
            return outcome
        raise outcome

    async def pages(
        self, service: str, region: str, operation: str, key: str, what: str, **parameters: Any
    ) -> list[Any]:
        """The items of all pages.

        Raises:
            Ambiguous: a page without its list, or a page that came before.
        """
        items: list[Any] = []
        token: str | None = None
        while True:
            following = {"NextToken": token} if token else {}
            page = await self.call(service, region, operation, what, **parameters, **following)
            if not isinstance(page.get(key), list):
                raise Ambiguous(f"{what}: {operation} answered without {key}")
            items += page[key]
            before, token = token, page.get("NextToken") or None
            if token is None:
                return items
            if token == before:
                raise Ambiguous(f"{what}: {operation} answered the same page twice")

    def close(self) -> None:
        """Closes the connections; a call under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    # In a thread --------------------------------------------------------------------------------------------------

    def _ask(
        self,
        service: str,
        region: str,
        operation: str,
        what: str,
        secrets: Sequence[str],
        parameters: dict[str, Any],
    ) -> dict[str, Any] | ProviderError | TokenSpent:
        """The answer, or the error to raise. Errors are returned: one that was chained would show the SDK's own, whose
        text may repeat the request."""
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        hidden = (self._credentials.secret_access_key.get_secret_value(), *secrets)
        try:
            answer: dict[str, Any] = getattr(self._client(service, region), operation)(**parameters)
        except ClientError as error:
            answer = dict(error.response)
        except ParamValidationError as error:
            return error_of(_rejected("ParamValidation", str(error)), what, hidden)
        except BotoCoreError as error:
            # Time-outs, resets, refused connections, answers that are no XML: nobody knows what the other side did.
            return Ambiguous(f"{what}: {type(error).__name__}: no answer from {service} in {region}")
        except Exception as error:
            return Ambiguous(f"{what}: {type(error).__name__} in the call of {service} in {region}")
        if "Error" not in answer:
            return answer
        return {} if answer["Error"].get("Code") == DRY_RUN_PASSED else error_of(answer, what, hidden)

    def _client(self, service: str, region: str) -> Any:
        # boto3's sessions are not made for several threads at once.
        with self._lock:
            client = self._clients.get((service, region))
            if client is None:
                client = self._clients[service, region] = self._new_client(service, region)
            return client

    def _new_client(self, service: str, region: str) -> Any:
        import botocore.session
        from botocore.config import Config

        if self._session is None:
            self._session = botocore.session.Session(session_vars=_NO_FILES)
            self._session.register_component("data_loader", _loader())
            self._session.set_config_variable("ignore_configured_endpoint_urls", True)
            self._session.set_credentials(
                self._credentials.access_key_id, self._credentials.secret_access_key.get_secret_value()
            )
        client = self._session.create_client(
            service,
            region_name=region,
            endpoint_url=self._options.endpoints.get(service),
            config=Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=min(10, self._options.timeout_seconds),
                read_timeout=self._options.timeout_seconds,
                max_pool_connections=_THREADS,
                user_agent_extra="headrace",
            ),
        )
        client.meta.events.register("before-parse", _see_errors_in_successes)
        return client


@cache
def _loader() -> Any:
    from botocore.loaders import Loader

    return Loader()


def _see_errors_in_successes(response_dict: dict[str, Any], **_: Any) -> None:
    """An error object that came with a status of success is read as the error that it is."""
    head = response_dict.get("body", b"")[:2048]
    if response_dict.get("status_code") == 200 and (b"<Error>" in head or head.startswith(b'{"__type"')):
        response_dict["status_code"] = 400


def _rejected(code: str, message: str) -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}
