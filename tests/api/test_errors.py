"""Whatever goes wrong, the answer is the envelope with a request id, and nothing is kept of what was too much."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError
from sqlmodel import func, select

from api.app import create_app
from api.services import Services
from store.tables import Job
from tests.api.conftest import JOB, PREFIX, Api, anonymous, served

MIB = 1024 * 1024


def envelope(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) <= {"code", "message", "request_id", "details"}
    assert error["request_id"] == answer.headers["X-Request-Id"]
    return dict(error)


def nothing_was_stored(api: Api) -> bool:
    return api.services.db.run_read(lambda s: s.exec(select(func.count()).select_from(Job)).one()) == 0


class TestEnvelope:
    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/nowhere", 404, "not_found"),
            ("GET", "/jobs/", 404, "not_found"),
            ("DELETE", "/jobs", 405, "method_not_allowed"),
            ("DELETE", "/jobs/job_0000000000000000", 405, "method_not_allowed"),
            ("GET", "/jobs?limit=x", 422, "invalid_request"),
            ("GET", "/catalog/accelerators/tpu", 404, "not_found"),
            ("GET", "/services", 501, "not_implemented"),
            ("PUT", "/tenants/x", 403, "forbidden"),
            ("GET", "/catalog/accelerators?vendor=intel", 422, "invalid_request"),
        ],
    )
    def test_every_status_has_it(self, api: Api, method: str, path: str, status: int, code: str) -> None:
        answer = api.client.request(method, path)
        assert (answer.status_code, envelope(answer)["code"]) == (status, code)

    def test_a_405_says_what_is_allowed(self, api: Api) -> None:
        assert "GET" in api.client.delete("/jobs/job_0000000000000000").headers["Allow"]

    def test_a_path_outside_the_api_has_it_too(self, api: Api) -> None:
        assert envelope(anonymous(f"{api.url}/elsewhere"))["code"] == "not_found"


class TestRequestId:
    def test_a_given_one_is_returned(self, api: Api) -> None:
        answer = api.client.get("/jobs", headers={"X-Request-Id": "abc-123/x"})
        assert answer.headers["X-Request-Id"] == "abc-123/x"

    @pytest.mark.parametrize("given", [b"", b"x" * 129, b"a b", b"<script>", b"\xff", b'"'])
    def test_an_unsafe_one_is_replaced(self, api: Api, given: bytes) -> None:
        answer = api.client.get("/jobs", headers={b"X-Request-Id": given})
        assert answer.headers["X-Request-Id"].startswith("req_")

    def test_each_request_gets_its_own(self, api: Api) -> None:
        assert len({api.client.get("/jobs").headers["X-Request-Id"] for _ in range(3)}) == 3


class TestDefects:
    @pytest.fixture
    def broken(self, services: Services) -> Iterator[str]:
        app: FastAPI = create_app(services)

        @app.get("/defect")
        async def defect() -> None:
            raise RuntimeError("canary-in-a-traceback")

        @app.get("/database")
        async def database() -> None:
            raise OperationalError("SELECT canary-in-sql", {}, Exception("connection refused"))

        with served(app) as url:
            yield url

    def test_a_defect_is_a_500_that_tells_nothing_but_the_id(self, broken: str) -> None:
        answer = anonymous(f"{broken}/defect")
        assert (answer.status_code, envelope(answer)["code"]) == (500, "internal_error")
        assert "canary" not in answer.text

    def test_a_database_that_is_away_is_a_503_that_is_safe_to_repeat(self, broken: str) -> None:
        answer = anonymous(f"{broken}/database")
        assert (answer.status_code, envelope(answer)["code"]) == (503, "unavailable")
        assert int(answer.headers["Retry-After"]) <= 5
        assert "canary" not in answer.text


class TestBodies:
    @pytest.mark.parametrize(
        "body", [b"", b'{"compute": {', b"name=value", b"\xff\xfe", b"null garbage", b"[" * 50_000]
    )
    def test_a_body_that_is_no_json_is_a_400(self, api: Api, body: bytes) -> None:
        answer = api.client.post("/jobs", content=body, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, envelope(answer)["code"]) == (400, "invalid_json")
        assert nothing_was_stored(api)

    def test_json_is_read_whatever_its_content_type(self, api: Api) -> None:
        headers = {"Idempotency-Key": "k", "Content-Type": "application/x-www-form-urlencoded"}
        assert api.client.post("/jobs", content=json.dumps(JOB), headers=headers).status_code == 201

    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_body_of_50_mb_is_refused_without_being_kept(self, api: Api, chunked: bool) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(50):
                yield b" " * MIB

        headers = {"Idempotency-Key": "k"} | ({} if chunked else {"Content-Length": str(50 * MIB)})
        before = psutil.Process().memory_info().rss
        answer = api.client.post("/jobs", content=chunks(), headers=headers)
        kept = psutil.Process().memory_info().rss - before
        assert (answer.status_code, envelope(answer)["code"]) == (413, "payload_too_large")
        assert envelope(answer)["details"] == {"field": "body", "limit": 8 * MIB}
        assert kept < 25 * MIB
        assert api.create().status_code == 201

    def test_a_body_just_within_the_limit_is_read(self, api: Api) -> None:
        body = json.dumps(JOB).encode()
        answer = api.client.post("/jobs", content=body + b" " * (8 * MIB - len(body)), headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201
        answer = api.client.post(
            "/jobs", content=body + b" " * (8 * MIB - len(body) + 1), headers={"Idempotency-Key": "k2"}
        )
        assert answer.status_code == 413

    def test_a_client_that_asks_first_is_refused_before_it_sends(self, api: Api) -> None:
        head, _ = raw(api, [b"Content-Length: 52428800\r\nExpect: 100-continue"], [])
        assert head.startswith(b"HTTP/1.1 413")

    def test_an_absurd_length_is_refused_at_once(self, api: Api) -> None:
        head, _ = raw(api, [b"Content-Length: 99999999999999"], [])
        assert head.startswith(b"HTTP/1.1 413")

    def test_a_length_with_thousands_of_leading_zeros_is_read_as_the_number_that_it_is(self, api: Api) -> None:
        body = json.dumps(JOB).encode()
        head, _ = raw(api, [b"Content-Length: " + b"0" * 5000 + b"%d" % len(body)], [body])
        assert head.startswith(b"HTTP/1.1 201")

    def test_a_slow_body_is_a_408_in_time(self, api: Api) -> None:
        started = time.monotonic()
        head, body = raw(api, [b"Content-Length: 1000"], [b"{", b'"a"'])
        assert head.startswith(b"HTTP/1.1 408")
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert b"connection: close" in head.lower()
        assert time.monotonic() - started < 10
        assert nothing_was_stored(api)

    def test_a_body_that_is_cut_off_stores_nothing(self, api: Api) -> None:
        body = json.dumps(JOB).encode()
        raw(api, [b"Content-Length: %d" % (len(body) + 1)], [body], close=True)
        assert nothing_was_stored(api)
        assert api.create().status_code == 201


def raw(api: Api, headers: list[bytes], parts: list[bytes], *, close: bool = False) -> tuple[bytes, bytes]:
    """Sends a create by hand; the answer's head and body, or nothing when we `close` first."""
    address = urlsplit(api.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        head = [
            b"POST %s/jobs HTTP/1.1" % PREFIX.encode(),
            b"Host: localhost",
            b"Authorization: Bearer " + api.key.token.encode(),
            b"Idempotency-Key: raw",
            *headers,
        ]
        connection.sendall(b"\r\n".join(head) + b"\r\n\r\n")
        for part in parts:
            connection.sendall(part)
        if close:
            return b"", b""
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
            top, _, body = answer.partition(b"\r\n\r\n")
            if b'"request_id"' in body and body.endswith(b"}}"):
                return top, body
    return answer, b""
