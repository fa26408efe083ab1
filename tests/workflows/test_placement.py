"""From a request to the offer that it gets: placement's extensions, reservations and refused accounts, end to end."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from domain.offers import Offer
from domain.states import JobState
from providers.base import OfferQuery
from providers.fake.cloud import CloudOffer
from providers.fake.faults import Answer, Operation
from providers.fake.server import RunningCloud
from store import offers as offer_cache
from tests.conftest import BOTH_ENGINES
from tests.support.control_plane import ControlPlane, control_plane, until
from tests.support.invariants import assert_invariants

COMPUTE = {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1}


def cpu(offer_id: str, price: str = "0.36", **fields: Any) -> CloudOffer:
    return CloudOffer(id=offer_id, accelerator="cpu-general", gpu_count=0, price_usd_hr=Decimal(price), **fields)


async def poll(plane: ControlPlane) -> None:
    """What the schedule does every minute."""
    await plane.temporal.execute_workflow(
        "PollOffers", "fake", id=f"poll-{plane.settings.task_queue}", task_queue=plane.settings.task_queue
    )


async def quote(plane: ControlPlane, **placement: Any) -> dict[str, Any]:
    body = {
        "resource_type": "job", "compute": COMPUTE, "container": {"image": "registry.example/app:1"},
        "placement": placement,
    }  # fmt: skip
    answer = await plane.client.post("/api/v1/compute/catalog/quotes", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


MARKET = (
    cpu("spot", "0.10", spot=True, region="eu-1", zone="eu-1a"),
    cpu("cheap", "0.36", region="eu-1", zone="eu-1a"),
    cpu("dear", "0.72", region="us-1", zone="us-1b"),
)


@pytest.mark.parametrize(
    ("placement", "taken"),
    [
        ({}, "cheap"),
        ({"spot": "never"}, "cheap"),
        ({"spot": "allow"}, "spot"),
        ({"spot": "only"}, "spot"),
        ({"regions": ["us-1"]}, "dear"),
        ({"zones": ["us-1b", "us-1c"]}, "dear"),
        ({"spot": "allow", "max_price_usd_hr": 0.2}, "spot"),
        ({"max_price_usd_hr": 0.2}, None),
        ({"regions": ["mars-1"]}, None),
        ({"spot": "only", "regions": ["us-1"]}, None),
    ],
)
async def test_a_create_gets_what_its_quote_said(
    plane: ControlPlane, placement: dict[str, Any], taken: str | None
) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(*MARKET)
    await poll(plane)
    quoted = await quote(plane, **placement)

    job_id = await plane.fake(placement={**placement, "capacity_wait_seconds": 0})
    job = await plane.until_terminal(job_id)

    attempts = await plane.attempts(job_id)
    assert quoted["available"] == (taken is not None)
    if taken is None:
        assert attempts == []
        assert (job["state"], job["reason"]["code"]) == ("failed", "capacity_unavailable")
        [refusal] = job["reason"]["details"]["providers"]
        assert refusal == {"provider": "fake", "reason": quoted["providers"][0]["reason"]}
        return
    [attempt] = attempts
    assert attempt.offer["provider_sku"] == taken
    assert job["state"] == "succeeded"
    assert job["price_usd_hr"] == quoted["price_usd_hr"]["min"] == float(attempt.offer["price_usd_hr"])
    [instance] = (await plane.client.get(f"/api/v1/compute/jobs/{job_id}/instances")).json()["data"]
    assert (instance["spot"], instance["region"]) == (taken == "spot", attempt.offer["region"])


@pytest.fixture(params=BOTH_ENGINES)
async def plane_on_each(
    request: pytest.FixtureRequest, temporal_address: str, cloud: RunningCloud
) -> AsyncIterator[ControlPlane]:
    """A control plane, once on each kind of database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    async with control_plane(url, temporal_address, cloud_url=cloud.url) as running:
        yield running
        await assert_invariants(running)


async def test_twenty_jobs_at_once_share_five_machines_one_each(plane_on_each: ControlPlane) -> None:
    """Those that find none do not ask the provider, and do not wait: they were told not to."""
    plane = plane_on_each
    assert plane.cloud is not None
    await plane.cloud.offers(*(cpu(f"machine-{n}", exclusive=True) for n in range(5)))
    placement = {"capacity_wait_seconds": 0}

    jobs = await asyncio.gather(*(plane.fake(run_seconds=60, placement=placement) for _ in range(20)))

    async def settled() -> bool:
        states = [await plane.state(job_id) for job_id in jobs]
        return states.count(JobState.RUNNING) == 5 and states.count(JobState.FAILED) == 15

    await until(settled, seconds=60, what="five run and fifteen have failed")
    running = [job_id for job_id in jobs if await plane.state(job_id) is JobState.RUNNING]
    refs = [(await plane.attempts(job_id))[-1].exclusive_ref for job_id in running]
    assert sorted(map(str, refs)) == [f"fake/machine-{n}" for n in range(5)]
    assert len(await plane.cloud.journal(Operation.CREATE)) == 5
    reasons = [(await plane.job(job_id))["reason"]["code"] for job_id in jobs if job_id not in running]
    assert reasons == ["capacity_unavailable"] * 15

    # A machine that was given back can be had again.
    await plane.terminate(running[0])
    await plane.until_gone(running[0])
    last = await plane.fake(placement=placement)
    assert (await plane.until_terminal(last))["state"] == "succeeded"
    for job_id in running[1:]:
        await plane.terminate(job_id)
    for job_id in jobs:
        await plane.until_terminal(job_id)
        await plane.until_gone(job_id)


async def test_without_a_wait_a_job_that_finds_no_slot_fails_at_once(plane: ControlPlane) -> None:
    assert plane.context is not None
    (provider,) = plane.context.providers.by_connection.values()
    provider.slots = 1  # type: ignore[misc]
    first = await plane.fake(run_seconds=60)
    await plane.until_state(first, JobState.RUNNING)

    job = await plane.until_terminal(await plane.fake(placement={"capacity_wait_seconds": 0}), seconds=10)

    assert (job["state"], job["reason"]["code"]) == ("failed", "capacity_unavailable")
    assert "all 1 slots are in use" in job["reason"]["details"]["providers"][0]["reason"]
    await plane.terminate(first)
    await plane.until_gone(first)


@pytest.mark.parametrize("answer", [Answer.AUTH, Answer.PERMISSION, Answer.BILLING])
async def test_a_refused_account_is_skipped_until_a_poll_finds_it_well(plane: ControlPlane, answer: Answer) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(cpu("one"), cpu("two"))
    await poll(plane)
    await plane.cloud.fault(Operation.CREATE, answer, times=None)
    await plane.cloud.fault(Operation.VERIFY, answer, times=None)

    job = await plane.until_terminal(await plane.fake(placement={"capacity_wait_seconds": 0}))
    assert (job["state"], job["reason"]["code"]) == ("failed", "provider_auth_failed")
    # Neither its other offer is tried, nor that of a later job.
    assert job["attempts"] == {"total": 1, "rejected": 1, "user_failure": 0, "preemption": 0, "infrastructure": 0}
    later = await plane.until_terminal(await plane.fake(placement={"capacity_wait_seconds": 0}))
    assert (later["attempts"]["total"], later["reason"]["code"]) == (0, "provider_auth_failed")
    assert len(await plane.cloud.journal(Operation.CREATE)) == 1
    [health] = (await plane.client.get("/api/v1/compute/catalog/providers")).json()["data"]
    assert (health["healthy"], health["degraded"]) == (False, False)
    assert health["error"]
    assert not (await quote(plane))["available"]

    # That the price list can be read does not make the account well.
    await poll(plane)
    assert not (await quote(plane))["available"]
    await plane.cloud.clear_faults()
    await poll(plane)
    assert (await quote(plane))["available"]
    job_id = await plane.fake()
    assert (await plane.until_terminal(job_id))["state"] == "succeeded"
    await plane.until_gone(job_id)


async def test_a_list_that_cannot_be_read_is_replaced_by_the_one_of_the_last_poll(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await poll(plane)
    await plane.cloud.fault(Operation.OFFERS, Answer.TRUNCATED, times=None)
    await poll(plane)
    [health] = (await plane.client.get("/api/v1/compute/catalog/providers")).json()["data"]
    assert (health["healthy"], health["degraded"], health["offer_count"]) == (False, True, 3)
    assert (await quote(plane))["available"]

    job_id = await plane.fake()

    assert (await plane.until_terminal(job_id))["state"] == "succeeded"
    await plane.until_gone(job_id)


@pytest.mark.parametrize("change", [{}, {"connection_id": "another"}, {"id": ""}, {"id": "x" * 257}])
async def test_a_list_that_makes_no_sense_is_an_error_and_the_older_one_stays(
    plane: ControlPlane, change: dict[str, Any]
) -> None:
    assert plane.context is not None
    await poll(plane)
    provider = plane.context.providers.of("fake")
    known = await provider.offers(OfferQuery())

    async def twice(_query: OfferQuery) -> list[Offer]:
        return [*known, known[0].model_copy(update=change)]

    provider.offers = twice  # type: ignore[method-assign]
    await poll(plane)

    [health] = (await plane.client.get("/api/v1/compute/catalog/providers")).json()["data"]
    assert (health["degraded"], health["offer_count"]) == (True, len(known))


async def test_a_connection_that_was_removed_is_forgotten(plane: ControlPlane) -> None:
    assert plane.context is not None
    await poll(plane)
    plane.context.providers.by_connection.pop("fake")
    await poll(plane)
    assert await plane.services.db.read(offer_cache.health) == []


async def test_what_a_provider_refuses_for_what_it_says_is_not_asked_again(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(cpu("one"), cpu("two", "0.72"))
    await plane.cloud.fault(Operation.CREATE, Answer.INVALID, times=None)

    job = await plane.until_terminal(await plane.fake(placement={"capacity_wait_seconds": 600}), seconds=10)

    assert (job["state"], job["reason"]["code"]) == ("failed", "provider_error")
    assert job["attempts"] == {"total": 2, "rejected": 2, "user_failure": 0, "preemption": 0, "infrastructure": 0}
    assert job["reason"]["details"]["providers"][0]["reason"].startswith("rejected: ")
    assert len(await plane.cloud.journal(Operation.CREATE)) == 2


async def test_an_offer_that_was_refused_for_good_is_left_out_of_the_next_rounds(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(cpu("wrong"), cpu("busy", "0.72"))
    await plane.cloud.fault(Operation.CREATE, Answer.INVALID, offer="wrong", times=None)
    await plane.cloud.fault(Operation.CREATE, Answer.NO_CAPACITY, offer="busy", times=1)

    job_id = await plane.fake(placement={"capacity_wait_seconds": 600})
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    asked = [attempt.offer["provider_sku"] for attempt in await plane.attempts(job_id)]
    assert asked == ["wrong", "busy", "busy"]


async def test_preemptions_are_counted_apart_from_failed_boots(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(cpu("full", "0.10"), cpu("dud", "0.20"), cpu("good", "0.36"))
    await plane.cloud.fault(Operation.CREATE, Answer.NO_CAPACITY, offer="full", times=1)
    await plane.cloud.script(never_hello=True, offer="dud")

    job_id = await plane.fake(run_seconds=3, retry={"on_preemption": True, "max_attempts": 2})
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.cloud.interrupt((await plane.attempts(job_id))[-1].id)
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)

    assert job["state"] == "succeeded"
    assert job["attempts"] == {"total": 4, "rejected": 1, "user_failure": 0, "preemption": 1, "infrastructure": 1}
    [rejected] = await plane.events(job_id, "offer_rejected")
    assert (rejected.data["class"], rejected.data["sku"]) == ("no_capacity", "full")
    assert rejected.data["message"]
    shown = (await plane.client.get(f"/api/v1/compute/jobs/{job_id}/instances")).json()["data"]
    assert (shown[0]["provider_id"], shown[0]["provider_resource_type"]) == ("", "attempt")
    assert (shown[0]["state"], shown[0]["reason"]["code"]) == ("failed", "no_capacity")


@pytest.mark.parametrize(
    ("retry", "counts"),
    [
        (None, {"preemption": 1, "user_failure": 0}),
        ({"on_preemption": True, "max_attempts": 2}, {"preemption": 2, "user_failure": 0}),
    ],
)
async def test_a_job_fails_when_its_retries_are_used_up(
    plane: ControlPlane, retry: dict[str, Any] | None, counts: dict[str, int]
) -> None:
    assert plane.cloud is not None
    job_id = await plane.fake(run_seconds=60, **({"retry": retry} if retry else {}))
    for number in range(1, counts["preemption"] + 1):

        async def runs(wanted: int = number) -> bool:
            attempts = await plane.attempts(job_id)
            return len(attempts) == wanted and attempts[-1].started_at is not None

        await until(runs, what=f"attempt {number} runs")
        await plane.cloud.interrupt((await plane.attempts(job_id))[-1].id)
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "preempted")
    assert {name: job["attempts"][name] for name in counts} == counts


async def test_a_failure_of_the_workload_is_the_users_and_is_not_tried_again(plane: ControlPlane) -> None:
    job_id = await plane.fake(status=3, retry={"on_preemption": True})
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert job["attempts"] == {"total": 1, "rejected": 0, "user_failure": 1, "preemption": 0, "infrastructure": 0}
