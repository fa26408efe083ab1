"""RunPod's REST v2, and the way to its GraphQL API, with the fault schedule between every call and its answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from providers.fake.admin import admin_routes
from providers.fake.cloud import Instance, Refused
from providers.fake.faults import Answer, Fault, Operation
from tests.providers.runpod_fake.account import (
    CPUS,
    GPUS,
    NO_CAPACITY,
    Account,
    CpuOnSale,
    GpuOnSale,
    PodDetails,
)
from tests.providers.runpod_fake.graphql import execute, operation_of

REFUSALS: dict[Answer, tuple[int, str, str]] = {
    Answer.INTERNAL: (500, "INTERNAL_SERVER_ERROR", "Something went wrong. Please try again later or contact support."),
    Answer.UNAVAILABLE: (503, "UNAVAILABLE", "upstream unavailable"),
    Answer.NO_CAPACITY: NO_CAPACITY,
    Answer.QUOTA: (400, "RUNPOD", "Renting this pod would exceed your spend limit of $80 per hour."),
    Answer.AUTH: (401, "UNAUTHENTICATED", "Unauthorized request, please check your API key."),
    Answer.PERMISSION: (403, "FORBIDDEN", "access denied"),
    Answer.BILLING: (402, "RUNPOD", "Your account balance is too low to rent this pod."),
    Answer.RATE_LIMIT: (429, "RATE_LIMITED", "rate limit exceeded for the minute window"),
    Answer.INVALID: (422, "BAD_USER_INPUT", "Request validation failed."),
    Answer.NOT_FOUND: (404, "NOT_FOUND", "pod not found"),
    Answer.DELETE_REFUSED: (409, "CONFLICT", "the pod cannot be terminated now"),
    Answer.ECHO: (400, "BAD_USER_INPUT", "cannot handle the request: "),
}
_TITLES = {400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found"}
_POLL_SECONDS = 0.02
JsonBody = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CreateGpu(_Strict):
    id: str
    count: int = Field(default=1, ge=1)
    minCudaVersion: str | None = Field(default=None, pattern=r"^\d+\.\d+$")


class CreateCpu(_Strict):
    id: str
    vcpuCount: int = Field(ge=2)


class CreatePod(_Strict):
    """`CreatePodRequest`, without the fields for templates and volumes."""

    name: str = Field(min_length=1)
    image: str
    args: str = ""
    disk: int = Field(default=50, ge=1)
    ports: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    registry: str | None = None
    gpu: CreateGpu | None = None
    cpu: CreateCpu | None = None
    cloud: Literal["SECURE", "COMMUNITY"] = "SECURE"
    dataCenterIds: list[str] = Field(default_factory=list)
    startSsh: bool = False


class CreateRegistry(_Strict):
    name: str = Field(min_length=1)
    username: str = Field(min_length=1)
    password: str = Field(min_length=1)


def create_app(account: Account) -> ASGIApp:
    api = _Api(account)
    routes = [
        Route("/v2/pods", api.list_pods, methods=["GET"]),
        Route("/v2/pods", api.create_pod, methods=["POST"]),
        Route("/v2/pods/{id}", api.get_pod, methods=["GET"]),
        Route("/v2/pods/{id}", api.delete_pod, methods=["DELETE"]),
        Route("/v2/pods/{id}/logs", api.logs),
        Route("/v2/registries", api.list_registries, methods=["GET"]),
        Route("/v2/registries", api.create_registry, methods=["POST"]),
        Route("/v2/registries/{id}", api.delete_registry, methods=["DELETE"]),
        Route("/v2/catalog/gpus", api.gpus),
        Route("/v2/catalog/cpus", api.cpus),
        Route("/graphql", api.graphql, methods=["POST"]),
        *admin_routes(account.cloud),
    ]
    return _exposing_the_transport(Starlette(routes=routes))


class _Api:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._cloud = account.cloud

    # Pods ---------------------------------------------------------------------------------------------------------

    async def list_pods(self, request: Request) -> Response:
        size = self._cloud.settings.page_size
        after = int(request.query_params.get("cursor") or 0)

        def act(fault: Fault) -> Response:
            rows: list[JsonBody] = []
            for number, instance in enumerate(list(self._cloud.instances()), 1):
                if number <= after or not self._cloud.sees(Operation.LIST, instance):
                    continue
                if len(rows) == size:
                    return _page("pods", rows, fault, str(number - 1))
                rows.append(self._account.pod_json(instance))
            return _page("pods", rows, fault, None)

        return await self._answer(request, Operation.LIST, {}, act)

    async def create_pod(self, request: Request) -> Response:
        body = await request.body()
        keys: dict[str, str | None] = {}

        def act(fault: Fault) -> Response:
            pod = _parsed(CreatePod, body)
            _check_args(pod.args)
            hardware_id, count = _hardware(pod)
            details = PodDetails(
                args=pod.args,
                disk=pod.disk,
                ports=pod.ports,
                env=pod.env,
                hardware_id=hardware_id,
                count=count,
                cloud=pod.cloud,
                data_center=pod.dataCenterIds[0] if pod.dataCenterIds else None,
                registry=pod.registry,
                cpu=pod.cpu is not None,
                cuda=pod.gpu and pod.gpu.minCudaVersion,
            )
            made = self._account.make_pod(pod.name, pod.image, details, fault)
            return JSONResponse(self._account.pod_json(made), 201)

        return await self._answer(request, Operation.CREATE, keys, act)

    async def get_pod(self, request: Request) -> Response:
        pod_id = request.path_params["id"]

        def act(fault: Fault) -> Response:
            return JSONResponse(self._account.pod_json(self._account.pod(pod_id, Operation.GET)))

        return await self._answer(request, Operation.GET, self._keys(pod_id), act)

    async def delete_pod(self, request: Request) -> Response:
        pod_id = request.path_params["id"]

        def act(fault: Fault) -> Response:
            instance = self._cloud.resources.get(pod_id)
            if not isinstance(instance, Instance) or instance.gone:
                raise Refused(404, "not_found", "pod not found")
            self._cloud.delete(instance, fault)
            return Response(status_code=204)

        return await self._answer(request, Operation.DELETE, self._keys(pod_id), act)

    async def logs(self, request: Request) -> Response:
        """Lines of one second share their id; a stream resumes with all lines of the id that it is given."""
        source, since = request.query_params.get("source"), request.headers.get("last-event-id", "")
        pod_id = request.path_params["id"]

        def events(instance: Instance) -> list[str]:
            found = []
            for index, (origin, line) in enumerate(self._account.log(instance)):
                at = (instance.created_at + timedelta(seconds=index // 3)).isoformat(timespec="seconds")
                if source in (None, origin) and at >= since:
                    data = json.dumps({"source": origin, "line": line, "ts": at})
                    found.append(f"id: {at}\ndata: {data}\n\n")
            return found

        async def stream(instance: Instance) -> AsyncIterator[str]:
            yield ": open\n\n"
            sent = 0
            while True:
                known = events(instance)
                for event in known[sent:]:
                    yield event
                sent = len(known)
                await asyncio.sleep(_POLL_SECONDS)

        def act(fault: Fault) -> Response:
            instance = self._account.pod(pod_id, Operation.LOGS)
            if fault.answer is not None:
                return Response("".join(events(instance)), media_type="text/event-stream")
            return StreamingResponse(stream(instance), media_type="text/event-stream")

        return await self._answer(request, Operation.LOGS, self._keys(pod_id), act)

    # Registries ---------------------------------------------------------------------------------------------------

    async def list_registries(self, request: Request) -> Response:
        return self._direct(request, lambda: _named(self._account))

    async def create_registry(self, request: Request) -> Response:
        body = await request.body()

        def act() -> Response:
            made = self._account.make_registry(_parsed(CreateRegistry, body).name)
            spoiled, self._account.registry_answer = self._account.registry_answer, None
            if spoiled is not None:
                raise Refused(*REFUSALS[spoiled])
            return JSONResponse({"id": made.id, "name": made.name}, 201)

        return self._direct(request, act)

    async def delete_registry(self, request: Request) -> Response:
        def act() -> Response:
            self._account.delete_registry(request.path_params["id"])
            return Response(status_code=204)

        return self._direct(request, act)

    # Catalog and GraphQL ------------------------------------------------------------------------------------------

    async def gpus(self, request: Request) -> Response:
        params = dict(request.query_params)

        def act(fault: Fault) -> Response:
            unknown = params.keys() - {"include", "product", "count", "cloud"}
            if unknown or params.get("include") != "AVAILABILITY" or params.get("product") != "POD":
                raise Refused(400, "bad_request", f"query parameters {sorted(params)}")
            rows = [_gpu_json(gpu, params["cloud"], int(params["count"])) for gpu in GPUS]
            if fault.drop_items:
                rows[-1].pop("price")
            return JSONResponse({"gpus": rows})

        return await self._answer(request, Operation.OFFERS, {}, act)

    async def cpus(self, request: Request) -> Response:
        params = dict(request.query_params)

        def act(fault: Fault) -> Response:
            count = int(params.get("vcpuCount", "2"))
            unknown = params.keys() - {"include", "product", "vcpuCount"}
            if unknown or params.get("include") != "AVAILABILITY" or params.get("product") != "POD":
                raise Refused(400, "bad_request", f"query parameters {sorted(params)}")
            rows = [_cpu_json(cpu, count) for cpu in CPUS]
            if fault.drop_items:
                rows[-1].pop("price")
            return JSONResponse({"cpus": rows})

        return await self._answer(request, Operation.OFFERS, {}, act)

    async def graphql(self, request: Request) -> Response:
        body = json.loads(await request.body())
        query, variables = body["query"], body.get("variables") or {}
        try:
            operation = operation_of(query)
        except Refused as refusal:
            return _graphql_refusal(refusal, Fault(operation=Operation.VERIFY))

        def act(fault: Fault) -> Response:
            data = execute(self._account, query, variables, fault)
            if fault.drop_items:
                data = {name: [] for name in data}
            return JSONResponse({"data": data})

        return await self._answer(request, operation, {}, act, refuse=_graphql_refusal)

    # Answers ------------------------------------------------------------------------------------------------------

    def _keys(self, pod_id: str) -> dict[str, str | None]:
        instance = self._cloud.resources.get(pod_id)
        return {"resource": pod_id, "attempt": instance.labels.get("attempt") if instance else None}

    def _direct(self, request: Request, act: Callable[[], Response]) -> Response:
        try:
            self._authenticate(request)
            return act()
        except Refused as refusal:
            return _refusal(refusal, Fault(operation=Operation.VERIFY))

    async def _answer(
        self,
        request: Request,
        operation: Operation,
        keys: dict[str, str | None],
        act: Callable[[Fault], Response],
        refuse: "Callable[[Refused, Fault], Response] | None" = None,
    ) -> Response:
        """Does what was asked, and spoils it as the schedule says. A client that hung up changes nothing."""
        refuse = refuse or _refusal
        body = await request.body()
        self._account.requests.append((request.method, request.url.path, json.loads(body) if body else None))
        call, fault = self._cloud.schedule.open_call(operation, keys, self._cloud.now())
        await asyncio.sleep(fault.delay_before_seconds)
        try:
            self._authenticate(request)
            if fault.answer is not None and fault.stage == "before":
                response = await _spoiled(fault.answer, fault, request, b"", refuse)
            else:
                response = act(fault)
                call.done = True
                if fault.answer is not None and fault.stage == "after":
                    response = await _spoiled(fault.answer, fault, request, bytes(response.body), refuse)
        except Refused as refusal:
            response = refuse(refusal, fault)
        await asyncio.sleep(fault.delay_after_seconds)
        call.status = 0 if isinstance(response, _Broken) else response.status_code
        return response

    def _authenticate(self, request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self._cloud.settings.api_key}":
            raise Refused(*REFUSALS[Answer.AUTH])


class _Broken(Response):
    """The connection breaks: at once, or in the middle of the body."""

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


async def _spoiled(
    answer: Answer, fault: Fault, request: Request, body: bytes, refuse: Callable[[Refused, Fault], Response]
) -> Response:
    logs = request.url.path.endswith("/logs")
    media_type = "text/event-stream" if logs and body else "application/json"
    # A 204 has nothing to cut.
    content = body or b'{"ok": true}'
    match answer:
        case Answer.RESET:
            return _Broken(b"")
        case Answer.CUT:
            return _Broken(content, media_type=media_type)
        case Answer.TRUNCATED:
            return Response(content[: len(content) // 2], fault.status or 200, media_type=media_type)
        case Answer.HTML_502:
            return HTMLResponse("<html><h1>502 Bad Gateway</h1></html>", fault.status or 502)
        case _:
            status, code, message = REFUSALS[answer]
            if answer is Answer.ECHO:
                message += f"{request.headers.get('authorization')} {(await request.body()).decode()}"
            return refuse(Refused(status, code, message), fault)


def _refusal(refusal: Refused, fault: Fault) -> Response:
    problem = {
        "title": _TITLES.get(refusal.status, "Error"),
        "status": refusal.status,
        "detail": refusal.message.ljust(fault.message_bytes, "!"),
        **refusal.extra,
    }
    return JSONResponse(
        problem, fault.status or refusal.status, _retry_after(fault), media_type="application/problem+json"
    )


def _graphql_refusal(refusal: Refused, fault: Fault) -> Response:
    error = {"message": refusal.message.ljust(fault.message_bytes, "!"), "extensions": {"code": refusal.code}}
    status = refusal.status if refusal.status in (401, 429, 503) else 200
    return JSONResponse({"errors": [error], "data": None}, fault.status or status, _retry_after(fault))


def _retry_after(fault: Fault) -> dict[str, str]:
    return {} if fault.retry_after_seconds is None else {"retry-after": f"{fault.retry_after_seconds:g}"}


def _parsed(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as invalid:
        problems = [f"$.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in invalid.errors()]
        raise Refused(422, "invalid", "Request validation failed.", errors=problems) from None


def _hardware(pod: CreatePod) -> tuple[str, int]:
    if (pod.gpu is None) == (pod.cpu is None):
        raise Refused(400, "bad_request", "exactly one of gpu and cpu must be set")
    return (pod.gpu.id, pod.gpu.count) if pod.gpu else (pod.cpu.id, pod.cpu.vcpuCount) if pod.cpu else ("", 0)


def _check_args(args: str) -> None:
    """As the backend decodes them: an object of two lists, or words of a shell."""
    decoded = json.loads(args) if args.startswith("{") else None
    if decoded is not None and (
        decoded.keys() - {"cmd", "entrypoint"} or not all(isinstance(v, list) for v in decoded.values())
    ):
        raise Refused(400, "bad_args", "args cannot be decoded")


def _page(name: str, rows: list[JsonBody], fault: Fault, following: str | None) -> Response:
    pagination = {"hasNextPage": following is not None, "nextCursor": following}
    if fault.drop_items:
        # Lists have no count: what their frames can show of a cut is that more was to come.
        rows, pagination = rows[: -fault.drop_items], {"hasNextPage": True, "nextCursor": None}
    return JSONResponse({name: rows, "pagination": pagination})


def _named(account: Account) -> Response:
    return JSONResponse({"registries": [{"id": r.id, "name": r.name} for r in account.registries()]})


def _cpu_json(cpu: CpuOnSale, count: int) -> JsonBody:
    stocked = count <= cpu.most and bool(cpu.data_centers)
    entry: JsonBody = {
        "id": cpu.id,
        "name": cpu.id,
        "group": f"Gen {cpu.id[3]}",
        "vcpu": {"min": cpu.least, "max": cpu.most},
        "ramGbPerVcpu": cpu.ram_gb_per_vcpu,
        "price": {"securePerVcpu": float(cpu.secure), "serverlessPerVcpu": float(cpu.secure)},
        "availability": "HIGH" if stocked else "NONE",
    }
    if stocked:
        entry["dataCenters"] = [{"id": d, "name": d, "availability": "HIGH"} for d in cpu.data_centers]
    return entry


def _gpu_json(gpu: GpuOnSale, cloud: str, count: int) -> JsonBody:
    stocked = count <= gpu.most and bool(gpu.secure if cloud == "SECURE" else gpu.community)
    entry: JsonBody = {
        "id": gpu.id,
        "name": gpu.id.removeprefix("NVIDIA "),
        "pool": None,
        "manufacturer": gpu.id.split()[0],
        "memory": gpu.memory_gb,
        "secure": bool(gpu.secure),
        "community": bool(gpu.community),
        "price": {"secure": float(gpu.secure), "community": float(gpu.community)},
        "maxCount": {"secure": gpu.most, "community": gpu.most if gpu.community else 0},
        "availability": "HIGH" if stocked and (gpu.data_centers or cloud == "COMMUNITY") else "NONE",
    }
    if stocked and gpu.data_centers:
        entry["dataCenters"] = [{"id": d, "name": d, "availability": "HIGH"} for d in gpu.data_centers]
    return entry


def _exposing_the_transport(app: ASGIApp) -> ASGIApp:
    """For answers that break the connection: uvicorn's `send` is a method of the object that holds its transport."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["transport"] = send.__self__.transport  # type: ignore[attr-defined]
        await app(scope, receive, send)

    return wrapped
