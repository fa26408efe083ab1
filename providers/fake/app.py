"""The cloud's HTTP API, as the adapter sees it, with the fault schedule between every call and its answer.

    GET    /v1/account                      who the key is
    GET    /v1/offers                       what can be had now
    POST   /v1/instances                    name, labels, offer_id, image, ports, user_data
    GET    /v1/resources?owner=&attempt=    instances and sub-resources, in pages; `count` is the page's length
    GET    /v1/resources/{id}
    GET    /v1/resources/{id}/console?cursor=
    DELETE /v1/resources/{id}

Every refusal is `{"error": {"code", "message", ...}}`.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from providers.fake.admin import admin_routes
from providers.fake.cloud import Cloud, CloudOffer, Instance, Refused, Resource
from providers.fake.faults import REFUSALS, Answer, Fault, Operation

JsonBody = dict[str, Any]
Action = Callable[[Fault], JsonBody]


def create_app(cloud: Cloud) -> ASGIApp:
    """The public and the admin API of one cloud."""
    api = _Api(cloud)
    routes = [
        Route("/v1/account", api.account),
        Route("/v1/offers", api.offers),
        Route("/v1/instances", api.create, methods=["POST"]),
        Route("/v1/resources", api.list_resources),
        Route("/v1/resources/{id}", api.get, methods=["GET"]),
        Route("/v1/resources/{id}", api.delete, methods=["DELETE"]),
        Route("/v1/resources/{id}/console", api.console),
        *admin_routes(cloud),
    ]
    return _exposing_the_transport(Starlette(routes=routes))


class _Api:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    async def account(self, request: Request) -> Response:
        return await self._answer(request, Operation.VERIFY, {}, lambda fault: {"account": "fake"})

    async def offers(self, request: Request) -> Response:
        def act(fault: Fault) -> JsonBody:
            return _page([_offer_json(self._cloud, offer) for offer in self._cloud.offers.values()], fault, None)

        return await self._answer(request, Operation.OFFERS, {}, act)

    async def create(self, request: Request) -> Response:
        body = await request.json()
        labels: dict[str, str] = body["labels"]

        def act(fault: Fault) -> JsonBody:
            details = {"image": body["image"], "ports": body["ports"], "bootstrap": body["user_data"]}
            instance = self._cloud.create(body["name"], labels, body["offer_id"], details, fault)
            return {"resource": _resource_json(instance)}

        keys = {"attempt": labels.get("attempt"), "job": labels.get("job"), "offer": body["offer_id"]}
        return await self._answer(request, Operation.CREATE, keys, act, status=201)

    async def list_resources(self, request: Request) -> Response:
        attempt, owner = request.query_params.get("attempt"), request.query_params.get("owner")
        operation = Operation.FIND if attempt else Operation.LIST
        after = int(request.query_params.get("cursor") or 0)

        def act(fault: Fault) -> JsonBody:
            rows: list[JsonBody] = []
            following: str | None = None
            for resource in list(self._cloud.resources.values()):
                number = int(resource.id.rpartition("-")[2])
                if number <= after or resource.labels.get("owner") != owner:
                    continue
                if attempt and resource.labels.get("attempt") != attempt:
                    continue
                if len(rows) == self._cloud.settings.page_size:
                    following = str(int(rows[-1]["id"].rpartition("-")[2]))
                    break
                if self._cloud.sees(operation, resource):
                    rows.append(_resource_json(resource))
            return _page(rows, fault, following)

        return await self._answer(request, operation, {"attempt": attempt}, act)

    async def get(self, request: Request) -> Response:
        return await self._answer(
            request, Operation.GET, self._keys(request),
            lambda fault: {"resource": _resource_json(self._resource(request, Operation.GET))},
        )  # fmt: skip

    async def delete(self, request: Request) -> Response:
        def act(fault: Fault) -> JsonBody:
            resource = self._cloud.resources.get(request.path_params["id"])
            if resource is None or resource.gone:
                raise Refused(*REFUSALS[Answer.NOT_FOUND])
            self._cloud.delete(resource, fault)
            return {"deleting": resource.id}

        return await self._answer(request, Operation.DELETE, self._keys(request), act, status=202)

    async def console(self, request: Request) -> Response:
        def act(fault: Fault) -> JsonBody:
            resource = self._resource(request, Operation.LOGS)
            lines = resource.console if isinstance(resource, Instance) else []
            start = int(request.query_params.get("cursor") or 0)
            return {"text": "".join(line + "\n" for line in lines[start:]), "cursor": str(len(lines))}

        return await self._answer(request, Operation.LOGS, self._keys(request), act)

    def _keys(self, request: Request) -> dict[str, str | None]:
        resource = self._cloud.resources.get(request.path_params["id"])
        keys: dict[str, str | None] = {"resource": request.path_params["id"]}
        if resource is not None:
            keys |= {name: resource.labels.get(name) for name in ("attempt", "job")}
        if isinstance(resource, Instance):
            keys["offer"] = resource.offer.id
        return keys

    def _resource(self, request: Request, operation: Operation) -> Resource:
        resource = self._cloud.resources.get(request.path_params["id"])
        if resource is None or not self._cloud.sees(operation, resource):
            raise Refused(*REFUSALS[Answer.NOT_FOUND])
        return resource

    async def _answer(
        self, request: Request, operation: Operation, keys: dict[str, str | None], act: Action, status: int = 200
    ) -> Response:
        """Does what was asked, and spoils it as the schedule says. A client that hung up changes nothing."""
        call, fault = self._cloud.schedule.open_call(operation, keys, self._cloud.now())
        await asyncio.sleep(fault.delay_before_seconds)
        try:
            self._authenticate(request)
            if fault.answer is not None and fault.stage == "before":
                response = await _spoiled(fault.answer, fault, request, {})
            else:
                body = act(fault)
                call.done = True
                if fault.answer is not None and fault.stage == "after":
                    response = await _spoiled(fault.answer, fault, request, body)
                else:
                    response = JSONResponse(body, fault.status or status)
        except Refused as refusal:
            response = _refusal(refusal, fault)
        await asyncio.sleep(fault.delay_after_seconds)
        call.status = 0 if isinstance(response, _Broken) else response.status_code
        return response

    def _authenticate(self, request: Request) -> None:
        wanted = self._cloud.settings.api_key
        if wanted is not None and request.headers.get("authorization") != f"Bearer {wanted}":
            raise Refused(*REFUSALS[Answer.AUTH])


class _Broken(Response):
    """The connection breaks: at once, or in the middle of the body."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.body:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            half = bytes(self.body[: len(self.body) // 2])
            await send({"type": "http.response.body", "body": half, "more_body": True})
            scope["transport"].close()
        else:
            scope["transport"].abort()
        while (await receive())["type"] != "http.disconnect":
            pass


async def _spoiled(answer: Answer, fault: Fault, request: Request, body: JsonBody) -> Response:
    content = json.dumps(body or {"ok": True})
    match answer:
        case Answer.RESET:
            return _Broken(b"")
        case Answer.CUT:
            return _Broken(content.encode())
        case Answer.TRUNCATED:
            return Response(content[: len(content) // 2], fault.status or 200, media_type="application/json")
        case Answer.HTML_502:
            return HTMLResponse("<html><h1>502 Bad Gateway</h1></html>", fault.status or 502)
        case _:
            status, code, message = REFUSALS[answer]
            if answer is Answer.ECHO:
                message += f"{request.headers.get('authorization')} {(await request.body()).decode()}"
            return _refusal(Refused(status, code, message), fault)


def _refusal(refusal: Refused, fault: Fault) -> Response:
    message = refusal.message.ljust(fault.message_bytes, "!")
    headers = {}
    if fault.retry_after_seconds is not None:
        headers["retry-after"] = f"{fault.retry_after_seconds:g}"
    error = {"code": refusal.code, "message": message, **refusal.extra}
    return JSONResponse({"error": error}, fault.status or refusal.status, headers)


def _page(rows: list[JsonBody], fault: Fault, following: str | None) -> JsonBody:
    kept = rows[: len(rows) - fault.drop_items] if fault.drop_items else rows
    return {"items": kept, "count": len(rows), "next": following}


def _offer_json(cloud: Cloud, offer: CloudOffer) -> JsonBody:
    free = offer.most is None or sum(i.offer.id == offer.id and not i.gone for i in cloud.instances()) < offer.most
    return {**offer.model_dump(mode="json", exclude={"capacity", "sub_resources"}), "available": free}


def _resource_json(resource: Resource) -> JsonBody:
    shown: JsonBody = {
        "id": resource.id,
        "type": resource.type,
        "name": resource.name,
        "labels": resource.labels,
        "created_at": resource.created_at.isoformat(),
        "holder": resource.holder,
    }
    if isinstance(resource, Instance):
        running = resource.status == "running"
        shown |= {
            "status": resource.shown_status or resource.status,
            "region": resource.offer.region,
            "price_usd_hr": str(resource.prices[-1][1]),
            "failure_code": resource.failure_code,
            "message": resource.message,
            "exit_code": resource.exit_code,
            "holds": resource.holds,
            "endpoints": [{**port, "host": "127.0.0.1"} for port in resource.ports] if running else [],
        }
    return shown


def _exposing_the_transport(app: ASGIApp) -> ASGIApp:
    """Puts the connection's transport into the scope, for answers that break the connection. ASGI has no word for
    it; uvicorn's `send` is a method of the object that holds it."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["transport"] = send.__self__.transport  # type: ignore[attr-defined]
        await app(scope, receive, send)

    return wrapped
