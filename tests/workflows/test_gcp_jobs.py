"""Jobs on Compute Engine, through the whole control plane: the SDK, the real host agent, agents over the network."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from sqlmodel import select

from activities import connections
from domain.clock import Clock, utc_now
from domain.states import JobState
from providers.base import ProviderContext
from providers.gcp.provider import GcpProvider
from store.ledger import attos_of
from store.tables import LedgerEntry
from tests.providers import gcp_fake
from tests.providers.gcp_fake import Fault, GcpServer
from tests.providers.gcp_fake.boots import booting
from tests.providers.gcp_support import gcp_provider, key_pair, service_account_key
from tests.support.agent_listener import agents_served, listening
from tests.support.clock import SettableClock
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

HOUR_OF_ATTOS = 3600 * 10**18
BACKENDS = "/api/compute/cloud/backends"
CPU = {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 2, "ephemeral_disk_gb": 20}


@pytest.fixture
async def gcp_cloud(sqlite_url: str, temporal_address: str) -> AsyncIterator[tuple[ControlPlane, GcpServer]]:
    """A control plane with Google as its only backend, and a URL at which machines reach it. In the end Google has
    nothing, and charges for nothing."""
    with gcp_fake.serve(key_pair()[1]) as (gcp, url):
        # A machine that is gone is missed after its last poll for orders would have ended.
        async with booting(gcp.cloud, url), plane_on(url, sqlite_url, temporal_address, orders_wait_seconds=1) as plane:
            yield plane, gcp
        assert gcp.cloud.running_charges() == []
        assert (gcp.cloud.machines, gcp.cloud.disks, gcp.cloud.firewalls) == ({}, {}, {})


@contextlib.asynccontextmanager
async def plane_on(
    gcp_url: str | None, database_url: str, temporal_address: str, clock: Clock = utc_now, **settings: Any
) -> AsyncIterator[ControlPlane]:
    """A control plane, and a URL at which machines reach it; without a backend where none is named."""
    listener, url = listening()
    async with control_plane(database_url, temporal_address, clock=clock, public_url=url, **settings) as running:
        assert running.context is not None
        if gcp_url is not None:
            provider = gcp_provider(gcp_url, running.context.owner_id)
            running.context.providers.by_connection["gcp-1"] = provider
        async with agents_served(running, listener):
            yield running
            await assert_invariants(running)


async def submit(plane: ControlPlane, command: str, compute: dict[str, Any] = CPU, **changes: Any) -> str:
    container = {"image": "registry.example/app:1", "command": ["bash", "-c", command]}
    return await plane.create(compute=compute, container=container, **changes)


async def test_a_job_runs_on_an_instance_and_gives_it_back(gcp_cloud: tuple[ControlPlane, GcpServer]) -> None:
    plane, gcp = gcp_cloud
    job_id = await submit(plane, "for n in 1 2 3; do echo loss $n; done; exit 3")
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id, seconds=60)
    assert (job["state"], job["exit_code"]) == ("failed", 3), job
    assert await plane.log_text(job_id) == "loss 1\nloss 2\nloss 3\n"
    (charge,) = gcp.cloud.bill
    (attempt,) = await plane.attempts(job_id)
    assert attempt.id in charge.name
    assert charge.machine == attempt.offer["provider_sku"]


async def test_a_spot_instance_that_is_taken_back_is_replaced_and_its_ports_are_reached_at_the_next(
    gcp_cloud: tuple[ControlPlane, GcpServer],
) -> None:
    plane, gcp = gcp_cloud
    told = "trap 'echo saved; exit 75' TERM; sleep 600 & wait"
    container = {
        "image": "registry.example/app:1", "command": ["bash", "-c", told],
        "ports": [{"name": "ui", "container_port": 8080, "protocol": "http"}],
    }  # fmt: skip
    job_id = await plane.create(
        compute=CPU, container=container, placement={"spot": "only"},
        retry={"on_preemption": True, "max_attempts": 2},
    )  # fmt: skip

    async def until_reached_at(url: str) -> None:
        async def shown() -> bool:
            return [endpoint["url"] for endpoint in (await plane.job(job_id))["endpoints"]] == [url]

        await until(shown, seconds=10, what=url)

    await plane.until_state(job_id, JobState.RUNNING, seconds=60)
    await until_reached_at("http://203.0.113.1:8080")
    (first,) = await plane.attempts(job_id)
    (machine,) = gcp.cloud.of(first.id)
    gcp.cloud.noticed.add(machine.resource["name"])
    await until(partial(_said, plane, job_id, "saved\n"), what="the end of the workload that was told")
    gcp.cloud.end(machine, "compute.instances.preempted", "Instance was preempted.", delete=True)

    async def is_replaced() -> bool:
        return len(gcp.cloud.bill) == 2

    await until(is_replaced, seconds=60, what="a second machine")
    assert len(await plane.events(job_id, "interruption_noticed")) == 1
    assert "preempted" in [event.data.get("reason") for event in await plane.events(job_id, "state_changed")]
    await plane.until_state(job_id, JobState.RUNNING, seconds=60)
    _, second = await plane.attempts(job_id)
    assert [name.endswith(second.id) for name in gcp.cloud.firewalls] == [True]
    await until_reached_at("http://203.0.113.2:8080")
    await plane.terminate(job_id)
    await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id, seconds=60)
    assert [charge.spot for charge in gcp.cloud.bill] == [True, True]


async def _said(plane: ControlPlane, job_id: str, text: str) -> bool:
    return await plane.log_text(job_id) == text


async def test_capacity_that_turns_out_to_be_missing_during_the_boot_is_looked_for_elsewhere(
    gcp_cloud: tuple[ControlPlane, GcpServer],
) -> None:
    plane, gcp = gcp_cloud
    assert plane.context is not None
    provider = plane.context.providers.by_connection["gcp-1"]
    assert isinstance(provider, GcpProvider)
    provider._options = provider._options.model_copy(update={"capacity_seconds": 0})
    gcp.cloud.next_failure = ("ZONE_RESOURCE_POOL_EXHAUSTED", "none left")
    job_id = await submit(plane, "true")
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id, seconds=60)
    assert job["state"] == "succeeded", job
    first, second = await plane.attempts(job_id)
    assert (first.reason_code, first.offer["zone"] != second.offer["zone"]) == ("instance_lost", True)
    assert "none left" in first.reason_message
    # Long before the time for a boot is up.
    assert (second.created_at - first.created_at).total_seconds() < plane.settings.provisioning_timeout_seconds / 2


async def test_jobs_over_a_faulty_api_end_and_leave_nothing(gcp_cloud: tuple[ControlPlane, GcpServer]) -> None:
    plane, gcp = gcp_cloud
    gcp.cloud.next_failure = ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "none left")
    job_ids = [await submit(plane, "echo 0")]

    async def has_failed() -> bool:
        return gcp.cloud.next_failure is None

    # An answer that is lost where nothing was made is looked for twelve seconds long.
    await until(has_failed, what="a create that finds nothing left")
    gcp.faults += [
        Fault("create", loss="reset"), Fault("create", loss="internal"), Fault("delete", loss="html_502"),
        Fault("delete", loss="cut"), Fault("get", loss="unavailable"), Fault("get", loss="truncated"),
        Fault("list", loss="reset"), Fault("offers", loss="internal"), Fault("find", loss="html_502"),
    ]  # fmt: skip
    job_ids += [await submit(plane, f"echo {number}; exit {number % 2}") for number in range(1, 4)]
    for number, job_id in enumerate(job_ids):
        job = await plane.until_terminal(job_id, seconds=90)
        await plane.until_gone(job_id, seconds=90)
        assert (job["state"], job["exit_code"]) == (("failed", 1) if number % 2 else ("succeeded", 0)), job
        assert await plane.log_text(job_id) == f"{number}\n"
    assert not [fault for fault in gcp.faults if fault.operation in ("create", "delete", "get")]


async def test_the_ledger_is_what_google_charged(sqlite_url: str, temporal_address: str) -> None:
    """Time stands still, except while the machines run."""
    clock = SettableClock(datetime.now(UTC))
    waits = {"contact_timeout_seconds": 900, "provisioning_timeout_seconds": 900, "launch_timeout_seconds": 900}
    # 2 cores and 8 GiB of E2 each, on demand and spot.
    on_demand, spot = Decimal("0.06701142"), Decimal("0.0268")
    # When a job ends, and for how many seconds Google charges: a minute at least, and every second begun.
    table = ((0.4, on_demand, 60), (60, spot, 60), (60.001, on_demand, 61), (137.4, on_demand, 138), (137.4, spot, 138))
    with gcp_fake.serve(key_pair()[1]) as (gcp, url):
        gcp.cloud.clock = lambda: clock().timestamp()
        async with booting(gcp.cloud, url), plane_on(url, sqlite_url, temporal_address, clock, **waits) as plane:
            begin = clock()
            job_ids = [
                await submit(plane, "sleep 600", placement={"spot": "only" if price is spot else "never"})
                for _, price, _ in table
            ]
            for job_id in job_ids:
                await plane.until_state(job_id, JobState.RUNNING, seconds=60)
            for job_id, (ends_after, price, seconds) in zip(job_ids, table, strict=True):
                clock.set(begin + timedelta(seconds=ends_after))
                await plane.terminate(job_id)
                await plane.until_terminal(job_id, seconds=60)
                await plane.until_gone(job_id, seconds=60)
                (attempt,) = await plane.attempts(job_id)
                (charge,) = (charge for charge in gcp.cloud.bill if attempt.id in charge.name)
                assert charge.seconds == seconds
                query = select(LedgerEntry).where(LedgerEntry.resource_id == job_id)
                entries = await plane.services.db.read(lambda s, query=query: list(s.exec(query).all()))  # type: ignore[misc]
                attos = sum(attos_of(entry.whole, entry.nano, entry.atto) for entry in entries)
                assert Fraction(attos, HOUR_OF_ATTOS) == Fraction(price) * seconds / 3600


async def test_a_project_is_connected_used_and_given_up_with_what_runs_in_it(
    sqlite_url: str, temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gcp_fake.serve(key_pair()[1]) as (gcp, url):
        options = {"look_pause_seconds": 0.01, "endpoints": {"compute": url, "billing": url}}
        monkeypatch.setattr(connections, "ProviderContext", partial(ProviderContext, options=options))
        async with booting(gcp.cloud, url), plane_on(None, sqlite_url, temporal_address) as plane:
            body = {"provider": "gcp", "fields": {"service_account_key": service_account_key()}}
            answer = await plane.client.post(BACKENDS, json=body)
            assert (answer.status_code, answer.json()["state"]) == (201, "connected"), answer.text
            assert "PRIVATE" not in answer.text
            path = f"{BACKENDS}/{answer.json()['id']}"

            async def polled() -> bool:
                health = (await plane.client.get(path)).json()["health"]
                return bool(health["status"] == "healthy" and health["offer_count"] > 0)

            await until(polled, seconds=30, what="a poll")
            job_id = await submit(plane, "echo loss 0.5")
            job = await plane.until_terminal(job_id, seconds=60)
            assert (job["state"], job["provider"]) == ("succeeded", "gcp"), job
            assert await plane.log_text(job_id) == "loss 0.5\n"
            await plane.until_gone(job_id, seconds=60)

            held = await submit(plane, "sleep 600")
            await plane.until_state(held, JobState.RUNNING, seconds=60)
            refused = await plane.client.delete(path)
            assert (refused.status_code, refused.json()["error"]["details"]["jobs"][0]["id"]) == (409, held)
            assert (await plane.client.delete(path, params={"force": "terminate"})).status_code == 202
            assert (await plane.until_terminal(held, seconds=60))["state"] == "terminated"
            await plane.until_gone(held, seconds=60)

            async def is_removed() -> bool:
                return (await plane.client.get(path)).status_code == 404

            await until(is_removed, seconds=30, what="the removal")
        assert (gcp.cloud.machines, gcp.cloud.disks, gcp.cloud.running_charges()) == ({}, {}, [])
