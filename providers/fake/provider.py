"""The adapter to the fake cloud: written as one to a real cloud of its kind would be.

What it must live with: creates that repeat may or may not make a second instance, reads lag behind, answers get lost,
and sub-resources outlive a create that was refused.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

import httpx
from pydantic import SecretStr

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    BootstrapFailed,
    ImagePullFailed,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
)
from domain.ids import AttemptId
from domain.masking import mask
from domain.money import PricingModel
from domain.offers import Capabilities, Offer
from domain.spec import Interconnect
from domain.terms import BillingModel, Stopped
from providers.base import (
    CredentialReport,
    Handle,
    InstanceSpec,
    InstanceView,
    LogPage,
    OfferQuery,
    Progress,
    ProviderContext,
    ProviderState,
    PublishedPort,
    TerminateState,
)
from providers.fake.answers import (
    AccountAnswer,
    Answer,
    ConsoleAnswer,
    DeleteAnswer,
    Item,
    ItemAnswer,
    ItemPage,
    NameInUse,
    OfferItem,
    OfferPage,
    read_answer,
)

INSTANCE = "instance"
TERMINATED = "terminated"
"""A deleted instance that the cloud still shows for a while."""

# A status that is not here is `pending`: still billing, never gone.
_STATES: Mapping[str, ProviderState] = {
    "pending": ProviderState.PENDING,
    "starting": ProviderState.STARTING,
    "running": ProviderState.RUNNING,
    "interrupted": ProviderState.INTERRUPTED,
    "exited": ProviderState.EXITED,
    "failed": ProviderState.FAILED,
    "stopping": ProviderState.STOPPING,
    TERMINATED: ProviderState.GONE,
}
_MESSAGE_CHARACTERS = 2_000
_PROGRESS_SECONDS = 10


class FakeProvider:
    """Options of the context: `api_key` (text or `SecretStr`), `timeout_seconds` of an answer (default 30),
    `looks` (how many reads in a row must miss something before it counts as absent, default 3), `look_pause_seconds`
    (between those reads, default 0.05), `visibility_lag_seconds` (how long reads may lag behind a create, default 0),
    `boot_seconds` (from create to a running machine at most, default 1,800)."""

    name = "fake"
    slots: int | None = None
    capabilities = Capabilities(http_ports=True, tcp_ports=True, ssh=True, private_image=True, logs_api=True)

    def __init__(
        self, context: ProviderContext, url: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        options = context.options
        key = options.get("api_key", "fake-key")
        self._key: str = key.get_secret_value() if isinstance(key, SecretStr) else key
        self._context = context
        self._looks: int = options.get("looks", 3)
        self._look_pause_seconds: float = options.get("look_pause_seconds", 0.05)
        self._visibility_lag_seconds: float = options.get("visibility_lag_seconds", 0)
        self._boot_seconds: float = options.get("boot_seconds", 1_800)
        self._client = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=httpx.Timeout(options.get("timeout_seconds", 30), connect=10),
            # Plain HTTP on this machine: reading the certificates would only cost time.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
        )
        self._creating: WeakValueDictionary[AttemptId, asyncio.Lock] = WeakValueDictionary()
        self._uncertain: set[AttemptId] = set()

    async def verify(self) -> CredentialReport:
        try:
            await self._call("GET", "/v1/account", AccountAnswer, "verify")
        except AuthError as error:
            return CredentialReport(status="auth", message=error.message)
        except (PermissionDenied, BillingBlocked) as error:
            return CredentialReport(status="permission", message=error.message)
        except ProviderError as error:
            return CredentialReport(status="unreachable", message=error.message)
        return CredentialReport(status="ok")

    async def offers(self, query: OfferQuery) -> list[Offer]:
        page = await self._call("GET", "/v1/offers", OfferPage, "offers")
        if len(page.items) != page.count:
            raise Ambiguous(f"offers: {page.count} announced, {len(page.items)} received")
        now = datetime.now(UTC)
        return [self._offer(item, now) for item in page.items if _wanted(item, query)]

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        # One at a time for an attempt, and a look before each: the cloud itself may not dedupe.
        lock = self._creating.setdefault(spec.attempt_id, asyncio.Lock())
        async with lock:
            existing = await self._look_up(spec.attempt_id, settled=spec.attempt_id in self._uncertain)
            if existing:
                return _handle(existing[0])
            what = f"create {spec.attempt_id}"
            secrets = _secrets(spec)
            try:
                answer = await self._call(
                    "POST", "/v1/instances", ItemAnswer, what, json=_create_body(spec, offer), secrets=secrets
                )
            except NameInUse as error:
                # The instance of an earlier create, whose answer was lost and which reads may not show yet.
                self._uncertain.add(spec.attempt_id)
                named = Handle(provider_id=error.resource_id, resource_type=INSTANCE, data={"attempt": spec.attempt_id})
                item = await self._item(named, what)
                if item is None:
                    raise Ambiguous(
                        f"{what}: its name is in use by {error.resource_id}, which is not visible"
                    ) from None
                return _handle(item)
            except Ambiguous:
                self._uncertain.add(spec.attempt_id)
                raise
            return _handle(answer.resource)

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        deadline = time.monotonic() + self._boot_seconds
        pause, shown, shown_at = self._look_pause_seconds, "", 0.0
        while True:
            view = await self.get(handle)
            if view is None or view.state is ProviderState.GONE:
                raise ProviderNotFound(f"provision {spec.attempt_id}: {handle.provider_id} disappeared while it booted")
            if view.state is ProviderState.INTERRUPTED:
                raise ProviderNotFound(f"provision {spec.attempt_id}: {handle.provider_id} was interrupted")
            if view.state is ProviderState.FAILED:
                kind = (
                    ImagePullFailed if view.handle.data.get("failure_code") == "image_pull_failed" else BootstrapFailed
                )
                raise kind(f"provision {spec.attempt_id}: {mask(view.message, self._all_secrets(spec))}")
            if view.state != shown or time.monotonic() - shown_at > _PROGRESS_SECONDS:
                await progress(f"{handle.provider_id} is {'still ' if view.state == shown else ''}{view.state}")
                shown, shown_at = view.state, time.monotonic()
            if view.state not in (ProviderState.PENDING, ProviderState.STARTING):
                return view.handle
            if time.monotonic() > deadline:
                raise BootstrapFailed(
                    f"provision {spec.attempt_id}: {handle.provider_id} still {shown} after {self._boot_seconds:g} s"
                )
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        # Not its sub-resources: what is found is adopted as the instance. Those left alone appear in `list_owned`.
        return [_handle(item) for item in await self._look_up(attempt_id, settled=True)]

    async def get(self, handle: Handle) -> InstanceView | None:
        item = await self._item(handle, f"get {handle.provider_id}")
        return None if item is None else _view(item)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        what = f"logs {handle.provider_id}"
        path = f"/v1/resources/{handle.provider_id}/console"
        try:
            page = await self._call("GET", path, ConsoleAnswer, what, params={"cursor": cursor} if cursor else None)
        except ProviderNotFound:
            return LogPage("", cursor)
        return LogPage(page.text, page.cursor)

    async def terminate(self, handle: Handle) -> TerminateState:
        # The instance first: it costs most. A sub-resource of one that still lives is marked, and goes with it.
        for provider_id in (handle.provider_id, *handle.data.get("holds", [])):
            try:
                await self._call("DELETE", f"/v1/resources/{provider_id}", DeleteAnswer, f"delete {provider_id}")
            except ProviderNotFound:
                continue
        # Whatever the delete answered, only what reads say counts: some answers come too early, some are wrong.
        item = await self._item(handle, f"delete {handle.provider_id}")
        return TerminateState.GONE if item is None or item.status == TERMINATED else TerminateState.REQUESTED

    async def list_owned(self) -> list[InstanceView]:
        return [_view(item) for item in _standing_alone(await self._list({}, "list"))]

    async def close(self) -> None:
        await self._client.aclose()

    async def _look_up(self, attempt_id: AttemptId, *, settled: bool) -> list[Item]:
        """The attempt's instances. `settled`: empty only after enough empty looks."""
        started = time.monotonic()
        looks = 0
        while True:
            known = await self._list({"attempt": attempt_id}, f"find {attempt_id}")
            items = [item for item in known if item.type == INSTANCE and item.status != TERMINATED]
            looks += 1
            waited = time.monotonic() - started >= self._visibility_lag_seconds
            if items or not settled or (looks >= self._looks and waited):
                return items
            await asyncio.sleep(self._look_pause_seconds)

    async def _item(self, handle: Handle, what: str) -> Item | None:
        """None after enough misses in a row: by its id, and last among all that the attempt has."""
        for _ in range(self._looks - 1):
            try:
                return (await self._call("GET", f"/v1/resources/{handle.provider_id}", ItemAnswer, what)).resource
            except ProviderNotFound:
                await asyncio.sleep(self._look_pause_seconds)
        narrowed = {"attempt": handle.data["attempt"]} if handle.data.get("attempt") else {}
        return next((item for item in await self._list(narrowed, what) if item.id == handle.provider_id), None)

    async def _list(self, narrowed: dict[str, str], what: str) -> list[Item]:
        items: list[Item] = []
        cursor: str | None = None
        while True:
            query = {"owner": self._context.owner_id, **narrowed, **({"cursor": cursor} if cursor else {})}
            page = await self._call("GET", "/v1/resources", ItemPage, what, params=query)
            if len(page.items) != page.count:
                raise Ambiguous(f"{what}: a page of {page.count} items came with {len(page.items)}")
            items += page.items
            if page.next is None:
                return items
            if page.next == cursor:
                raise Ambiguous(f"{what}: the same page came twice")
            cursor = page.next

    async def _call(
        self, method: str, path: str, model: type[Answer], what: str, *, params: Mapping[str, str] | None = None,
        json: Any = None, secrets: tuple[str, ...] = (),
    ) -> Answer:  # fmt: skip
        try:
            response = await self._client.request(method, path, params=params, json=json)
        except httpx.HTTPError as error:
            # Time-outs, resets, refused connections, broken framing: nobody knows what the other side did.
            raise Ambiguous(f"{what}: {type(error).__name__}: no answer") from error
        return read_answer(response, model, what, (self._key, *secrets))

    def _all_secrets(self, spec: InstanceSpec) -> tuple[str, ...]:
        return (self._key, *_secrets(spec))

    def _offer(self, item: OfferItem, now: datetime) -> Offer:
        seconds = item.unit_seconds == PricingModel.INSTANCE_SECONDS.unit_seconds
        model = PricingModel.INSTANCE_SECONDS if seconds else PricingModel.INSTANCE_MINUTES
        return Offer(
            id=item.id,
            provider=self.name,
            connection_id=self._context.connection_id,
            provider_sku=item.id,
            accelerator=item.accelerator,
            gpu_count=item.gpu_count,
            gpu_memory_gb=item.gpu_memory_gb,
            vcpus=item.vcpus,
            memory_gb=item.memory_gb,
            ephemeral_disk_gb=item.disk_gb,
            interconnect=Interconnect(item.interconnect) if item.interconnect else None,
            region=item.region,
            zone=item.zone,
            exclusive=item.exclusive,
            price_usd_hr=item.price_usd_hr,
            price_source="api",
            pricing_model=model,
            billing=BillingModel(
                pricing_model=model,
                minimum_seconds=item.minimum_seconds,
                stopped=Stopped.NOTHING if item.stopped_usd_hr is None else Stopped.STORAGE,
                boot_charged=item.boot_charged,
            ),
            stopped_usd_hr=item.stopped_usd_hr,
            teardown_seconds=item.teardown_seconds,
            spot=item.spot,
            available=item.available,
            observed_at=now,
        )


def _wanted(item: OfferItem, query: OfferQuery) -> bool:
    return query.accelerator in (None, item.accelerator) and query.gpu_count in (None, item.gpu_count)


def _create_body(spec: InstanceSpec, offer: Offer) -> dict[str, Any]:
    """The same bytes on every retry. The token travels as user data, which becomes the machine's environment."""
    reach = {"socket": spec.agent.socket} if spec.agent.socket else {"url": spec.agent.url}
    return {
        "name": f"{spec.owner_id}-{spec.attempt_id}",
        "labels": {"owner": spec.owner_id, "attempt": spec.attempt_id, "job": spec.job_id, "org": spec.org_id},
        "offer_id": offer.id,
        "image": spec.image,
        "ports": [{"name": p.name, "protocol": p.protocol, "port": p.container_port} for p in spec.ports],
        "registry": _registry(spec),
        "user_data": {**reach, "token": spec.agent.token.get_secret_value()},
    }


def _registry(spec: InstanceSpec) -> dict[str, str] | None:
    if spec.registry is None:
        return None
    return {"username": spec.registry.username, "password": spec.registry.password.get_secret_value()}


def _secrets(spec: InstanceSpec) -> tuple[str, ...]:
    password = (spec.registry.password.get_secret_value(),) if spec.registry else ()
    return (spec.agent.token.get_secret_value(), *password)


def _standing_alone(items: list[Item]) -> list[Item]:
    """Without the sub-resources of instances that are there too: those go with their instance."""
    present = {item.id for item in items if item.type == INSTANCE}
    return [item for item in items if item.holder not in present]


def _handle(item: Item) -> Handle:
    data: dict[str, Any] = {"holds": item.holds, "attempt": item.labels.get("attempt")}
    if item.failure_code:
        data["failure_code"] = item.failure_code
    return Handle(
        provider_id=item.id,
        resource_type=item.type,
        region=item.region,
        price_usd_hr=item.price_usd_hr,
        created_at=item.created_at,
        data=data,
    )


def _view(item: Item) -> InstanceView:
    attempt = item.labels.get("attempt")
    return InstanceView(
        attempt_id=AttemptId(attempt) if attempt else None,
        handle=_handle(item),
        state=_STATES.get(item.status or "", ProviderState.PENDING),
        exit_code=item.exit_code,
        message=item.message[:_MESSAGE_CHARACTERS],
        created_at=item.created_at,
        price_usd_hr=item.price_usd_hr,
        endpoints=tuple(PublishedPort(e.name, e.protocol, e.host, e.port) for e in item.endpoints),
    )
