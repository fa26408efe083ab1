"""The official client, unmodified, against a real server: every operation, sync and async."""

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from meetkai_mka1 import SDK, models
from meetkai_mka1.errors import SDKDefaultError

from domain.roles import Role
from domain.states import InstanceState, JobState
from store.transitions import transition
from tests.api.conftest import Api
from tests.api.market import Market
from tests.support.clock import SettableClock
from tests.support.factory import Factory

COMPUTE = {"accelerator": "nvidia-rtx-4090-24gb", "gpu_count": 1, "ephemeral_disk_gb": 100}
CONTAINER = {"image": "registry.example/team/trainer:1.4", "command": ["bash", "-lc", "true"], "env": {"USE_HF": "1"}}


@pytest.fixture
def sdk(api: Api) -> Iterator[SDK]:
    with SDK(bearer_auth=api.key.token, server_url=api.url) as client:
        yield client


class Caller:
    """Calls an operation of the client in one of its two ways."""

    def __init__(self, asynchronous: bool) -> None:
        self._asynchronous = asynchronous

    async def __call__(self, group: Any, operation: str, **arguments: Any) -> Any:
        if self._asynchronous:
            return await getattr(group, f"{operation}_async")(**arguments)
        return getattr(group, operation)(**arguments)


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param == "async")


async def test_accelerators_are_listed_and_got_by_name(sdk: SDK, call: Caller) -> None:
    listed = await call(sdk.compute_catalog, "list_accelerators", limit=200)
    assert listed.total == len(listed.data) > 30
    assert listed.next_cursor is None
    gpu = await call(sdk.compute_catalog, "get_accelerator", name="nvidia-rtx-4090-24gb")
    assert (gpu.hardware_class, gpu.vendor, gpu.memory_gb, gpu.interconnects) == ("gpu", "nvidia", 24, ["pcie"])
    assert gpu.vcpu is None
    cpu = await call(sdk.compute_catalog, "get_accelerator", name="cpu-general")
    assert (cpu.hardware_class, cpu.vcpu.min, cpu.memory_gb_per_vcpu) == ("cpu", 1, 4)
    assert cpu.vendor is None
    amd = await call(sdk.compute_catalog, "list_accelerators", vendor="amd")
    assert {entry.vendor for entry in amd.data} == {"amd"}


async def test_offers_providers_and_quotes(api: Api, call: Caller, factory: Factory) -> None:
    market = Market(api)
    market.polled("runpod", market.offer("runpod", "a", interconnect="pcie"), market.offer("runpod", "b", gpu_count=2))
    market.polled("aws")
    market.failed("aws", "no answer")
    with SDK(bearer_auth=factory.key(role=Role.CLUSTER_ADMIN).token, server_url=api.url) as sdk:
        listed = await call(sdk.compute_catalog, "list_compute_offers", gpu_count=1, available=True, limit=1)
        assert (listed.total, listed.next_cursor) == (1, None)
        [offer] = listed.data
        assert (offer.provider, offer.price_usd_hr, offer.compute.memory_gb) == ("runpod", 0.72, 31)
        assert offer.capabilities.ssh
        health = await call(sdk.compute_catalog, "list_compute_providers")
        assert [(h.provider, h.healthy, h.degraded) for h in health.data] == [
            ("aws", False, True),
            ("runpod", True, False),
        ]
        quote = await call(
            sdk.compute_catalog,
            "create_compute_quote",
            resource_type="job",
            compute={**COMPUTE, "accelerator": "nvidia-l4-24gb"},
            container={"image": CONTAINER["image"], "ports": [{"name": "w", "container_port": 80, "protocol": "http"}]},
            access={"ssh": True},
            placement={"strategy": "lowest_cost"},
        )
    assert quote.available
    assert (quote.price_usd_hr.min, quote.price_usd_hr.max, quote.expires_at) == (0.72, 0.72, None)
    assert [(entry.provider, entry.available) for entry in quote.providers] == [("aws", False), ("runpod", True)]


async def test_a_job_is_created_replayed_listed_and_got(sdk: SDK, call: Caller) -> None:
    request = {
        "idempotency_key": "the-key",
        "name": "qwen",
        "compute": COMPUTE,
        "container": CONTAINER,
        "limits": {"max_runtime_hours": 2, "max_cost_usd": 0.1},
        "x_on_behalf_of": "end-user-7",
    }
    job = await call(sdk.compute_jobs, "create_job", **request)
    assert isinstance(job, models.ComputeJob)
    assert (job.state, job.name, job.accrued_usd, job.reason, job.endpoints) == ("requested", "qwen", 0, None, [])
    assert (job.limits.max_cost_usd, job.limits.max_runtime_hours) == (0.1, 2)
    assert job.compute.model_dump() == COMPUTE
    replayed = await call(sdk.compute_jobs, "create_job", **request)
    assert replayed.id == job.id
    listed = await call(sdk.compute_jobs, "list_jobs", state="requested")
    assert [entry.id for entry in listed.data] == [job.id]
    assert (await call(sdk.compute_jobs, "get_job", id=job.id)).id == job.id


async def test_a_running_job_shows_its_hardware_price_and_spend(
    sdk: SDK, call: Caller, factory: Factory, clock: SettableClock, api: Api
) -> None:
    job = factory.job(JobState.RUNNING, allocated_at=clock(), started_at=clock())
    offer = factory.offer(
        accelerator="nvidia-rtx-4090-24gb", gpu_count=1, gpu_memory_gb=24, price_usd_hr=Decimal("0.44")
    )
    instance = factory.instance(
        job,
        InstanceState.RUNNING,
        allocated_at=clock(),
        offer=offer.model_dump(mode="json"),
        handle={"provider_id": "pod-1", "resource_type": "pod", "host": "203.0.113.7"},
        endpoints=[
            {"name": "web", "protocol": "http", "host": "203.0.113.7", "port": 8000},
            {"name": "ssh", "protocol": "ssh", "host": "203.0.113.7", "port": 22022},
        ],
        ssh_host_key="ssh-ed25519 AAAA",
    )
    factory.price(instance, "0.44")
    clock.advance(1560)
    shown = await call(sdk.compute_jobs, "get_job", id=job.id)
    assert (shown.accrued_usd, shown.price_usd_hr, shown.current_price_usd_hr) == (0.19, 0.44, 0.44)
    assert (shown.hardware.accelerator, shown.hardware.gpu_memory_gb) == ("nvidia-rtx-4090-24gb", 24)
    assert shown.ssh.command == "ssh -p 22022 root@203.0.113.7"
    assert (shown.ssh.host, shown.ssh.port, shown.ssh.user) == ("203.0.113.7", 22022, "root")
    assert [endpoint.url for endpoint in shown.endpoints] == ["http://203.0.113.7:8000"]
    assert shown.allocated_at == clock() - timedelta(seconds=1560)
    [listed] = (await call(sdk.compute_jobs, "list_job_instances", id=job.id, order="desc")).data
    assert (listed.provider_id, listed.provider_resource_type, listed.state) == ("pod-1", "pod", "running")
    assert listed.price_usd_hr == 0.44


async def test_events_and_logs_are_paged_through(sdk: SDK, call: Caller, api: Api, clock: SettableClock) -> None:
    job = await call(sdk.compute_jobs, "create_job", idempotency_key="k", compute=COMPUTE, container=CONTAINER)
    events = await call(sdk.compute_jobs, "list_job_events", id=job.id)
    assert [event.type for event in events.data] == ["job_created"]
    api.write(lambda s: api.services.logs.append_system(s, job.id, ["one", "two", "three"], clock()))
    seen: list[str] = []
    cursor = None
    while True:
        listed = await call(sdk.compute_jobs, "list_job_logs", id=job.id, source="system", limit=2, cursor=cursor)
        seen += [line.message for line in listed.data]
        assert listed.total == 3
        cursor = listed.next_cursor
        if cursor is None:
            break
    assert seen == ["one", "two", "three"]


async def test_termination_answers_the_current_job_and_is_idempotent(sdk: SDK, call: Caller) -> None:
    job = await call(sdk.compute_jobs, "create_job", idempotency_key="k", compute=COMPUTE, container=CONTAINER)
    for _ in range(2):
        ended = await call(sdk.compute_jobs, "terminate_job", id=job.id)
        assert (ended.id, ended.state, ended.reason.code) == (job.id, "terminating", "user_requested")


async def test_an_error_reaches_the_caller_with_its_envelope(sdk: SDK, call: Caller) -> None:
    with pytest.raises(SDKDefaultError) as caught:
        await call(sdk.compute_jobs, "get_job", id="job_0000000000000000")
    assert caught.value.status_code == 404
    assert models.ComputeErrorEnvelope.model_validate_json(caught.value.body).error.code == "not_found"


async def test_a_secret_is_created_used_rotated_and_deleted(
    sdk: SDK, call: Caller, api: Api, clock: SettableClock
) -> None:
    expires_at = clock() + timedelta(days=1)
    secret = await call(
        sdk.compute_secrets,
        "create_compute_secret",
        name="artifact-repository",
        data={"HF_TOKEN": "hf_canary"},
        expires_at=expires_at,
        x_on_behalf_of="end-user-7",
    )
    assert isinstance(secret, models.ComputeSecret)
    assert (secret.name, secret.keys, secret.version, secret.expires_at) == (
        "artifact-repository",
        ["HF_TOKEN"],
        1,
        expires_at,
    )
    container = {**CONTAINER, "secret_env": {"HF_TOKEN": {"secret_id": secret.id, "key": "HF_TOKEN"}}}
    job = await call(sdk.compute_jobs, "create_job", idempotency_key="k", compute=COMPUTE, container=container)
    rotated = await call(
        sdk.compute_secrets, "rotate_compute_secret", id=secret.id, data={"HF_TOKEN": "hf_2", "MORE": ""}
    )
    assert (rotated.id, rotated.version, rotated.keys, rotated.expires_at) == (secret.id, 2, ["HF_TOKEN", "MORE"], None)
    listed = await call(sdk.compute_secrets, "list_compute_secrets", limit=1)
    assert (listed.total, listed.next_cursor, listed.data) == (1, None, [rotated])
    assert await call(sdk.compute_secrets, "get_compute_secret", id=secret.id) == rotated
    with pytest.raises(SDKDefaultError) as caught:
        await call(sdk.compute_secrets, "delete_compute_secret", id=secret.id)
    assert (caught.value.status_code, "secret_in_use" in caught.value.body) == (409, True)
    api.write(lambda s: transition(s, job.id, JobState.FAILED, "end", clock()))
    assert await call(sdk.compute_secrets, "delete_compute_secret", id=secret.id) is None
    assert (await call(sdk.compute_secrets, "list_compute_secrets")).total == 0


async def test_usage_is_reported_for_a_window(sdk: SDK, call: Caller, factory: Factory, clock: SettableClock) -> None:
    job = factory.job(JobState.RUNNING, name="qwen", allocated_at=clock(), started_at=clock())
    factory.price(factory.instance(job, InstanceState.RUNNING, allocated_at=clock()), "0.44")
    begin = clock()
    clock.advance(1560)
    used = await call(sdk.compute_usage, "get_compute_usage", from_=begin, to=clock(), resource_type="job", limit=10)
    assert (used.window.from_, used.window.to, used.granularity) == (begin, clock(), "minute")
    [row] = used.data
    assert (row.resource_type, row.resource_id, row.name) == ("job", job.id, "qwen")
    assert (row.billable_seconds, row.accrued_usd) == (1560, 0.19)
    assert (used.summary.total_usd, used.summary.job_usd, used.summary.service_usd) == (0.19, 0.19, 0)
    assert (used.next_cursor, used.total, used.volume_usage_complete) == (None, 1, True)
    assert used.volume_usage_complete_through == clock()
    assert (used.volume_ledger_granularity, used.volume_allocation) == ("hour", "uniform_proration")
    assert (await call(sdk.compute_usage, "get_compute_usage")).summary.total_usd == 0.19


async def test_storage_prices_are_set_and_got(api: Api, call: Caller, factory: Factory, clock: SettableClock) -> None:
    admin = factory.key(role=Role.CLUSTER_ADMIN)
    with SDK(bearer_auth=admin.token, server_url=api.url) as client:
        with pytest.raises(SDKDefaultError) as caught:
            await call(client.compute_pricing, "get_pricing")
        error = models.ComputeErrorEnvelope.model_validate_json(caught.value.body).error
        assert error.code == "pricing_not_configured"
        for version, rate in enumerate((0.000137, 1e-18)):
            put = await call(
                client.compute_pricing,
                "put_pricing",
                idempotency_key=f"k{version}",
                if_match=str(version),
                volume_storage_usd_per_gib_hour=rate,
            )
            assert put.headers["etag"] == [f'"{version + 1}"']
            assert (put.result.version, put.result.volume_storage_usd_per_gib_hour) == (version + 1, rate)
            assert put.result.effective_at == clock().replace(hour=clock().hour + 1)
        got = await call(client.compute_pricing, "get_pricing")
        assert (got.headers["etag"], got.result.volume_storage_usd_per_gib_hour) == (['"2"'], 1e-18)


NOT_IMPLEMENTED: list[tuple[str, str, dict[str, Any]]] = [
    ("compute_services", "list_services", {}),
    ("compute_services", "create_service", {"idempotency_key": "k", "compute": COMPUTE, "container": CONTAINER}),
    ("compute_services", "get_service", {"id": "x"}),
    ("compute_services", "list_service_events", {"id": "x"}),
    ("compute_services", "list_service_logs", {"id": "x"}),
    ("compute_services", "list_service_instances", {"id": "x"}),
    (
        "compute_services",
        "update_service_scaling",
        {"id": "x", "idempotency_key": "k", "min_replicas": 1, "max_replicas": 1},
    ),
    ("compute_services", "terminate_service", {"id": "x"}),
    ("compute_volumes", "list_standalone_volumes", {}),
    ("compute_volumes", "create_standalone_volume", {"idempotency_key": "k", "name": "n"}),
    ("compute_volumes", "get_standalone_volume", {"id": "x"}),
    ("compute_volumes", "delete_standalone_volume", {"id": "x"}),
    ("compute_volumes", "list_standalone_volume_attachments", {"id": "x"}),
]


@pytest.mark.parametrize(("group", "operation", "arguments"), NOT_IMPLEMENTED, ids=lambda value: str(value)[:40])
def test_an_operation_that_is_not_built_answers_501_in_the_envelope(
    sdk: SDK, group: str, operation: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(SDKDefaultError) as caught:
        getattr(getattr(sdk, group), operation)(**arguments)
    assert caught.value.status_code == 501
    assert models.ComputeErrorEnvelope.model_validate_json(caught.value.body).error.code == "not_implemented"


def test_every_operation_of_the_client_is_driven_here(sdk: SDK) -> None:
    driven = {(group, operation) for group, operation, _ in NOT_IMPLEMENTED}
    catalog = "list_accelerators get_accelerator list_compute_offers list_compute_providers create_compute_quote"
    driven |= {("compute_catalog", operation) for operation in catalog.split()}
    jobs = "list_jobs create_job get_job list_job_events list_job_instances list_job_logs terminate_job"
    driven |= {("compute_jobs", operation) for operation in jobs.split()}
    secrets = (
        "list_compute_secrets create_compute_secret get_compute_secret delete_compute_secret rotate_compute_secret"
    )
    driven |= {("compute_secrets", operation) for operation in secrets.split()}
    tenants = "list_compute_tenants get_compute_tenant put_compute_tenant"
    driven |= {("compute_tenants", operation) for operation in tenants.split()}
    driven |= {("compute_usage", "get_compute_usage")}
    driven |= {("compute_pricing", "get_pricing"), ("compute_pricing", "put_pricing")}
    groups = {group for group, _ in driven}

    def operations(group: str) -> set[str]:
        is_operation: Callable[[Any], bool] = inspect.ismethod
        members = inspect.getmembers(getattr(sdk, group), is_operation)
        names = {name for name, member in members if member.__func__.__qualname__.startswith("Compute")}
        return {name.removesuffix("_async") for name in names if not name.startswith("_")}

    assert {(group, operation) for group in groups for operation in operations(group)} == driven
