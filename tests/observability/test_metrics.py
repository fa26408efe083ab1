"""`/metrics`: what it says of the database, and to whom."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlmodel import Session

from api import errors
from api.boundary import Boundary
from domain.clock import Clock
from domain.ids import JobId
from domain.states import EventType, InstanceState, JobState
from observability import sampling
from observability.http import http_telemetry, instrument_api
from observability.process import create
from settings import Settings
from store import attempts, inbox, sweeps, webhooks
from store.db import Database
from store.tables import Instance, OrphanSighting, WebhookDelivery
from store.transitions import record, transition
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory

ROOT = Path(__file__).parents[2]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass
class Services:
    settings: Settings
    db: Database
    clock: Clock


@pytest.fixture
def services(database: Database, clock: SettableClock, tmp_path: Path) -> Services:
    return Services(Settings(data_dir=tmp_path), database, clock)


class Scraper:
    """A Prometheus that comes by when it is told to, and finds no cached sample."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def scrape(self) -> Series:
        answer = await self.client.get("/metrics")
        assert answer.status_code == 200, answer.text
        families = text_string_to_metric_families(answer.text)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    async def value(self, name: str, **labels: str) -> float:
        return (await self.scrape())[name, tuple(sorted(labels.items()))]


@pytest.fixture
async def scraper(services: Services, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scraper]:
    monkeypatch.setattr(sampling, "CACHE_SECONDS", 0.0)
    telemetry = create(None, "test", 60)
    app = FastAPI(telemetry=http_telemetry(telemetry))

    @app.get("/api/v1/compute/jobs/{job_id}")
    async def job(job_id: str) -> None:
        """Answers nothing."""

    errors.install(app)
    app.add_middleware(Boundary)
    instrument_api(app, services, telemetry)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield Scraper(client)


class TestJobs:
    async def test_jobs_are_counted_by_state_and_states_without_jobs_are_zero(
        self, scraper: Scraper, factory: Factory
    ) -> None:
        factory.job(JobState.RUNNING)
        factory.job(JobState.RUNNING)
        factory.job(JobState.FAILED)
        series = await scraper.scrape()
        counts = {labels[0][1]: value for (name, labels), value in series.items() if name == "headrace_jobs"}
        assert counts == {state.value: 0.0 for state in JobState} | {"running": 2.0, "failed": 1.0}

    async def test_the_time_in_each_state_is_recorded_when_it_is_left(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        await scraper.scrape()
        job = factory.job()
        database.run_write(lambda s: record(s, job.id, EventType.JOB_CREATED, "created", clock(), {}))
        clock.advance(3)
        database.run_write(lambda s: transition(s, JobId(job.id), JobState.ALLOCATING, "a", clock()))
        await scraper.scrape()
        clock.advance(40)
        database.run_write(lambda s: transition(s, JobId(job.id), JobState.FAILED, "f", clock()))
        name = "headrace_job_phase_duration_seconds"
        assert await scraper.value(f"{name}_sum", state="requested") == 3
        assert await scraper.value(f"{name}_sum", state="allocating") == 40
        assert await scraper.value(f"{name}_count", state="allocating") == 1

    async def test_a_job_from_before_the_first_scrape_is_timed_from_its_events(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        job = factory.job()
        database.run_write(lambda s: record(s, job.id, EventType.JOB_CREATED, "created", clock(), {}))
        await scraper.scrape()
        clock.advance(7)
        database.run_write(lambda s: transition(s, JobId(job.id), JobState.FAILED, "f", clock()))
        assert await scraper.value("headrace_job_phase_duration_seconds_sum", state="requested") == 7


class TestAllocation:
    async def test_answers_are_counted_once_by_result(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        await scraper.scrape()
        job = factory.job(JobState.ALLOCATING)
        first, second = factory.instance(job), factory.instance(job, number=2)
        database.run_write(
            lambda s: attempts.refused(s, s.get_one(Instance, first.id), "no_capacity", "none left", clock())
        )
        database.run_write(
            lambda s: attempts.allocated(
                s, s.get_one(Instance, second.id), {"provider_id": "x"}, Decimal("1"), "offer", clock()
            )
        )
        for _ in range(3):
            series = await scraper.scrape()
        name = "headrace_allocation_attempts_total"
        assert series[name, (("result", "no_capacity"),)] == 1
        assert series[name, (("result", "allocated"),)] == 1


class TestSpend:
    async def test_a_live_instance_accrues_and_a_gone_one_is_settled(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        await scraper.scrape()
        start = clock()
        instance = factory.instance(factory.job(JobState.RUNNING), InstanceState.RUNNING, allocated_at=start)
        factory.price(instance, "0.60", since=start)
        clock.advance(minutes=10)
        assert await scraper.value("headrace_spend_accrued", provider="local") == pytest.approx(0.10)
        assert await scraper.value("headrace_spend_rate", provider="local") == pytest.approx(0.60)
        assert await scraper.value("headrace_instances_live", provider="local") == 1

        database.run_write(lambda s: attempts.gone(s, s.get_one(Instance, instance.id), clock()))
        clock.advance(hours=1)
        series = await scraper.scrape()
        assert series["headrace_spend_settled_total", (("provider", "local"),)] == pytest.approx(0.10)
        assert ("headrace_spend_accrued", (("provider", "local"),)) not in series


class TestWhatWaits:
    async def test_the_oldest_undelivered_input_gives_the_age(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        assert await scraper.value("headrace_inbox_age_seconds") == 0
        job = factory.job()
        database.run_write(lambda s: inbox.put(s, job.id, inbox.START, clock()))
        clock.advance(30)
        database.run_write(lambda s: inbox.put(s, job.id, inbox.TERMINATE, clock()))
        assert await scraper.value("headrace_inbox_age_seconds") == 30
        assert await scraper.value("headrace_inbox_rows") == 2

    async def test_a_deletion_counts_until_it_is_confirmed(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        job = factory.job(JobState.FAILED)
        instance = factory.instance(job, InstanceState.STOPPING, delete_requested_at=clock())
        clock.advance(90)
        assert await scraper.value("headrace_deletions_unconfirmed") == 1
        assert await scraper.value("headrace_deletions_age_seconds") == 90
        database.run_write(lambda s: attempts.gone(s, s.get_one(Instance, instance.id), clock()))
        assert await scraper.value("headrace_deletions_unconfirmed") == 0


class TestSweeps:
    async def test_machines_that_nobody_knows_are_counted_by_provider(
        self, scraper: Scraper, database: Database, clock: SettableClock
    ) -> None:
        for connection, deleted, missing in (("conn_a", 2, 0), ("conn_b", 1, 3)):
            database.run_write(lambda s, c=connection, d=deleted, m=missing: sweeps.done(s, c, "aws", d, m, clock()))
        database.run_write(
            lambda s: s.add(OrphanSighting(provider_id="i-1", connection_id="conn_b", first_seen_at=clock()))
        )
        assert await scraper.value("headrace_orphans", provider="aws") == 1
        assert await scraper.value("headrace_orphans_deletions", provider="aws") == 3
        assert await scraper.value("headrace_instances_missing", provider="aws") == 3

    async def test_a_list_that_cannot_be_read_grows_old(
        self, scraper: Scraper, database: Database, clock: SettableClock
    ) -> None:
        database.run_write(lambda s: sweeps.failed(s, "conn_a", "aws", clock()))
        clock.advance(60)
        assert await scraper.value("headrace_reconcile_age_seconds", provider="aws") == 60
        database.run_write(lambda s: sweeps.done(s, "conn_a", "aws", 0, 0, clock()))
        clock.advance(30)
        database.run_write(lambda s: sweeps.failed(s, "conn_a", "aws", clock()))
        assert await scraper.value("headrace_reconcile_age_seconds", provider="aws") == 30
        database.run_write(lambda s: sweeps.forget(s, "conn_a"))
        assert ("headrace_reconcile_age_seconds", (("provider", "aws"),)) not in await scraper.scrape()


class TestWebhooks:
    async def test_notices_count_until_they_are_taken_and_for_an_hour_once_they_are_given_up(
        self, scraper: Scraper, database: Database, clock: SettableClock
    ) -> None:
        def add(session: Session) -> None:
            for name in ("a", "b", "c"):
                fields = {"webhook_id": "w", "org_id": "o", "type": "t", "data": {}}
                session.add(WebhookDelivery(id=name, created_at=clock(), due_at=clock(), **fields))

        database.run_write(add)
        clock.advance(60)
        assert await scraper.value("headrace_webhooks_undelivered") == 3
        assert await scraper.value("headrace_webhooks_age_seconds") == 60
        assert await scraper.value("headrace_webhooks_dead") == 0
        database.run_write(lambda s: webhooks.delivered(s, "a", 200, clock()))
        database.run_write(lambda s: webhooks.failed(s, "b", 500, "no", clock(), None))
        database.run_write(lambda s: webhooks.failed(s, "c", 500, "no", clock(), clock()))
        assert await scraper.value("headrace_webhooks_undelivered") == 1
        assert await scraper.value("headrace_webhooks_dead") == 1
        clock.advance(3600)
        assert await scraper.value("headrace_webhooks_dead") == 0


class TestRequests:
    async def test_latency_is_kept_by_route_not_by_path_or_host(self, scraper: Scraper) -> None:
        for number in range(3):
            await scraper.client.get(f"/api/v1/compute/jobs/{number}", headers={"Host": f"host-{number}"})
        labels = {
            "http_route": "/api/v1/compute/jobs/{job_id}",
            "http_request_method": "GET",
            "http_response_status_code": "200",
        }
        assert await scraper.value("http_server_request_duration_seconds_count", **labels) == 3
        assert "host-1" not in (await scraper.client.get("/metrics")).text


class TestCache:
    def test_a_sample_is_kept_for_five_seconds(
        self, database: Database, clock: SettableClock, factory: Factory
    ) -> None:
        seconds = 100.0
        metrics = sampling.DatabaseMetrics(database, clock, create(None, "test", 60).meters, monotonic=lambda: seconds)
        assert metrics.refresh().jobs["running"] == 0
        factory.job(JobState.RUNNING)
        seconds += 4.9
        assert metrics.refresh().jobs["running"] == 0
        seconds += 0.1
        assert metrics.refresh().jobs["running"] == 1

    def test_a_database_that_does_not_answer_leaves_the_last_sample(
        self, sqlite_database: Database, clock: SettableClock, vault: Vault
    ) -> None:
        Factory(sqlite_database, clock, vault).job(JobState.RUNNING)
        seconds = 100.0
        metrics = sampling.DatabaseMetrics(
            sqlite_database, clock, create(None, "test", 60).meters, monotonic=lambda: seconds
        )
        assert metrics.refresh().jobs["running"] == 1
        Path(sqlite_database.url.removeprefix("sqlite:///")).write_bytes(b"no database" * 1000)
        sqlite_database.engine.dispose()
        seconds += 60
        assert metrics.refresh().jobs["running"] == 1


class TestDocumentation:
    async def test_every_metric_is_documented_and_every_documented_metric_is_there(
        self, scraper: Scraper, factory: Factory, database: Database, clock: SettableClock
    ) -> None:
        job = factory.job()
        live = factory.instance(job, allocated_at=clock())
        gone = factory.instance(job, number=2, allocated_at=clock())
        factory.price(live, "1")
        database.run_write(lambda s: record(s, job.id, EventType.JOB_CREATED, "created", clock(), {}))
        database.run_write(lambda s: transition(s, JobId(job.id), JobState.ALLOCATING, "a", clock()))
        database.run_write(lambda s: attempts.gone(s, s.get_one(Instance, gone.id), clock()))
        refused = factory.instance(job, number=3)
        database.run_write(lambda s: attempts.refused(s, s.get_one(Instance, refused.id), "rejected", "no", clock()))
        database.run_write(lambda s: sweeps.done(s, "local", "local", 0, 0, clock()))
        await scraper.scrape()
        series = await scraper.scrape()
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in series if name.startswith("headrace_")}
        documented = set(re.findall(r"`(headrace_[a-z_]+)`", (ROOT / "docs" / "observability.md").read_text()))
        # Counted by a process that receives logs, on its own provider.
        assert shown == documented - {"headrace_log_bytes_total"}


class TestWhoMayScrape:
    async def test_with_a_token_set_nobody_else_is_served(self, services: Services) -> None:
        services.settings.metrics_token = SecretStr("scrape-me")
        app = FastAPI()
        errors.install(app)
        app.add_middleware(Boundary)
        instrument_api(app, services, create(None, "test", 60))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer other"}, 401),
                ({"Authorization": "Bearer scrape-me"}, 200),
            ):
                assert (await client.get("/metrics", headers=headers)).status_code == status
