"""The webhooks' outbox on both databases: written with what it tells, claimed by one sender each."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from domain.errors import NotFound
from domain.notices import NoticeType
from domain.states import JobState, Reason
from store import webhooks
from store.db import Database
from store.tables import Webhook, WebhookDelivery
from store.transitions import transition
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def webhook(database: Database, factory: Factory, vault: Vault, clock: SettableClock) -> Webhook:
    org_id = factory.default_organization().id
    made = database.run_write(lambda s: webhooks.create(s, vault, org_id, "https://hooks.example/", [], True, clock()))
    assert vault.open(made.webhook.secret_sealed, webhooks.secret_context(made.webhook.id)).decode() == made.secret
    return made.webhook


def emit(database: Database, webhook: Webhook, at: datetime, count: int = 1) -> None:
    def put(session: Any) -> None:
        for number in range(count):
            webhooks.emit(session, webhook.org_id, NoticeType.BUDGET_EXHAUSTED, {"number": number}, at)

    database.run_write(put)


def claimed(database: Database, now: datetime, limit: int = 100) -> list[str]:
    parcels = database.run_write(lambda s: webhooks.claim_due(s, now, limit=limit, lease_seconds=60))
    return [parcel.delivery.id for parcel in parcels]


def row(database: Database, delivery_id: str) -> WebhookDelivery:
    return database.run_read(lambda s: s.get_one(WebhookDelivery, delivery_id))


def test_senders_that_claim_at_once_get_different_deliveries(
    database: Database, webhook: Webhook, clock: SettableClock
) -> None:
    emit(database, webhook, clock(), count=100)
    with ThreadPoolExecutor(8) as pool:
        found = [i for ids in pool.map(lambda _: claimed(database, clock(), limit=20), range(8)) for i in ids]
    found += claimed(database, clock())
    assert len(found) == len(set(found)) == 100
    clock.advance(61)
    assert len(claimed(database, clock())) == 100


def test_an_organization_with_many_deliveries_does_not_keep_others_waiting(
    database: Database, webhook: Webhook, factory: Factory, vault: Vault, clock: SettableClock
) -> None:
    emit(database, webhook, clock(), count=30)
    clock.advance(1)
    org_id = factory.organization("others").id
    other = database.run_write(lambda s: webhooks.create(s, vault, org_id, "https://other.example/", [], True, clock()))
    emit(database, other.webhook, clock(), count=3)
    first = claimed(database, clock(), limit=10)
    assert sum(row(database, delivery_id).org_id == org_id for delivery_id in first) == 3
    assert len(first) == 10


def test_what_is_settled_is_not_settled_again(database: Database, webhook: Webhook, clock: SettableClock) -> None:
    emit(database, webhook, clock())
    [delivery_id] = claimed(database, clock())
    database.run_write(lambda s: webhooks.delivered(s, delivery_id, 200, clock()))
    database.run_write(lambda s: webhooks.failed(s, delivery_id, 500, "late", clock(), None))
    assert (row(database, delivery_id).state, row(database, delivery_id).last_status) == ("delivered", 200)


def test_a_webhook_that_is_disabled_is_told_nothing_new_and_keeps_what_waits(
    database: Database, webhook: Webhook, clock: SettableClock
) -> None:
    def enable(wanted: bool) -> None:
        database.run_write(lambda s: webhooks.change(s, s.get_one(Webhook, webhook.id), None, None, wanted, clock()))

    emit(database, webhook, clock())
    enable(False)
    emit(database, webhook, clock())
    assert claimed(database, clock()) == []
    enable(True)
    assert len(claimed(database, clock())) == 1


def test_a_jobs_end_is_told_to_its_own_organization_only(
    database: Database, factory: Factory, webhook: Webhook, clock: SettableClock
) -> None:
    def end(job_id: str) -> None:
        database.run_write(
            lambda s: transition(s, job_id, JobState.FAILED, "end", clock(), reason=Reason.WORKLOAD_OOM, message="m")
        )

    own = factory.job(JobState.RUNNING)
    end(own.id)
    end(own.id)
    end(factory.job(JobState.RUNNING, project=factory.project(factory.organization("strangers"))).id)
    [delivery_id] = claimed(database, clock())
    told = row(database, delivery_id)
    assert (told.type, told.data["job"]["id"]) == ("job.failed", own.id)


def test_a_running_job_is_no_news(database: Database, factory: Factory, webhook: Webhook, clock: SettableClock) -> None:
    job = factory.job(JobState.REQUESTED)
    database.run_write(lambda s: transition(s, job.id, JobState.ALLOCATING, "go", clock()))
    assert claimed(database, clock()) == []


def test_pages_hold_each_delivery_once_though_their_times_are_equal(
    database: Database, webhook: Webhook, clock: SettableClock
) -> None:
    emit(database, webhook, clock(), count=7)
    emit(database, webhook, clock.advance(1), count=2)
    seen: list[str] = []
    before: tuple[datetime, str] | None = None
    while True:
        page = database.run_read(
            partial(webhooks.deliveries, webhook_id=webhook.id, state=None, before=before, limit=2)
        )
        if not page:
            break
        seen += [delivery.id for delivery in page]
        before = (page[-1].created_at, page[-1].id)
    assert len(seen) == len(set(seen)) == database.run_read(
        lambda s: webhooks.count_deliveries(s, webhook.id, state=None)
    )  # fmt: skip


def test_nothing_of_a_removed_webhook_is_left(database: Database, webhook: Webhook, clock: SettableClock) -> None:
    emit(database, webhook, clock())
    [delivery_id] = claimed(database, clock())
    database.run_write(lambda s: webhooks.remove(s, s.get_one(Webhook, webhook.id)))
    database.run_write(lambda s: webhooks.failed(s, delivery_id, None, "late", clock(), clock()))
    with pytest.raises(NotFound):
        database.run_write(lambda s: webhooks.send_again(s, webhook.org_id, delivery_id, clock()))
    assert claimed(database, clock() + timedelta(hours=1)) == []


def test_old_deliveries_are_forgotten_and_waiting_ones_are_not(
    database: Database, webhook: Webhook, clock: SettableClock
) -> None:
    emit(database, webhook, clock(), count=2)
    one, _ = claimed(database, clock())
    database.run_write(lambda s: webhooks.delivered(s, one, 200, clock()))
    assert database.run_write(lambda s: webhooks.prune(s, clock() + timedelta(seconds=1))) == 1
    assert len(claimed(database, clock.advance(61))) == 1
