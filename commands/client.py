"""The HTTP client of the commands: where the server is, which key, and what an error means for a person."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from commands.exits import CommandError, ExitCode

PREFIX = "/api/v1/compute"
ADMIN = "/api/v1/admin"
_ACCELERATORS = f"{PREFIX}/catalog/accelerators/"
_PATH_SAFE = re.compile(r"^[A-Za-z0-9_.-]{1,128}$")


def default_data_dir() -> Path:
    """`HEADRACE_DATA_DIR`, else `~/.headrace`."""
    return Path(os.environ.get("HEADRACE_DATA_DIR") or Path.home() / ".headrace")


@dataclass(frozen=True)
class Credentials:
    """Where the API is, the key for it, and the file or variable that said so."""

    api_url: str
    api_key: str
    source: str
    data_dir: Path

    @property
    def from_environment(self) -> bool:
        """Whether the two variables said so, and not a file."""
        return self.source == "HEADRACE_API_KEY"

    @property
    def source_of_address(self) -> str:
        return "HEADRACE_API_URL" if self.from_environment else self.source

    def __repr__(self) -> str:
        return f"Credentials(api_url={self.api_url!r}, api_key=***, source={self.source!r})"


def find_credentials(data_dir: Path | None) -> Credentials:
    """An explicit `--data-dir` wins, then HEADRACE_API_URL with HEADRACE_API_KEY, then the default data directory.

    Raises:
        CommandError: there are none, or the file cannot be read.
    """
    url, key = os.environ.get("HEADRACE_API_URL"), os.environ.get("HEADRACE_API_KEY")
    directory = data_dir or default_data_dir()
    if data_dir is None and (url or key):
        if not (url and key):
            missing = "HEADRACE_API_KEY" if url else "HEADRACE_API_URL"
            raise CommandError(f"{missing} is not set", code=ExitCode.UNAUTHORIZED, hints=("set both, or neither",))
        return Credentials(_base_url(url), key, "HEADRACE_API_KEY", directory)
    path = directory / "credentials.json"
    try:
        # A key that others can read is no key; say so rather than use it quietly.
        mode = stat.S_IMODE(path.stat().st_mode)
        content = json.loads(path.read_text())
        found = Credentials(content["api_url"].rstrip("/"), content["api_key"], str(path), directory)
    except FileNotFoundError:
        raise CommandError(
            f"no credentials: {path} does not exist",
            code=ExitCode.UNAUTHORIZED,
            hints=(
                "`headrace up` starts a stack here and writes it",
                "for a server elsewhere set HEADRACE_API_URL and HEADRACE_API_KEY",
                "for another stack on this machine use --data-dir or HEADRACE_DATA_DIR",
            ),
        ) from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CommandError(
            f"{path} cannot be read: {type(error).__name__}",
            code=ExitCode.UNAUTHORIZED,
            hints=("stop the stack, delete this file and run `headrace up`: it makes a new key",),
        ) from None
    if mode & 0o077:
        raise CommandError(
            f"{path} can be read by others (mode {mode:04o})",
            code=ExitCode.UNAUTHORIZED,
            hints=(f"chmod 600 {path}",),
        )
    return found


def _base_url(url: str) -> str:
    """`url` without the path of the API, which people copy along with the address.

    Raises:
        CommandError: it is not an address of HTTP.
    """
    if not url.startswith(("http://", "https://")):
        raise CommandError(
            f"HEADRACE_API_URL is {url!r}, and must begin with http:// or https://", code=ExitCode.UNAUTHORIZED
        )
    return url.rstrip("/").removesuffix(PREFIX)


class ApiClient:
    """Calls the Compute and the Admin API; every failure leaves as a `CommandError` with its exit code and hints."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        on_behalf_of: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.credentials = credentials
        headers = {"Authorization": f"Bearer {credentials.api_key}", "User-Agent": "headrace-cli"}
        if on_behalf_of is not None:
            headers["X-On-Behalf-Of"] = on_behalf_of
        try:
            self._http = httpx.Client(
                base_url=credentials.api_url,
                headers=headers,
                # The longest held request (a log follower's) is 20 s.
                timeout=httpx.Timeout(60, connect=5),
                transport=transport,
                # A proxy from the environment has no business between this machine and its own stack.
                trust_env="127.0.0.1" not in credentials.api_url and "localhost" not in credentials.api_url,
            )
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise CommandError(
                f"the address or key from {credentials.source} is malformed: {type(error).__name__}",
                code=ExitCode.UNAUTHORIZED,
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer's JSON object.

        Raises:
            CommandError: no server, or an error answer.
        """
        return self._send("GET", path, params={k: v for k, v in (params or {}).items() if v is not None})

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The answer's JSON object; raises as `get` does."""
        return self._send("POST", path, json=body, headers=headers)

    def put(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The answer's JSON object; raises as `get` does."""
        return self._send("PUT", path, json=body, headers=headers)

    def delete(self, path: str) -> None:
        """Raises as `get` does."""
        self._send("DELETE", path)

    def pages(self, path: str, params: Mapping[str, Any] | None = None, *, limit: int | None = None) -> Iterator[Any]:
        """Every item of a list, page by page; at most `limit` of them when given."""
        query = dict(params or {})
        left = limit
        while True:
            if left is not None:
                query["limit"] = min(left, query.get("limit", 200))
            page = self.get(path, query)
            yield from page["data"]
            if left is not None:
                left -= len(page["data"])
            if page["next_cursor"] is None or left == 0:
                return
            query["cursor"] = page["next_cursor"]

    def _send(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            # A path is the Compute API's unless it says otherwise.
            url = path if path.startswith("/api/") else PREFIX + path
            answer = self._http.request(method, url, **arguments)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise unreachable(self.credentials, error) from None
        if answer.status_code == 204:
            return {}
        if answer.is_success:
            try:
                content: dict[str, Any] = answer.json()
            except ValueError:
                raise self._not_headrace(answer) from None
            return content
        raise self._refusal(answer)

    def _not_headrace(self, answer: httpx.Response) -> CommandError:
        return CommandError(
            f"{self.credentials.api_url} answered {answer.status_code}, not in the way a Headrace server does",
            code=ExitCode.UNREACHABLE,
            hints=(f"the address comes from {self.credentials.source_of_address}",),
        )

    def _refusal(self, answer: httpx.Response) -> CommandError:
        try:
            error = answer.json()["error"]
            code, message, request_id = error["code"], error["message"], error.get("request_id")
            details = error.get("details") or {}
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._not_headrace(answer)
        hints = []
        if "field" in details and str(details["field"]) not in message:
            hints.append(f"the field is {details['field']}")
        if details.get("field") == "compute.accelerator" or answer.request.url.path.startswith(_ACCELERATORS):
            hints.append("`headrace accelerators` lists the names")
        if answer.status_code == 401:
            hints.append(f"the key comes from {self.credentials.source}")
            hints.append(
                f"the key of the stack on this machine is in {self.credentials.data_dir / 'credentials.json'}"
                if self.credentials.from_environment
                else "is another stack listening at this address?"
            )
        if answer.status_code >= 500 and request_id:
            hints.append(f"request id {request_id}")
        return CommandError(
            f"{message} ({code})", code=_exit_code(answer.status_code), hints=tuple(hints), details=details
        )


def _exit_code(status: int) -> ExitCode:
    known = {
        400: ExitCode.USAGE,
        401: ExitCode.UNAUTHORIZED,
        403: ExitCode.UNAUTHORIZED,
        404: ExitCode.NOT_FOUND,
        405: ExitCode.USAGE,
        413: ExitCode.USAGE,
        422: ExitCode.USAGE,
    }
    return known.get(status, ExitCode.SERVER_ERROR)


def unreachable(credentials: Credentials, error: Exception) -> CommandError:
    """No connection, or one that broke off; the hints differ for a stack of this machine and a server elsewhere."""
    reason = "does not answer in time" if isinstance(error, httpx.TimeoutException) else "cannot be reached"
    if credentials.from_environment:
        hints: tuple[str, ...] = ("the address comes from HEADRACE_API_URL",)
    else:
        hints = (
            f"is the stack running? start it with: headrace up --data-dir {credentials.data_dir}",
            f"its logs are in {credentials.data_dir / 'logs-of-processes'}",
        )
    return CommandError(
        f"the server at {credentials.api_url} {reason} ({type(error).__name__})", code=ExitCode.UNREACHABLE, hints=hints
    )


def path_part(identifier: str, what: str) -> str:
    """`identifier`, refused when it could not be one: it becomes part of a URL's path."""
    if not _PATH_SAFE.match(identifier) or identifier in {".", ".."}:
        raise CommandError(f"{identifier!r} is not the id of a {what}", code=ExitCode.USAGE)
    return identifier
