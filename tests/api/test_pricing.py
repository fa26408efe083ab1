"""GET and PUT /pricing: versions, exact decimals, If-Match and replays."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.pricing import storage_rate
from domain.roles import Role
from store.db import Database
from tests.api.conftest import Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory

FIELD = "volume_storage_usd_per_gib_hour"


BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Database:
    """SQLite; both kinds for the tests that ask for them."""
    opened: Database = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_database")
    return opened


class Admin:
    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def put(self, number: str, if_match: str | None = "0", key: str = "k", body: bytes | None = None) -> httpx.Response:
        headers = {"Idempotency-Key": key} | ({} if if_match is None else {"If-Match": if_match})
        content = body if body is not None else f'{{"{FIELD}": {number}}}'.encode()
        return self.client.put("/pricing", content=content, headers=headers)

    def get(self) -> httpx.Response:
        return self.client.get("/pricing")


@pytest.fixture
def admin(api: Api, factory: Factory) -> Iterator[Admin]:
    with api.with_token(factory.key(role=Role.CLUSTER_ADMIN).token) as client:
        yield Admin(client)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_there_is_no_price_before_the_first_version(api: Api) -> None:
    assert code(api.get("/pricing")) == (404, "pricing_not_configured")


@pytest.mark.parametrize("database", BOTH, indirect=True)
def test_versions_follow_each_other_and_hold_from_the_next_hour_on(
    api: Api, admin: Admin, clock: SettableClock
) -> None:
    clock.advance(minutes=59, seconds=59)
    first = admin.put("0.000137")
    assert first.json() == {"version": 1, "effective_at": "2026-03-01T13:00:00Z", FIELD: 0.000137}
    assert first.headers["ETag"] == '"1"'
    clock.advance(1)
    second = admin.put("1.50e-4", '"1"', key="other")
    assert second.json() == {"version": 2, "effective_at": "2026-03-01T14:00:00Z", FIELD: 0.00015}
    # Everyone may read, before it is in effect too.
    shown = api.get("/pricing")
    assert (shown.json(), shown.headers["ETag"]) == (second.json(), '"2"')


@pytest.mark.parametrize("if_match", ["1", '"1"'])
def test_a_version_passes_with_and_without_quotes(admin: Admin, if_match: str) -> None:
    admin.put("1")
    assert admin.put("2", if_match, key="other").status_code == 200


@pytest.mark.parametrize("if_match", ['W/"1"', "0", "2", '"01"', "01", "*", "1, 2", '"x', "", "-1", "1.0"])
def test_anything_else_is_stale(admin: Admin, if_match: str) -> None:
    admin.put("1")
    assert code(admin.put("2", if_match, key="other")) == (412, "precondition_failed")
    assert admin.get().json()["version"] == 1


def test_without_a_version_or_a_key_nothing_is_changed(admin: Admin) -> None:
    assert code(admin.put("1", None)) == (428, "if_match_required")
    assert code(admin.client.put("/pricing", json={FIELD: 1}, headers={"If-Match": "0"})) == (
        400,
        "idempotency_key_required",
    )
    assert admin.get().status_code == 404


def test_an_equal_replay_is_answered_before_the_version_is_compared(admin: Admin) -> None:
    first = admin.put("0.10", "0", key="one")
    admin.put("0.2", "1", key="two")
    replay = admin.put("1e-1", "0", key="one")
    assert (replay.status_code, replay.json(), replay.headers["ETag"]) == (200, first.json(), '"1"')
    assert code(admin.put("0.3", "2", key="one")) == (409, "idempotency_conflict")
    assert admin.get().json()["version"] == 2


def test_a_refused_change_leaves_its_key_free(admin: Admin) -> None:
    assert admin.put("1", "7", key="one").status_code == 412
    assert admin.put("2", "0", key="one").status_code == 200


def test_only_cluster_admins_set_prices(api: Api, factory: Factory) -> None:
    for role in (Role.VIEWER, Role.MEMBER, Role.ORG_ADMIN):
        client = api.with_token(factory.key(role=role).token)
        assert code(Admin(client).put("1")) == (403, "forbidden")
    assert Admin(api.with_token(None)).put("1").status_code == 401


@pytest.mark.parametrize("database", BOTH, indirect=True)
def test_of_many_that_name_one_version_exactly_one_wins(admin: Admin) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: admin.put(f"{n + 1}", "0", key=f"k{n}").status_code, range(8)))
    assert sorted(answers) == [200] + [412] * 7
    assert admin.get().json()["version"] == 1


@pytest.mark.parametrize("database", BOTH, indirect=True)
def test_equal_requests_at_once_make_one_version(admin: Admin) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: admin.put("1", "0"), range(8)))
    assert {(a.status_code, a.json()["version"]) for a in answers} == {(200, 1)}


@pytest.mark.parametrize("number", ["0.123456789012345678", "1e-18", "1e10", "9999999999.999999999999999999"])
def test_a_rate_is_kept_to_its_last_digit(admin: Admin, number: str) -> None:
    put = admin.put(number)
    assert put.status_code == 200, put.text
    shown = put.text.partition(f'"{FIELD}":')[2].rstrip("}")
    assert Decimal(shown) == Decimal(number)
    assert admin.get().text == put.text


REFUSED: dict[str, Any] = {
    "0": "0.000000000000000001",
    "-1": "0.000000000000000001",
    "-0.0": "0.000000000000000001",
    "9e-19": "0.000000000000000001",
    "1e-128": "0.000000000000000001",
    "10000000000.000000000000000001": "10000000000",
    "1e11": "10000000000",
    "1e128": "10000000000",
    "1.0000000000000000001": 18,
    "1e129": 128,
    "1e-129": 128,
    "1e999999": 128,
    "0." + "0" * 37 + "1": 38,
    "1" + "0" * 38: 38,
    "1" + "0" * 70: 64,
    "1e" + "0" * 70 + "1": 64,
}


@pytest.mark.parametrize("number", REFUSED)
def test_a_number_out_of_bounds_is_refused_with_the_bound(api: Api, factory: Factory, number: str) -> None:
    admin = Admin(api.with_token(factory.key(role=Role.CLUSTER_ADMIN).token))
    answer = admin.put(number)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["details"] == {"field": FIELD, "limit": REFUSED[number]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"volume_storage_usd_per_gib_hour": NaN}', 400),
        (b'{"volume_storage_usd_per_gib_hour": Infinity}', 400),
        (b'{"volume_storage_usd_per_gib_hour": 01}', 400),
        (b'\xff{"a": 1}', 400),
        (b"[1]", 422),
        (b"1", 422),
        (b"{}", 422),
        (b'{"volume_storage_usd_per_gib_hour": "0.1"}', 422),
        (b'{"volume_storage_usd_per_gib_hour": true}', 422),
        (b'{"volume_storage_usd_per_gib_hour": null}', 422),
        (b'{"volume_storage_usd_per_gib_hour": [1]}', 422),
        (b'{"volume_storage_usd_per_gib_hour": 1, "\\ud800": 1}', 422),
        (b'{"volume_storage_usd_per_gib_hour": 1, "currency": "USD"}', 422),
        (b"[" * 100_000, 400),
    ],
)
def test_a_body_that_is_no_price_is_refused(admin: Admin, body: bytes, status: int) -> None:
    answer = admin.put("", body=body)
    assert (answer.status_code, admin.get().status_code) == (status, 404), answer.text


@given(st.decimals(Decimal("1e-18"), Decimal(10) ** 10, places=18))
def test_every_rate_in_bounds_is_read_exactly(rate: Decimal) -> None:
    for literal in (f"{rate:f}", f"{rate:E}"):
        assert storage_rate(literal, "f") == rate


@given(st.text(max_size=80))
def test_whatever_is_written_is_a_rate_in_bounds_or_refused(literal: str) -> None:
    try:
        rate = storage_rate(literal, "f")
    except InvalidRequest:
        return
    assert Decimal("1e-18") <= rate <= 10**10
