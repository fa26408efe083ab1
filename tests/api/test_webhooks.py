"""Webhooks: written with what they tell, signed, retried, given up, sent again."""

import asyncio
import hashlib
import hmac
import json
import random
from datetime import timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import select

from api.services import Services
from api.webhook_delivery import WebhookSender
from domain.notices import MOST_TRIES, NoticeType, retry_at, signature
from domain.roles import Role
from domain.states import JobState, Reason
from egress import Egress, parse_networks
from store import webhooks
from store.db import Database
from store.tables import Organization, WebhookDelivery
from store.transitions import transition
from tests.api.conftest import Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.test_egress import OK, Receiver, receiving

REFUSED = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def admin(api: Api, factory: Factory) -> httpx.Client:
    return api.with_token(factory.key(role=Role.ORG_ADMIN).token)


def create(admin: httpx.Client, url: str = "https://hooks.example/", **fields: Any) -> dict[str, Any]:
    answer = admin.post("/webhooks", json={"url": url, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


class Hooks:
    """A webhook of the factory's organization at a receiver, and a sender that may reach it."""

    def __init__(self, services: Services, factory: Factory, receiver: Receiver, clock: SettableClock) -> None:
        self.services, self.factory, self.clock = services, factory, clock
        self.sender = WebhookSender(services, Egress(parse_networks("127.0.0.1/32"), timeout_seconds=5))
        self.receiver = receiver
        self.url = f"http://127.0.0.1:{receiver.port}/hook"

    async def webhook(self, *events: str) -> webhooks.NewWebhook:
        org_id = self.factory.default_organization().id
        return await self.services.db.write(
            lambda s: webhooks.create(s, self.services.vault, org_id, self.url, events, True, self.clock())
        )

    async def end_a_job(self, state: JobState = JobState.FAILED) -> str:
        source = {JobState.TERMINATED: JobState.TERMINATING, JobState.SUCCEEDED: JobState.FINALIZING}
        job = self.factory.job(source.get(state, JobState.RUNNING), name="train")
        reason = None if state is JobState.SUCCEEDED else Reason.WORKLOAD_OOM
        await self.services.db.write(
            lambda s: transition(s, job.id, state, "end", self.clock(), reason=reason, message="out of memory")
        )
        return job.id

    async def rows(self) -> list[WebhookDelivery]:
        return await self.services.db.read(lambda s: list(s.exec(select(WebhookDelivery)).all()))


@pytest.fixture
def parts(services: Services, factory: Factory, clock: SettableClock) -> Any:
    return lambda receiver: Hooks(services, factory, receiver, clock)


class TestDelivery:
    async def test_a_jobs_end_is_told_signed_and_once(self, parts: Any) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            made = await hooks.webhook("job.failed")
            job_id = await hooks.end_a_job()
            assert await hooks.sender.send_due() == 1
            assert await hooks.sender.send_due() == 0
        [request] = receiver.requests
        head, _, body = request.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        told = json.loads(body)
        assert (told["type"], told["data"]["job"]["id"], told["data"]["job"]["state"]) == (
            "job.failed",
            job_id,
            "failed",
        )
        assert told["data"]["job"]["reason"] == {"code": "workload_oom", "message": "out of memory"}
        assert told["id"] == headers["Headrace-Delivery"]
        assert headers["Headrace-Event"] == "job.failed"
        moment, mac = (part.split("=")[1] for part in headers["Headrace-Signature"].split(","))
        assert int(moment) == int(hooks.clock().timestamp())
        wanted = hmac.new(made.secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
        assert mac == wanted
        [row] = await hooks.rows()
        assert (row.state, row.tries, row.last_status) == ("delivered", 1, 200)

    async def test_an_organization_that_is_not_told_of_providers_is_told_the_code_alone(self, parts: Any) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            made = await hooks.webhook()

            def hide(session: Any) -> None:
                session.get_one(Organization, made.webhook.org_id).provider_anonymity = True

            await hooks.services.db.write(hide)
            await hooks.end_a_job()
            await hooks.sender.send_due()
        told = json.loads(receiver.requests[0].partition(b"\r\n\r\n")[2])
        assert told["data"]["job"]["reason"] == {"code": "workload_oom", "message": "workload_oom"}

    async def test_a_transaction_that_is_not_kept_tells_nothing(self, parts: Any) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            await hooks.webhook()
            job = hooks.factory.job(JobState.RUNNING)

            def fail(session: Any) -> None:
                transition(session, job.id, JobState.FAILED, "end", hooks.clock(), reason=Reason.INTERNAL_ERROR)
                raise RuntimeError

            with pytest.raises(RuntimeError):
                await hooks.services.db.write(fail)
            assert await hooks.sender.send_due() == 0

    async def test_a_webhook_is_told_what_it_asked_for(self, parts: Any) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            await hooks.webhook("job.failed", "budget.exhausted")
            await hooks.webhook()
            await hooks.end_a_job(JobState.SUCCEEDED)
            await hooks.end_a_job(JobState.FAILED)
            await hooks.end_a_job(JobState.TERMINATED)
            await hooks.sender.send_due()
        kinds = sorted(json.loads(r.partition(b"\r\n\r\n")[2])["type"] for r in receiver.requests)
        assert kinds == ["job.failed", "job.failed", "job.succeeded", "job.terminated"]

    async def test_a_refusal_is_tried_again_later_with_the_same_body_and_a_new_signature(self, parts: Any) -> None:
        async with receiving(REFUSED) as receiver:
            hooks = parts(receiver)
            await hooks.webhook()
            await hooks.end_a_job()
            await hooks.sender.send_due()
            [row] = await hooks.rows()
            assert (row.state, row.last_status, row.last_error) == ("pending", 503, "the receiver answered 503")
            assert await hooks.sender.send_due() == 0
            receiver.answer = OK
            hooks.clock.advance(13)
            assert await hooks.sender.send_due() == 1
        bodies = [request.partition(b"\r\n\r\n")[2] for request in receiver.requests]
        assert bodies[0] == bodies[1]
        signatures = {line for r in receiver.requests for line in r.split(b"\r\n") if line.startswith(b"Headrace-Sig")}
        assert len(signatures) == 2
        [row] = await hooks.rows()
        assert (row.state, row.tries, row.last_error) == ("delivered", 2, None)

    async def test_a_delivery_is_given_up_at_last_and_can_be_sent_again(self, parts: Any) -> None:
        async with receiving(REFUSED) as receiver:
            hooks = parts(receiver)
            made = await hooks.webhook()
            await hooks.end_a_job()
            for _ in range(MOST_TRIES):
                assert await hooks.sender.send_due() == 1
                hooks.clock.advance(hours=6)
            assert await hooks.sender.send_due() == 0
            [row] = await hooks.rows()
            assert (row.state, row.tries) == ("dead", MOST_TRIES)
            receiver.answer = OK
            await hooks.services.db.write(lambda s: webhooks.send_again(s, made.webhook.org_id, row.id, hooks.clock()))
            assert await hooks.sender.send_due() == 1
        [row] = await hooks.rows()
        assert (row.state, row.tries) == ("delivered", 1)
        assert len({json.loads(r.partition(b"\r\n\r\n")[2])["id"] for r in receiver.requests}) == 1

    async def test_an_address_inside_is_not_reached_and_the_row_says_so(self, parts: Any, services: Services) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            await hooks.webhook()
            await hooks.end_a_job()
            await WebhookSender(services).send_due()
        assert receiver.requests == []
        [row] = await hooks.rows()
        assert row.state == "pending"
        assert "does not lead to the public Internet" in (row.last_error or "")

    async def test_a_sender_that_died_leaves_its_deliveries_to_another(self, parts: Any) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            await hooks.webhook()
            await hooks.end_a_job()
            now = hooks.clock()
            await hooks.services.db.write(lambda s: webhooks.claim_due(s, now, limit=10, lease_seconds=60))
            assert await hooks.sender.send_due() == 0
            hooks.clock.advance(61)
            assert await hooks.sender.send_due() == 1

    async def test_two_senders_share_the_work_without_doubling_it(self, parts: Any) -> None:
        async with receiving() as receiver:
            hooks = parts(receiver)
            await hooks.webhook()
            for _ in range(30):
                await hooks.end_a_job()
            counts = await asyncio.gather(*(hooks.sender.send_due() for _ in range(4)))
        assert sum(counts) == len(receiver.requests) == 30


class TestRetries:
    @given(st.integers(1, MOST_TRIES - 1), st.integers(0, 2**32))
    def test_pauses_double_with_jitter_up_to_four_hours(self, tries: int, seed: int) -> None:
        now = SettableClock()()
        again = retry_at(now, tries, 10, random.Random(seed))
        assert again is not None
        middle = min(10 * 2 ** (tries - 1), 4 * 3600)
        assert 0.75 * middle <= (again - now).total_seconds() <= 1.25 * middle + 1e-6

    def test_it_ends_after_about_a_day(self) -> None:
        now = SettableClock()()
        moments = [retry_at(now, tries, 10, random.Random(0)) for tries in range(1, MOST_TRIES + 1)]
        assert moments[-1] is None
        total = sum(((m - now) for m in moments if m is not None), timedelta(0))
        assert timedelta(hours=16) < total < timedelta(hours=32)

    def test_a_signature_is_of_its_moment_secret_and_body(self) -> None:
        now = SettableClock()()
        one = signature("whsec_a", now, b"{}")
        assert one == signature("whsec_a", now, b"{}")
        others = {signature("whsec_b", now, b"{}"), signature("whsec_a", now, b"{ }")}
        assert one not in {*others, signature("whsec_a", now + timedelta(seconds=1), b"{}")}


class TestApi:
    def test_the_secret_is_not_among_what_is_stored_or_listed(self, admin: httpx.Client, database: Database) -> None:
        made = create(admin)
        row = database.run_read(lambda s: s.get_one(webhooks.Webhook, made["id"]))
        assert made["secret"].startswith("whsec_")
        assert made["secret"].encode() not in row.secret_sealed
        assert made["secret"] not in admin.get("/webhooks").text + admin.get(f"/webhooks/{made['id']}").text

    def test_it_is_changed_switched_off_and_deleted(self, admin: httpx.Client) -> None:
        made = create(admin, events=["budget.exhausted"])
        path = f"/webhooks/{made['id']}"
        changed = admin.put(path, json={"enabled": False, "events": []}).json()
        assert (changed["enabled"], changed["events"], changed["url"]) == (False, [], made["url"])
        assert admin.get("/webhooks").json()["total"] == 1
        assert admin.delete(path).status_code == 204
        assert admin.get(path).status_code == 404

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "url"),
            ({"url": "ftp://hooks.example/"}, "url"),
            ({"url": "https://user:pw@hooks.example/"}, "url"),
            ({"url": "https://hooks.example/" + "x" * 3000}, "url"),
            ({"url": "https://hooks.example/", "events": ["job.created"]}, "events.0"),
            ({"url": "https://hooks.example/", "events": "job.failed"}, "events"),
            ({"url": "https://hooks.example/", "enabled": 1}, "enabled"),
            ({"url": "https://hooks.example/", "secret": "mine"}, "secret"),
        ],
    )
    def test_a_wrong_field_is_named(self, admin: httpx.Client, body: Any, field: str) -> None:
        answer = admin.post("/webhooks", json=body)
        assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (422, field)

    def test_an_organization_has_a_bounded_number(self, admin: httpx.Client) -> None:
        for _ in range(webhooks.MOST_WEBHOOKS):
            create(admin)
        answer = admin.post("/webhooks", json={"url": "https://hooks.example/"})
        assert (answer.status_code, answer.json()["error"]["details"]["limit"]) == (422, webhooks.MOST_WEBHOOKS)

    def test_deliveries_are_paged_newest_first_and_by_state(self, admin: httpx.Client, clock: SettableClock) -> None:
        path = f"/webhooks/{create(admin)['id']}"
        sent = []
        for _ in range(5):
            clock.advance(1)
            sent.append(admin.post(f"{path}/test").json()["id"])
        seen: list[str] = []
        cursor = None
        while True:
            parameters = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = admin.get(f"{path}/deliveries", params=parameters).json()
            assert page["total"] == 5
            seen += [row["id"] for row in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == sent[::-1]
        assert admin.get(f"{path}/deliveries", params={"state": "dead"}).json()["total"] == 0
        other = admin.get(f"{path}/deliveries", params={"state": "dead", "cursor": "x" * 40})
        assert (other.status_code, other.json()["error"]["code"]) == (400, "invalid_cursor")
        again = admin.post(f"/webhooks/deliveries/{sent[0]}/resend")
        assert (again.status_code, again.json()["state"], again.json()["type"]) == (202, "pending", NoticeType.TEST)
