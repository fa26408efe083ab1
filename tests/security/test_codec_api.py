"""`/codec`: who may decode, in which browser, and what comes back."""

import base64
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from api.codec import COOKIE, MAX_BODY_BYTES, issue_session
from domain.roles import Role
from store.access import revoke_key
from store.payload_codec import EncryptingCodec
from store.vault import Vault
from tests.security.conftest import UI_ORIGIN, Services
from tests.support.clock import SettableClock
from tests.support.factory import Factory

PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"readable"')


async def encrypted(vault: Vault, *payloads: Payload) -> dict[str, Any]:
    sealed = await EncryptingCodec(vault).encode(payloads or [PLAIN])
    return json_format.MessageToDict(Payloads(payloads=sealed))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def operator(keys: Factory) -> dict[str, str]:
    return bearer(keys.key(role=Role.CLUSTER_ADMIN).token)


class TestDecode:
    async def test_an_operator_gets_plain_payloads_in_the_same_order(
        self, client: httpx.AsyncClient, vault: Vault, operator: dict[str, str]
    ) -> None:
        body = await encrypted(vault, PLAIN, Payload(metadata={"encoding": b"binary/null"}))
        body["payloads"].append(json_format.MessageToDict(PLAIN))
        answer = await client.post("/codec/decode", json=body, headers=operator)
        assert answer.status_code == 200
        first, second, third = answer.json()["payloads"]
        assert base64.b64decode(first["data"]) == b'"readable"'
        assert base64.b64decode(second["metadata"]["encoding"]) == b"binary/null"
        assert third == first

    async def test_a_payload_of_an_unknown_key_is_a_clear_error(
        self, client: httpx.AsyncClient, operator: dict[str, str]
    ) -> None:
        stranger = Vault.parse(Vault.generate())
        answer = await client.post("/codec/decode", json=await encrypted(stranger), headers=operator)
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "undecodable_payload"
        assert stranger.active_key_id in answer.json()["error"]["message"]

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"payloads": 1}', b'{"payloads": [1]}'])
    async def test_a_body_that_holds_no_payloads_is_refused(
        self, client: httpx.AsyncClient, operator: dict[str, str], body: bytes
    ) -> None:
        answer = await client.post("/codec/decode", content=body, headers=operator)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")

    async def test_a_body_over_the_bound_is_refused(self, client: httpx.AsyncClient, operator: dict[str, str]) -> None:
        answer = await client.post("/codec/decode", content=b" " * (MAX_BODY_BYTES + 1), headers=operator)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


class TestWhoMayDecode:
    @pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER, Role.ORG_ADMIN])
    async def test_a_key_below_cluster_admin_is_forbidden(
        self, client: httpx.AsyncClient, vault: Vault, keys: Factory, role: Role
    ) -> None:
        answer = await client.post(
            "/codec/decode", json=await encrypted(vault), headers=bearer(keys.key(role=role).token)
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")

    @pytest.mark.parametrize("authorization", [None, "Bearer hr_unknown", "Bearer ", "Basic eDp5"])
    async def test_no_or_an_unknown_key_is_not_authenticated(
        self, client: httpx.AsyncClient, vault: Vault, authorization: str | None
    ) -> None:
        headers = {"Authorization": authorization} if authorization else {}
        answer = await client.post("/codec/decode", json=await encrypted(vault), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")

    async def test_an_address_that_fails_too_often_is_told_when_to_come_back(
        self, client: httpx.AsyncClient, vault: Vault, keys: Factory
    ) -> None:
        while (await client.post("/codec/login", data={"key": "hr_guess"})).status_code == 401:
            pass
        answer = await client.post("/codec/decode", json=await encrypted(vault), headers=bearer("hr_guess"))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        valid = bearer(keys.key(role=Role.CLUSTER_ADMIN).token)
        assert (await client.post("/codec/decode", json=await encrypted(vault), headers=valid)).status_code == 200


class TestLogin:
    async def test_an_operator_key_is_exchanged_for_a_cookie_that_does_not_hold_it(
        self, client: httpx.AsyncClient, vault: Vault, keys: Factory
    ) -> None:
        token = keys.key(role=Role.CLUSTER_ADMIN).token
        answer = await client.post("/codec/login", data={"key": f" {token}\n"})
        assert answer.status_code == 200
        assert token not in answer.text
        cookie = answer.headers["set-cookie"]
        assert token not in cookie
        assert {"HttpOnly", "SameSite=strict", "Path=/codec", "Max-Age=43200"} <= set(cookie.split("; "))
        decoded = await client.post("/codec/decode", json=await encrypted(vault))
        assert decoded.status_code == 200

    async def test_behind_a_proxy_with_tls_the_cookie_is_secure(self, client: httpx.AsyncClient, keys: Factory) -> None:
        token = keys.key(role=Role.CLUSTER_ADMIN).token
        answer = await client.post("/codec/login", data={"key": token}, headers={"X-Forwarded-Proto": "https"})
        assert "Secure" in answer.headers["set-cookie"]

    async def test_an_unknown_key_gets_no_cookie_and_is_not_echoed(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/codec/login", data={"key": "hr_<script>"})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "<script>" not in answer.text

    async def test_a_key_below_cluster_admin_gets_no_cookie(self, client: httpx.AsyncClient, keys: Factory) -> None:
        answer = await client.post("/codec/login", data={"key": keys.key(role=Role.ORG_ADMIN).token})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers

    async def test_the_form_runs_no_script_and_cannot_be_framed(self, client: httpx.AsyncClient) -> None:
        policy = (await client.get("/codec/login")).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy

    async def test_signing_out_ends_the_session(self, client: httpx.AsyncClient, vault: Vault, keys: Factory) -> None:
        await client.post("/codec/login", data={"key": keys.key(role=Role.CLUSTER_ADMIN).token})
        await client.post("/codec/logout")
        assert (await client.post("/codec/decode", json=await encrypted(vault))).status_code == 401


class TestSession:
    async def signed_in(self, client: httpx.AsyncClient, keys: Factory) -> str:
        key = keys.key(role=Role.CLUSTER_ADMIN)
        await client.post("/codec/login", data={"key": key.token})
        return key.key_id

    async def test_it_ends_after_twelve_hours(
        self, client: httpx.AsyncClient, vault: Vault, keys: Factory, clock: SettableClock
    ) -> None:
        cookie = issue_session(vault, await self.signed_in(client, keys), clock.advance(hours=12))
        client.cookies.set(COOKIE, cookie)
        clock.advance(-1)
        assert (await client.post("/codec/decode", json=await encrypted(vault))).status_code == 200
        clock.advance(1)
        assert (await client.post("/codec/decode", json=await encrypted(vault))).status_code == 401

    async def test_it_ends_with_the_revocation_of_its_key(
        self, client: httpx.AsyncClient, vault: Vault, keys: Factory, services: Services
    ) -> None:
        key_id = await self.signed_in(client, keys)
        await services.db.write(lambda session: revoke_key(session, key_id, services.clock()))
        assert (await client.post("/codec/decode", json=await encrypted(vault))).status_code == 401

    @pytest.mark.parametrize("change", ["key", "expiry", "signature", "nothing left"])
    async def test_a_cookie_that_was_changed_is_refused(
        self, client: httpx.AsyncClient, vault: Vault, keys: Factory, clock: SettableClock, change: str
    ) -> None:
        key_id, expiry, signature = issue_session(
            vault, keys.key(role=Role.CLUSTER_ADMIN).key_id, clock.advance(hours=1)
        ).split(".")
        other = keys.key(role=Role.CLUSTER_ADMIN).key_id
        changed = {
            "key": f"{other}.{expiry}.{signature}",
            "expiry": f"{key_id}.{int(expiry) + 1}.{signature}",
            "signature": f"{key_id}.{expiry}.{signature[:-1]}{'0' if signature[-1] != '0' else '1'}",
            "nothing left": "..",
        }
        client.cookies.set(COOKIE, changed[change])
        assert (await client.post("/codec/decode", json=await encrypted(vault))).status_code == 401


class TestCrossOrigin:
    async def test_the_temporal_ui_may_read_answers_and_errors(
        self, client: httpx.AsyncClient, vault: Vault, operator: dict[str, str]
    ) -> None:
        for headers in (operator, {}):
            answer = await client.post(
                "/codec/decode", json=await encrypted(vault), headers=headers | {"Origin": UI_ORIGIN}
            )
            assert answer.headers["access-control-allow-origin"] == UI_ORIGIN
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert answer.headers["vary"] == "Origin"

    async def test_its_preflight_allows_the_headers_that_it_sends(self, client: httpx.AsyncClient) -> None:
        answer = await client.options(
            "/codec/decode", headers={"Origin": UI_ORIGIN, "Access-Control-Request-Method": "POST"}
        )
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert answer.status_code == 204
        assert {"content-type", "x-namespace"} <= set(allowed)

    @pytest.mark.parametrize(
        "origin", ["http://127.0.0.1:8234", "http://localhost:8233", "https://127.0.0.1:8233", "null", "http://evil"]
    )
    async def test_no_other_origin_is_allowed(
        self, client: httpx.AsyncClient, vault: Vault, operator: dict[str, str], origin: str
    ) -> None:
        for answer in (
            await client.post("/codec/decode", json=await encrypted(vault), headers=operator | {"Origin": origin}),
            await client.options("/codec/decode", headers={"Origin": origin}),
        ):
            assert "access-control-allow-origin" not in answer.headers

    async def test_without_a_ui_url_no_origin_is_allowed(self, client: httpx.AsyncClient, services: Services) -> None:
        services.settings.temporal_ui_url = None
        answer = await client.options("/codec/decode", headers={"Origin": "://"})
        assert "access-control-allow-origin" not in answer.headers
