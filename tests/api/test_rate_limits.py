"""Rate limits: what a key may do, what a stranger may do, and that neither is paid for by anybody else."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meetkai_mka1 import SDK

from api.rate_limits import MAX_BUCKETS, MAX_WAIT_SECONDS, RateLimits, TokenBuckets
from api.services import Services
from domain.errors import TooManyRequests
from domain.roles import Role
from tests.api.conftest import Api
from tests.support.factory import Factory


class Monotonic:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def monotonic(services: Services) -> Monotonic:
    """The clock of the served API's limits: 2 requests a second and 3 at once, 1 failure a second and 2 at once."""
    clock = Monotonic()
    services.rate_limits = RateLimits(per_second=2, burst=3, failures_per_second=1, failures_burst=2, monotonic=clock)
    return clock


def test_a_key_that_calls_too_often_is_told_when_to_come_back(api: Api, monotonic: Monotonic) -> None:
    assert [api.get("/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = api.get("/jobs")
    assert refused.headers["retry-after"] == "1"
    error = refused.json()["error"]
    assert (error["code"], error["request_id"]) == ("rate_limited", refused.headers["x-request-id"])
    monotonic.seconds += 1
    assert [api.get("/jobs").status_code for _ in range(3)] == [200, 200, 429]


def test_another_key_is_not_held_back(api: Api, monotonic: Monotonic, factory: Factory) -> None:
    while api.get("/jobs").status_code == 200:
        pass
    assert api.with_token(factory.key(role=Role.VIEWER).token).get("/jobs").status_code == 200


def test_an_address_that_fails_too_often_is_refused_and_its_neighbours_are_not(api: Api, monotonic: Monotonic) -> None:
    strangers = [api.with_token(None), api.with_token("hr_unknown"), api.with_token("x" * 300)]
    assert [client.get("/jobs").status_code for client in strangers] == [401, 401, 429]
    assert api.get("/jobs").status_code == 200
    monotonic.seconds += 1
    assert strangers[1].get("/jobs").status_code == 401
    assert 1 <= int(strangers[1].get("/jobs").headers["retry-after"]) <= MAX_WAIT_SECONDS


def test_the_liveness_of_the_process_and_agents_are_not_limited(api: Api, monotonic: Monotonic) -> None:
    with api.with_token(None) as client:
        client.base_url = api.url
        for _ in range(10):
            assert client.get("/healthz").status_code == 200
            # An agent's token is wrong here, and is never told to slow down.
            assert client.get("/agent/v1/orders").status_code in {401, 404}


def test_no_limit_is_none(services: Services) -> None:
    limits = RateLimits(per_second=0, burst=1, failures_per_second=0, failures_burst=1, monotonic=Monotonic())
    for _ in range(1000):
        limits.authenticated("key")
        limits.request("key")
        limits.failure("address")


def test_tokens_that_were_never_valid_take_no_memory_and_push_nobody_out() -> None:
    limits = RateLimits(per_second=1, burst=1, failures_per_second=1, failures_burst=1, monotonic=Monotonic())
    limits.authenticated("valid")
    for number in range(MAX_BUCKETS + 1):
        limits.request(f"made up {number}")
    with pytest.raises(TooManyRequests):
        limits.request("valid")


def test_memory_is_bounded_and_forgets_who_came_longest_ago() -> None:
    buckets = TokenBuckets(1, 1, Monotonic())
    for number in range(MAX_BUCKETS + 50):
        assert buckets.take(str(number)) is None
    assert len(buckets) == MAX_BUCKETS
    assert buckets.take(str(MAX_BUCKETS)) is not None
    assert buckets.take("0") is None


@given(
    rate=st.floats(0.01, 1000),
    burst=st.integers(1, 100),
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_never_more_than_the_burst_and_the_average_and_the_wait_that_is_told_suffices(
    rate: float, burst: int, gaps: list[float]
) -> None:
    clock = Monotonic()
    buckets = TokenBuckets(rate, burst, clock)
    begin, passed = clock.seconds, 0
    for gap in gaps:
        clock.seconds += gap
        wait = buckets.take("key")
        if wait is None:
            passed += 1
            assert passed <= burst + (clock.seconds - begin) * rate + 1e-6
            continue
        assert 1 <= wait <= MAX_WAIT_SECONDS
        if wait < MAX_WAIT_SECONDS:
            clock.seconds += wait + 1e-6
            assert buckets.take("key") is None
            passed += 1


async def test_the_official_client_waits_as_it_is_told_and_gets_its_answer(api: Api, services: Services) -> None:
    services.rate_limits = RateLimits(
        per_second=2, burst=1, failures_per_second=1, failures_burst=1, monotonic=time.monotonic
    )
    with SDK(bearer_auth=api.key.token, server_url=api.url) as sdk:
        assert [sdk.compute_jobs.list_jobs().total for _ in range(2)] == [0, 0]
        assert (await sdk.compute_jobs.list_jobs_async()).total == 0
