"""The adapter to RunPod.

What it must live with: no idempotency key (a pod is found again by its name), a create that answers 500 and made a pod
all the same, commands that are started again when they end, and a limit of calls per minute.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from domain.clock import Clock, utc_now
from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    BootstrapFailed,
    ImagePullFailed,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    RateLimited,
)
from domain.ids import AttemptId
from domain.masking import mask
from domain.offers import Capabilities, Offer
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
    TerminateState,
)
from providers.runpod.account import account_id
from providers.runpod.answers import NoContent, Pod, PodPage, Registry, RentedPod, validated
from providers.runpod.catalog import Catalog, Cloud
from providers.runpod.client import RunPodClient
from providers.runpod.credentials import RunPodCredentials, RunPodEndpoints
from providers.runpod.logs import SYSTEM, Patience, read_page
from providers.runpod.pods import (
    POD,
    REGISTRY,
    RENT_SPOT,
    TERMINATED,
    attempt_of,
    create_body,
    handle_data,
    name_of,
    pod_handle,
    pod_view,
    price_of,
    registry_view,
    spot_input,
)

_PROGRESS_SECONDS = 30
_PROGRESS_LINES = 20
_LINE_CHARACTERS = 300
_DIAGNOSIS_LINES = 15
# What the host's engine says in the pod's system log when the image is at fault; the pod itself only stays `STARTING`.
_IMAGE_AT_FAULT = re.compile(
    r"manifest unknown|manifest for .{1,300} not found|pull access denied|repository does not exist|"
    r"unauthorized: |no matching manifest|invalid reference format|no space left on device",
    re.IGNORECASE,
)
_START_AT_FAULT = re.compile(r"executable file not found|oci runtime create failed|exec format error", re.IGNORECASE)


class RunPodProvider:
    """Options of the context: `timeout_seconds` of an answer (default 30), `offers_seconds` (for how long an answer
    about offers serves again, default 10), `looks` (how many reads in a row must miss something before it counts as
    absent, default 3), `look_pause_seconds` (between those reads, default 1), `visibility_lag_seconds` (how long lists
    may lag behind a create, default 10), `poll_seconds` (how old the list of pods may be by which boots are followed,
    default 5), `log_after_seconds` (from when on the log of a boot is read, and how often, default 20),
    `log_idle_seconds` (a silence that ends a page of a log, default 2), `log_page_seconds` (how long a page may take,
    default 10), `boot_seconds` (from create to a running container at most, default 1,800)."""

    name = "runpod"
    slots: int | None = None
    capabilities = Capabilities(
        http_ports=True,
        tcp_ports=True,
        ssh=True,
        private_image=True,
        bundles_cpu_with_gpu=True,
        logs_api=True,
        restarts_finished=True,
    )

    def __init__(
        self,
        context: ProviderContext,
        credentials: RunPodCredentials,
        endpoints: RunPodEndpoints | None = None,
        *,
        clock: Clock = utc_now,
    ) -> None:
        options = context.options
        self._context = context
        self._credentials = credentials
        self._endpoints = endpoints or RunPodEndpoints()
        self._timeout_seconds: float = options.get("timeout_seconds", 30)
        self._looks: int = options.get("looks", 3)
        self._look_pause_seconds: float = options.get("look_pause_seconds", 1)
        self._visibility_lag_seconds: float = options.get("visibility_lag_seconds", 10)
        self._poll_seconds: float = options.get("poll_seconds", 5)
        self._log_after_seconds: float = options.get("log_after_seconds", 20)
        self._log_patience = Patience(options.get("log_idle_seconds", 2), options.get("log_page_seconds", 10))
        self._boot_seconds: float = options.get("boot_seconds", 1_800)
        self._client = RunPodClient(credentials, self._endpoints, self._timeout_seconds)
        clouds = (Cloud.SECURE, Cloud.COMMUNITY) if credentials.include_community else (Cloud.SECURE,)
        self._catalog = Catalog(
            self._client, clouds, self.name, context.connection_id,
            fresh_seconds=options.get("offers_seconds", 10), clock=clock,
        )  # fmt: skip
        self._creating: WeakValueDictionary[AttemptId, asyncio.Lock] = WeakValueDictionary()
        self._uncertain: set[AttemptId] = set()
        self._polling = asyncio.Lock()
        self._polled: tuple[float, dict[str, Pod]] = (float("-inf"), {})

    # verify, offers -----------------------------------------------------------------------------------------------

    async def verify(self) -> CredentialReport:
        key, url = self._credentials.api_key.get_secret_value(), self._endpoints.graphql
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.to_thread(account_id, key, url)
            # A key is scoped: this one may know its account and not its pods.
            await self._client.rest("GET", "/pods", PodPage, "verify")
        except AuthError as error:
            return CredentialReport(status="auth", message=error.message)
        except (PermissionDenied, BillingBlocked) as error:
            return CredentialReport(status="permission", message=error.message)
        except ProviderError as error:
            return CredentialReport(status="unreachable", message=error.message)
        except TimeoutError:
            return CredentialReport(status="unreachable", message=f"no answer within {self._timeout_seconds:g} s")
        except ImportError as error:
            return CredentialReport(status="unreachable", message=f"the `runpod` package is not installed: {error}")
        return CredentialReport(status="ok")

    async def offers(self, query: OfferQuery) -> list[Offer]:
        return await self._catalog.offers(query)

    # create, find -------------------------------------------------------------------------------------------------

    async def create(self, spec: InstanceSpec, offer: Offer) -> Handle:
        # One at a time for an attempt, and a look before each: nothing here makes a create unique.
        lock = self._creating.setdefault(spec.attempt_id, asyncio.Lock())
        async with lock:
            existing = await self._look_up(spec.attempt_id, settled=spec.attempt_id in self._uncertain)
            if existing:
                return pod_handle(existing[0], self._context.owner_id, handle_data(spec, existing[0].registry))
            # What cannot be asked for is refused before anything is made.
            cuda = self._credentials.min_cuda_version
            create_body(spec, offer, None, cuda)
            registry_id = await self._registry(spec)
            body = create_body(spec, offer, registry_id, cuda)
            try:
                handle = await (self._rent_spot if offer.spot else self._rent)(spec, offer, body)
            except Ambiguous:
                self._uncertain.add(spec.attempt_id)
                raise
            except ProviderError:
                if registry_id is not None:
                    await self._forget_registry(registry_id)
                raise
            self._polled = (float("-inf"), {})
            return handle

    async def find(self, attempt_id: AttemptId) -> list[Handle]:
        # Not its credential: what is found is adopted as the instance. One left alone appears in `list_owned`.
        return [pod_handle(pod, self._context.owner_id) for pod in await self._look_up(attempt_id, settled=True)]

    async def _rent(self, spec: InstanceSpec, offer: Offer, body: Mapping[str, Any]) -> Handle:
        what, secrets = f"create {spec.attempt_id}", _secrets(spec)
        pod = await self._client.rest("POST", "/pods", Pod, what, body=body, secrets=secrets)
        return pod_handle(pod, self._context.owner_id, handle_data(spec, body.get("registry")))

    async def _rent_spot(self, spec: InstanceSpec, offer: Offer, body: Mapping[str, Any]) -> Handle:
        what, variables = f"create {spec.attempt_id}", {"input": spot_input(body, offer)}
        data = await self._client.graphql(RENT_SPOT, variables, what, secrets=_secrets(spec))
        rented = validated(data.get("podRentInterruptable"), RentedPod, what)
        return Handle(
            provider_id=rented.id,
            resource_type=POD,
            price_usd_hr=price_of(rented.cost),
            data=handle_data(spec, body.get("registry")),
        )

    async def _registry(self, spec: InstanceSpec) -> str | None:
        """The id of the attempt's credential, made where there is none; None for a public image."""
        if spec.registry is None:
            return None
        what, name = f"create {spec.attempt_id}", name_of(spec.owner_id, spec.attempt_id)
        for known in await self._client.registries(what):
            if known.name == name:
                return known.id
        login = {
            "name": name,
            "username": spec.registry.username,
            "password": spec.registry.password.get_secret_value(),
        }
        if not all(login.values()):
            raise ProviderRejected(f"{what}: RunPod stores no registry credential with an empty user name or password")
        made = await self._client.rest("POST", "/registries", Registry, what, body=login, secrets=_secrets(spec))
        return made.id

    async def _look_up(self, attempt_id: AttemptId, *, settled: bool) -> list[Pod]:
        """The attempt's pods. `settled`: empty only after enough empty looks."""
        name = name_of(self._context.owner_id, attempt_id)
        started = time.monotonic()
        looks = 0
        while True:
            pods = await self._client.pods(f"find {attempt_id}")
            found = [pod for pod in pods if pod.name == name and pod.status != TERMINATED]
            looks += 1
            waited = time.monotonic() - started >= self._visibility_lag_seconds
            if found or not settled or (looks >= self._looks and waited):
                return found
            await asyncio.sleep(self._look_pause_seconds)

    # provision ----------------------------------------------------------------------------------------------------

    async def provision(self, handle: Handle, spec: InstanceSpec, progress: Progress) -> Handle:
        known = {**handle.data, **handle_data(spec, handle.data.get("registry"))}
        handle = handle.model_copy(update={"data": known})
        boot = _Boot(self, handle, spec, progress)
        deadline = time.monotonic() + self._boot_seconds
        while True:
            try:
                view = await self._boot_view(handle)
                if view is None or view.state is ProviderState.GONE:
                    raise ProviderNotFound(f"provision {spec.attempt_id}: {handle.provider_id} disappeared in its boot")
                if view.state is ProviderState.INTERRUPTED:
                    raise ProviderNotFound(f"provision {spec.attempt_id}: {handle.provider_id}: {view.message}")
                if view.state not in (ProviderState.PENDING, ProviderState.STARTING, ProviderState.FAILED):
                    return view.handle
                await boot.follow(view)
                pause = self._poll_seconds
            except RateLimited as limited:
                pause = max(self._poll_seconds, limited.retry_after_seconds or 0)
            if time.monotonic() > deadline:
                raise BootstrapFailed(
                    f"provision {spec.attempt_id}: {handle.provider_id} does not run after {self._boot_seconds:g} s"
                )
            await asyncio.sleep(pause)

    async def _boot_view(self, handle: Handle) -> InstanceView | None:
        """By the list of pods that all boots share: one call for all of them. What it lacks is asked for by its id."""
        async with self._polling:
            polled_at, pods = self._polled
            if time.monotonic() - polled_at >= self._poll_seconds:
                pods = {pod.id: pod for pod in await self._client.pods("provision")}
                self._polled = (time.monotonic(), pods)
        pod = pods.get(handle.provider_id)
        return await self.get(handle) if pod is None else self._view(pod, handle)

    async def boot_log(self, handle: Handle, cursor: str | None) -> LogPage:
        """What the host says of the boot: pulls, starts and why they fail."""
        return await read_page(self._client, handle.provider_id, cursor, source=SYSTEM, patience=self._log_patience)

    @property
    def log_after_seconds(self) -> float:
        return self._log_after_seconds

    # get, logs, terminate, list_owned -----------------------------------------------------------------------------

    async def get(self, handle: Handle) -> InstanceView | None:
        if handle.resource_type == REGISTRY:
            found = await self._client.registries(f"get {handle.provider_id}")
            return next((registry_view(r, self._context.owner_id) for r in found if r.id == handle.provider_id), None)
        pod = await self._pod(handle, f"get {handle.provider_id}")
        return None if pod is None else self._view(pod, handle)

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        if handle.resource_type == REGISTRY:
            return LogPage("", None)
        try:
            return await read_page(self._client, handle.provider_id, cursor, source=None, patience=self._log_patience)
        except ProviderNotFound:
            return LogPage("", cursor)

    async def terminate(self, handle: Handle) -> TerminateState:
        what = f"delete {handle.provider_id}"
        if handle.resource_type == REGISTRY:
            return await self._delete_registry(handle.provider_id, what)
        with contextlib.suppress(ProviderNotFound):
            await self._client.rest("DELETE", f"/pods/{handle.provider_id}", NoContent, what)
        # Whatever the delete answered, only what reads say counts: some answers come too early, some are wrong.
        pod = await self._pod(handle, what)
        if pod is not None and pod.status != TERMINATED:
            return TerminateState.REQUESTED
        # Last, since RunPod keeps a credential that a pod uses.
        registry_id = handle.data.get("registry")
        return TerminateState.GONE if not registry_id else await self._delete_registry(registry_id, what)

    async def list_owned(self) -> list[InstanceView]:
        owner = self._context.owner_id
        # Before the pods: a credential whose pod is made meanwhile goes with it. One that is in use, RunPod keeps.
        credentials = [r for r in await self._client.registries("list") if attempt_of(r.name, owner)]
        pods = [pod for pod in await self._client.pods("list") if attempt_of(pod.name, owner)]
        held = {pod.registry for pod in pods}
        alone = [registry for registry in credentials if registry.id not in held]
        return [self._view(pod) for pod in pods] + [registry_view(registry, owner) for registry in alone]

    async def close(self) -> None:
        await self._client.http.aclose()

    def _view(self, pod: Pod, handle: Handle | None = None) -> InstanceView:
        known = None if handle is None else handle.data
        return pod_view(pod, self._context.owner_id, self._endpoints.http_proxy_domain, known)

    async def _pod(self, handle: Handle, what: str) -> Pod | None:
        """None after enough misses in a row: by its id, and last among all pods."""
        for _ in range(self._looks - 1):
            try:
                return await self._client.rest("GET", f"/pods/{handle.provider_id}", Pod, what)
            except ProviderNotFound:
                await asyncio.sleep(self._look_pause_seconds)
        return next((pod for pod in await self._client.pods(what) if pod.id == handle.provider_id), None)

    async def _delete_registry(self, registry_id: str, what: str) -> TerminateState:
        try:
            with contextlib.suppress(ProviderNotFound):
                await self._client.rest("DELETE", f"/registries/{registry_id}", NoContent, what)
        except ProviderRejected:
            # In use, says RunPod, for as long as the pod's end has not reached it.
            return TerminateState.REQUESTED
        return TerminateState.GONE

    async def _forget_registry(self, registry_id: str) -> None:
        """After a refused create. What fails here is found by `list_owned`."""
        try:
            await self._delete_registry(registry_id, f"delete {registry_id}")
        except ProviderError:
            return


class _Boot:
    """Follows one boot: tells its progress, and finds out when it will never succeed."""

    def __init__(self, provider: RunPodProvider, handle: Handle, spec: InstanceSpec, progress: Progress) -> None:
        self._provider = provider
        self._handle = handle
        self._spec = spec
        self._progress = progress
        self._cursor: str | None = None
        self._shown: ProviderState | None = None
        self._shown_at = 0.0
        self._read_at = time.monotonic()

    async def follow(self, view: InstanceView) -> None:
        """Raises ImagePullFailed or BootstrapFailed."""
        now, failed = time.monotonic(), view.state is ProviderState.FAILED
        if view.state is not self._shown or now - self._shown_at > _PROGRESS_SECONDS:
            await self._progress(
                f"{self._handle.provider_id} is {'still ' if view.state is self._shown else ''}{view.state}"
            )
            self._shown, self._shown_at = view.state, now
        if not failed and now - self._read_at < self._provider.log_after_seconds:
            return
        self._read_at = now
        lines = await self._read()
        for line in lines:
            if _IMAGE_AT_FAULT.search(line):
                raise ImagePullFailed(f"provision {self._spec.attempt_id}: {line}")
            if _START_AT_FAULT.search(line):
                raise BootstrapFailed(f"provision {self._spec.attempt_id}: the image cannot start bash: {line}")
        if failed:
            said = " | ".join(lines[-_DIAGNOSIS_LINES:]) or view.message
            raise BootstrapFailed(f"provision {self._spec.attempt_id}: {said}")
        for line in lines[-_PROGRESS_LINES:]:
            await self._progress(line)

    async def _read(self) -> list[str]:
        try:
            page = await self._provider.boot_log(self._handle, self._cursor)
        except (Ambiguous, ProviderNotFound):
            # The next read shows it: a boot does not fail for a log that cannot be read.
            return []
        self._cursor = page.cursor
        text = mask(page.text, _secrets(self._spec))
        return [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines() if line.strip()]


def _secrets(spec: InstanceSpec) -> tuple[str, ...]:
    password = (spec.registry.password.get_secret_value(),) if spec.registry else ()
    return (spec.agent.token.get_secret_value(), *password)
