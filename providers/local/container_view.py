"""Reads what `docker inspect` and `podman inspect` say of a container."""

import json
import re
import socket
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from domain.ids import AttemptId
from providers.base import ProviderState, PublishedPort
from providers.local.engine import Seen

LABEL_OWNER = "headrace.owner"
LABEL_ATTEMPT = "headrace.attempt"
LABEL_JOB = "headrace.job"
LABEL_ORG = "headrace.org"
LABEL_PORTS = "headrace.ports"
LABEL_GPUS = "headrace.gpus"

START_WINDOW = timedelta(seconds=60)
"""How long a container may be created and not yet running before that counts as a failed start."""

_STATES = {
    "created": ProviderState.STARTING,
    "configured": ProviderState.STARTING,
    "initialized": ProviderState.STARTING,
    "restarting": ProviderState.STARTING,
    "running": ProviderState.RUNNING,
    "paused": ProviderState.RUNNING,
    "stopping": ProviderState.STOPPING,
    "removing": ProviderState.STOPPING,
    "exited": ProviderState.EXITED,
    "stopped": ProviderState.EXITED,
    "dead": ProviderState.EXITED,
}
_LOST = "the container lost its process: the machine or the engine was restarted"
_NEVER = re.compile(r"^0001-01-01")


def seen(details: Mapping[str, Any], *, now: datetime, booted_at: datetime, knows_oom: bool) -> Seen:
    """One element of the engine's answer. `booted_at` is when this machine started.

    A status that is not known counts as running: still there, still held. A container that reads `created` long after
    it was made, or after it ran, or from before the machine started, lost its process to a power loss: it failed,
    whatever exit code the engine shows.
    """
    state: Mapping[str, Any] = details.get("State") or {}
    config: Mapping[str, Any] = details.get("Config") or {}
    labels: dict[str, str] = config.get("Labels") or {}
    status = str(state.get("Status", "")).lower()
    verdict = _STATES.get(status, ProviderState.RUNNING)
    created_at = parse_time(details.get("Created"))
    exit_code = int(state.get("ExitCode") or 0) if verdict is ProviderState.EXITED else None
    message = str(state.get("Error") or "")[:2000]
    if verdict is ProviderState.EXITED and _outlived_its_process(state, booted_at):
        verdict, exit_code, message = ProviderState.FAILED, None, message or _LOST
    if verdict is ProviderState.STARTING and status != "restarting":
        ran = not _NEVER.match(str(state.get("StartedAt") or "0001-01-01"))
        old = created_at is not None and (created_at < booted_at or now - created_at > START_WINDOW)
        if ran or old or state.get("ExitCode"):
            verdict = ProviderState.FAILED
            message = message or (
                _LOST
                if ran or (created_at is not None and created_at < booted_at)
                else "the container was created and never started"
            )
    return Seen(
        name=str(details.get("Name", "")).lstrip("/"),
        attempt_id=AttemptId(labels[LABEL_ATTEMPT]) if LABEL_ATTEMPT in labels else None,
        state=verdict,
        exit_code=exit_code,
        message=message,
        oom_killed=bool(state.get("OOMKilled")) if knows_oom else None,
        created_at=created_at,
        endpoints=_endpoints(details, labels),
        labels=labels,
    )


def _outlived_its_process(state: Mapping[str, Any], booted_at: datetime) -> bool:
    """Docker says 255 of what it finds dead when it starts, and takes its own start for the end."""
    started, ended = parse_time(state.get("StartedAt")), parse_time(state.get("FinishedAt"))
    return started is not None and ended is not None and started < booted_at <= ended


def parse_time(text: Any) -> datetime | None:
    """An engine's RFC 3339 time with nanoseconds, or None."""
    match = re.match(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*(Z|[+-]\d\d:\d\d)$", str(text or ""))
    if match is None or _NEVER.match(match[1]):
        return None
    return datetime.fromisoformat(match[1] + (match[2] or "") + match[3].replace("Z", "+00:00"))


def _endpoints(details: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[PublishedPort, ...]:
    wanted: list[dict[str, Any]] = json.loads(labels.get(LABEL_PORTS) or "[]")
    if (details.get("HostConfig") or {}).get("NetworkMode") == "host":
        return tuple(
            PublishedPort(port["name"], port["protocol"], socket.gethostname(), port["container_port"])
            for port in wanted
        )
    published: Mapping[str, Any] = (details.get("NetworkSettings") or {}).get("Ports") or {}
    found = []
    for port in wanted:
        bindings = published.get(f"{port['container_port']}/tcp") or []
        if bindings and str(bindings[0].get("HostPort", "")).isdigit():
            address = bindings[0].get("HostIp") or ""
            host = socket.gethostname() if address in ("", "0.0.0.0", "::") else address  # noqa: S104
            found.append(PublishedPort(port["name"], port["protocol"], host, int(bindings[0]["HostPort"])))
    return tuple(found)
