"""Who an API key belongs to, by the vendor's SDK: the one thing that REST v2 has no route for.

The SDK takes seconds to load, adds a handler to the root logger, speaks synchronously with a time-out of its own, and
reads where the API is from the environment, per call. So it is loaded in a thread when it is first needed, and what it
does to the process is undone.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

from domain.errors import Ambiguous, AuthError, ProviderRejected
from providers.refusals import refusal
from providers.runpod.answers import kind_of_sentence
from providers.runpod.credentials import RunPodEndpoints

_BASE_URL = "RUNPOD_API_BASE_URL"
_LOCK = threading.Lock()


def account_id(api_key: str, graphql_url: str) -> str:
    """The id of the key's account. Blocks: to be called in a thread.

    Raises:
        ImportError: the `runpod` extra is not installed.
        ProviderError: what the API answered; `Ambiguous` where there was no answer that can be read.
    """
    what = "verify"
    # One at a time: the environment is the process's.
    with _LOCK, _root_logger_kept(), _api_at(graphql_url):
        from runpod import error  # type: ignore[import-untyped]
        from runpod.api.ctl_commands import get_user  # type: ignore[import-untyped]

        try:
            user: Any = get_user(api_key=api_key)
        except error.AuthenticationError as refused:
            raise refusal(AuthError, what, "GraphQL", str(refused), (api_key,)) from None
        except error.QueryError as refused:
            kind = kind_of_sentence(str(refused)) or ProviderRejected
            raise refusal(kind, what, "GraphQL", str(refused), (api_key,), scope="connection") from None
        except Exception as failure:
            # Connections, time-outs, pages that are no JSON, JSON without data: the SDK lets all of them through.
            raise Ambiguous(f"{what}: {type(failure).__name__}: no answer that can be read") from None
    if user is None:
        raise AuthError(f"{what}: the key belongs to no account", scope="connection")
    if not isinstance(user, dict) or not isinstance(user.get("id"), str):
        raise Ambiguous(f"{what}: the answer names no account")
    return str(user["id"])


@contextlib.contextmanager
def _api_at(graphql_url: str) -> Iterator[None]:
    if graphql_url == RunPodEndpoints().graphql:
        yield
        return
    before = os.environ.get(_BASE_URL)
    os.environ[_BASE_URL] = graphql_url.removesuffix("/graphql")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BASE_URL]
        else:
            os.environ[_BASE_URL] = before


@contextlib.contextmanager
def _root_logger_kept() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level
