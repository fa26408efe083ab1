"""Watching a job to its end: its log lines as they come, its states as they change."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from commands.client import ApiClient
from commands.exits import CommandError, ExitCode
from commands.render import reason, say

TERMINAL = frozenset({"succeeded", "failed", "terminated"})

# A follower outlives a restart of the server that it asks.
_RECONNECT_SECONDS = 60.0
# The server answers earlier when a line comes or the job ends.
_HELD_SECONDS = 10


class Patience:
    """Repeats a request while the server cannot be reached, for a minute; then the error gets through."""

    def __init__(
        self,
        *,
        limit_seconds: float = _RECONNECT_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._sleep = sleep
        self._monotonic = monotonic

    def call(self, request: Callable[[], Any]) -> Any:
        """What `request` returns.

        Raises:
            CommandError: an error answer at once; an unreachable server once the limit has passed.
        """
        since: float | None = None
        pause = 0.25
        while True:
            try:
                answer = request()
            except CommandError as error:
                temporary = error.code in {ExitCode.UNREACHABLE, ExitCode.SERVER_ERROR}
                now = self._monotonic()
                if since is None and temporary:
                    since = now
                    say(f"{error.message}; trying again")
                if not temporary or since is None or now - since + pause > self._limit_seconds:
                    raise
                self._sleep(pause)
                pause = min(pause * 2, 5)
            else:
                return answer


def follow_logs(
    client: ApiClient,
    job_id: str,
    *,
    source: str | None = None,
    patience: Patience | None = None,
    on_state: Callable[[dict[str, Any]], None] = lambda job: None,
) -> Iterator[dict[str, Any]]:
    """Every line of the log in order, each once, until the job is terminal and its log is read to the end.

    `on_state` is called with the job at first and whenever its state has changed. The lines come by requests that the
    server holds until there is something new, so a quiet job costs a few requests a minute.
    """
    patience = patience or Patience()
    last_id: str | None = None
    shown_state: str | None = None
    while True:
        job = patience.call(lambda: client.get(f"/jobs/{job_id}"))
        if job["state"] != shown_state:
            shown_state = job["state"]
            on_state(job)
        ended = job["state"] in TERMINAL
        held_seconds = None if ended else _HELD_SECONDS if job["state"] == "running" else 1
        while True:
            query = {"source": source, "limit": 1000, "follow_from": last_id, "wait": held_seconds}
            page = patience.call(partial(client.get, f"/jobs/{job_id}/logs", query))
            for line in page["data"]:
                last_id = line["id"]
                yield line
            if not page["data"] or (page["next_cursor"] is None and not ended):
                break
        if ended:
            return


def wait_until_terminal(
    client: ApiClient,
    job_id: str,
    *,
    timeout_seconds: float | None = None,
    on_state: Callable[[dict[str, Any]], None] = lambda job: None,
    patience: Patience | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The job once it is terminal.

    Raises:
        CommandError: `WAIT_TIMED_OUT` when `timeout_seconds` have passed before.
    """
    patience = patience or Patience(sleep=sleep, monotonic=monotonic)
    began = monotonic()
    shown_state: str | None = None
    pause = 0.1
    while True:
        job: dict[str, Any] = patience.call(lambda: client.get(f"/jobs/{job_id}"))
        if job["state"] != shown_state:
            shown_state = job["state"]
            on_state(job)
        if job["state"] in TERMINAL:
            return job
        left = None if timeout_seconds is None else timeout_seconds - (monotonic() - began)
        if left is not None and left <= 0:
            raise CommandError(
                f"{job_id} is still {job['state']} after {timeout_seconds:g} s",
                code=ExitCode.WAIT_TIMED_OUT,
                hints=(f"it goes on; end it with: headrace job terminate {job_id}",),
            )
        sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.3, 2)


def announce(job: dict[str, Any]) -> None:
    """One line of progress for a state."""
    why = reason(job)
    where = f" on {job['provider']}" if job["state"] == "provisioning" and job.get("provider") else ""
    say(f"{job['id']} is {job['state']}{where}" + (f": {why}" if why else ""))
