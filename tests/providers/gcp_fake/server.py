"""The tests' Google as its API: it reads tokens, tells calls apart by what they ask, and spoils the next call of an
operation where a test asks for it."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.providers import cloud_http
from tests.providers.cloud_http import Answer, due, serving
from tests.providers.gcp_fake import stock
from tests.providers.gcp_fake.cloud import GLOBAL, GcpCloud, Refused, matches
from tests.providers.gcp_fake.stock import HOST, PROJECT

METADATA = "/metadata"
"""Below it and a machine's name is what its metadata server answers; in the world all have one address."""
JSON = {"Content-Type": "application/json; charset=UTF-8"}
PAGE_SIZE = 2
CATALOG_PAGE_SIZE = 12
EMAIL = f"headrace@{PROJECT}.iam.gserviceaccount.com"


@dataclass
class Call:
    operation: str
    method: str
    path: str
    query: dict[str, str]
    body: str


Fault = cloud_http.Fault[Call]


class GcpServer:
    """The server's state. Reads and faults may come from any thread."""

    def __init__(self, public_key: str) -> None:
        self.cloud = GcpCloud()
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.skus = stock.skus()
        self.revoked = False
        self.silent_seconds = 1.5
        self._public_key = public_key
        self._lock = threading.RLock()

    def clear(self) -> None:
        self.cloud = GcpCloud()
        self.calls.clear()
        self.faults.clear()
        self.skus, self.revoked = stock.skus(), False

    def take(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[Answer, str | None]:
        """The answer, and the way to lose it."""
        split = urlsplit(target)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        if split.path.startswith(METADATA):
            return self._metadata(split.path, float(query.get("timeout_sec", 0)), headers), None
        call = Call(_operation(method, split.path, query), method, split.path, query, body.decode())
        token = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
        with self._lock:
            self.calls.append(call)
            if (refusal := self._unidentified(token)) is not None:
                return refusal, None
            fault = due(self.faults, call.operation)
            if fault is not None and fault.before is not None:
                return fault.before(call), None
            try:
                answer = Answer(200, _checked(self._answer(call)), dict(JSON))
            except Refused as refused:
                answer = google_error(refused.status, refused.reason, refused.message)
            if fault is not None and fault.spoil is not None:
                answer = fault.spoil(call, answer)
            return answer, fault.loss if fault else None

    def _metadata(self, path: str, wait_seconds: float, headers: dict[str, str]) -> Answer:
        """Held while nothing changes; not under the lock."""
        name, what = path.split("/")[2], path.rpartition("/")[2]
        if headers.get("Metadata-Flavor") != "Google":
            return Answer(403, b"")
        deadline = time.monotonic() + wait_seconds
        while name not in self.cloud.noticed and time.monotonic() < deadline:
            time.sleep(0.05)
        return Answer(200, {"preempted": b"TRUE" if name in self.cloud.noticed else b"FALSE"}.get(what, b"NONE"))

    def unwell(self, way: str) -> Answer:
        if way == "internal":
            return google_error(500, "internalError", "Internal error. Please try again.")
        return google_error(503, "backendError", "Service unavailable")

    def _unidentified(self, authorization: str) -> Answer | None:
        """None for a token that the service account signed itself, for this API."""
        from google.auth import jwt

        try:
            claims = jwt.decode(authorization.removeprefix("Bearer "), certs=self._public_key)
        except ValueError as error:
            return google_error(401, "authError", f"Invalid Credentials: {error}")
        known = claims["iss"] == claims["sub"] == EMAIL and "cloud-platform" in claims.get("scope", "")
        return None if known and not self.revoked else google_error(401, "authError", "Invalid Credentials")

    def _answer(self, call: Call) -> dict[str, Any]:
        if call.path.startswith("/v1/services/"):
            return self._skus(call)
        path = call.path.removeprefix("/compute/v1/projects/")
        project, _, rest = path.partition("/")
        parts = tuple(rest.split("/")) if rest else ()
        if parts[:2] == ("global", "images"):
            return _image(project, parts[-1])
        if project != PROJECT:
            raise Refused(403, "forbidden", f"Required 'compute.projects.get' permission for 'projects/{project}'")
        filter = call.query.get("filter", "")
        match call.method, *parts:
            case ["GET"]:
                return {"kind": "compute#project", "name": PROJECT, "quotas": _quotas(self.cloud.project_quotas)}
            case ["GET", "regions"]:
                items = [
                    {"kind": "compute#region", "name": n, "status": "UP", "quotas": _quotas(self.cloud.quotas)}
                    for n in stock.regions()
                ]
                return self._page(call, "compute#regionList", items, PAGE_SIZE)
            case ["GET", "aggregated", "instances"]:
                return self._scoped(call, "instance", "instances", self.cloud.list_machines(filter), PAGE_SIZE)
            case ["GET", "aggregated", "disks"]:
                disks = [(zone, d) for (zone, _), d in self.cloud.disks.items() if matches(d, filter)]
                return self._scoped(call, "disk", "disks", disks, PAGE_SIZE)
            case ["GET", "global", "firewalls"]:
                rules = [rule for rule in self.cloud.firewalls.values() if matches(rule, filter)]
                return self._page(call, "compute#firewallList", rules, PAGE_SIZE)
            case ["POST", "global", "firewalls"]:
                return self.cloud.insert_firewall(call.body, call.query.get("requestId", ""))
            case ["GET", "global", "firewalls", name]:
                return self.cloud.read_firewall(name)
            case ["DELETE", "global", "firewalls", name]:
                return self.cloud.delete_firewall(name)
            case ["GET", "global", "operations", name]:
                return self.cloud.read_operation(GLOBAL, name)
            case ["GET", "aggregated", "machineTypes"]:
                return self._catalog(call, "machineType", "machineTypes", stock.machine_types())
            case ["GET", "aggregated", "acceleratorTypes"]:
                return self._catalog(call, "acceleratorType", "acceleratorTypes", stock.accelerator_types())
            case ["POST", "zones", zone, "instances"]:
                return self.cloud.insert(zone, call.body, call.query.get("requestId", ""))
            case ["GET", "zones", zone, "instances", name]:
                return self.cloud.read(zone, name)
            case ["DELETE", "zones", zone, "instances", name]:
                return self.cloud.delete(zone, name)
            case ["GET", "zones", zone, "instances", name, "serialPort"]:
                self.cloud.read(zone, name)
                start = min(int(call.query.get("start", "0")), len(self.cloud.console))
                return {
                    "kind": "compute#serialPortOutput", "contents": self.cloud.console[start:], "start": str(start),
                    "next": str(len(self.cloud.console)),
                }  # fmt: skip
            case ["GET", "zones", zone, "disks", name]:
                return self.cloud.read_disk(zone, name)
            case ["DELETE", "zones", zone, "disks", name]:
                return self.cloud.delete_disk(zone, name)
            case ["GET", "zones", zone, "operations"]:
                return self._page(call, "compute#operationList", self.cloud.list_operations(zone, filter), PAGE_SIZE)
            case ["GET", "zones", zone, "operations", name]:
                return self.cloud.read_operation(zone, name)
        raise Refused(404, "notFound", f"no such route: {call.method} {call.path}")

    def _page(self, call: Call, kind: str, items: list[Any], size: int) -> dict[str, Any]:
        start = int(call.query.get("pageToken") or 0)
        size = min(size, int(call.query.get("maxResults", size)))
        page: dict[str, Any] = {"kind": kind, "id": call.path, "items": items[start : start + size]}
        if start + size < len(items):
            page["nextPageToken"] = str(start + size)
        return page

    def _scoped(
        self, call: Call, name: str, plural: str, items: list[tuple[str, dict[str, Any]]], size: int
    ) -> dict[str, Any]:
        """A page of an aggregated list: every zone is in it, most of them with the warning that they have nothing."""
        page = self._page(call, f"compute#{name}AggregatedList", items, size)
        scopes: dict[str, Any] = {}
        for zone in stock.ZONES:
            here = [resource for where, resource in page["items"] if where == zone]
            nothing = {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope on this page."}
            scopes[f"zones/{zone}"] = {plural: here} if here else {"warning": nothing}
        return {**page, "items": scopes}

    def _catalog(self, call: Call, name: str, plural: str, by_zone: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        filter = call.query.get("filter", "")
        items = [(zone, item) for zone, found in by_zone.items() for item in found if matches(item, filter)]
        return self._scoped(call, name, plural, items, CATALOG_PAGE_SIZE)

    def _skus(self, call: Call) -> dict[str, Any]:
        start = int(call.query.get("pageToken") or 0)
        size = min(CATALOG_PAGE_SIZE, int(call.query["pageSize"]))
        page: dict[str, Any] = {"skus": self.skus[start : start + size], "nextPageToken": ""}
        if start + size < len(self.skus):
            page["nextPageToken"] = str(start + size)
        return page


def google_error(
    status: int, reason: str, message: str, headers: dict[str, str] | None = None, *, http: int | None = None
) -> Answer:
    """An error as Google writes it; `http` is the status, where that lies. A reason in capitals is an ErrorInfo's."""
    error: dict[str, Any] = {"code": status, "message": message}
    if reason.isupper():
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}
        error |= {"errors": [{"message": message, "domain": "global", "reason": "forbidden"}], "details": [info]}
    else:
        error["errors"] = [{"message": message, "domain": "global", "reason": reason}]
    return Answer(
        http or status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json", **(headers or {})}
    )


def _checked(answer: dict[str, Any]) -> bytes:
    """The answer as JSON, once the SDK's own message of its kind has a field for everything in it."""
    from google.cloud import compute_v1

    text = json.dumps(answer)
    if "kind" in answer:  # prices are of another API, which has no messages
        kind = answer["kind"].removeprefix("compute#")
        getattr(compute_v1, f"{kind[0].upper()}{kind[1:]}").from_json(text, ignore_unknown_fields=False)
    return text.encode()


def _quotas(left: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    return [{"metric": metric, "limit": limit, "usage": usage} for metric, (limit, usage) in left.items()]


def _image(project: str, name: str) -> dict[str, Any]:
    if name == "no-such-image":
        raise Refused(404, "notFound", f"The resource 'projects/{project}/global/images/{name}' was not found")
    link = f"{HOST}/projects/{project}/global/images/{name}-v20261101"
    return {"kind": "compute#image", "name": f"{name}-v20261101", "selfLink": link, "diskSizeGb": "10", "id": "3"}


def _operation(method: str, path: str, query: dict[str, str]) -> str:
    filter = query.get("filter", "")
    if path.startswith("/v1/services/"):
        return "verify" if query.get("pageSize") == "1" else "offers"
    rest = re.sub(r"^/compute/v1/projects/[^/]+/?", "", path)
    match method, *(rest.split("/") if rest else ()):
        case ["GET"]:
            return "verify"
        case ["GET", "regions"] | ["GET", "aggregated", "machineTypes" | "acceleratorTypes"]:
            return "offers"
        case ["GET", "aggregated", "instances"]:
            if "headrace-attempt" in filter:
                return "find"
            return "get" if filter.startswith("name =") else "list"
        case ["POST", "zones", _, "instances"]:
            return "create"
        case ["GET", "zones", _, "instances", _]:
            return "get"
        case ["DELETE", "zones", _, "instances", _]:
            return "delete"
        case ["GET", "zones", _, "instances", _, "serialPort"]:
            return "logs"
    return f"{method} {rest}"


@contextlib.contextmanager
def serve(public_key: str) -> Iterator[tuple[GcpServer, str]]:
    """A server that trusts a key (PEM), and its URL."""
    gcp = GcpServer(public_key)
    with serving(gcp) as url:
        yield gcp, url
