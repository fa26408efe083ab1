"""`/codec`: Temporal's remote codec protocol, so that encrypted payloads read clearly in the Temporal UI.

Payloads are of all organizations, so this is for operators: keys with the role `cluster_admin`. A client sends the key
as `Authorization: Bearer`; the Temporal UI sends cookies only, so `/codec/login` exchanges a key for a session cookie,
naming the key's id, never the key. Only the origin of `HEADRACE_TEMPORAL_UI_URL` may read the answers in a browser.
"""

import html
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from google.protobuf import json_format
from sqlmodel import Session, col, select
from temporalio.api.common.v1 import Payloads

from api.rate_limits import RateLimits
from domain.clock import Clock
from domain.errors import (
    BadRequest,
    Forbidden,
    InvalidRequest,
    NotAuthenticated,
    PayloadTooLarge,
    RequestError,
    TooManyRequests,
)
from domain.roles import Role
from settings import Settings
from store.access import authenticate
from store.db import Database
from store.payload_codec import EncryptingCodec
from store.tables import ApiKey
from store.vault import Vault, VaultError

COOKIE = "headrace_codec"
SESSION = timedelta(hours=12)
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_FORM_BYTES = 4096

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class CodecServices(Protocol):
    """The part of `api.services.Services` that is needed here."""

    @property
    def settings(self) -> Settings: ...

    @property
    def db(self) -> Database: ...

    @property
    def vault(self) -> Vault: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def rate_limits(self) -> RateLimits: ...


class _UiRoute(APIRoute):
    """Answers, errors too, that a browser shows to the Temporal UI's origin and to no other."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except RequestError as error:
                response = _refusal(request, error)
            response.headers.update(_cors(request))
            return response

        return answer


router = APIRouter(prefix="/codec", route_class=_UiRoute, include_in_schema=False)


@router.options("/decode")
async def preflight() -> Response:
    return Response(status_code=204)


@router.post("/decode")
async def decode(request: Request) -> Response:
    """`{"payloads": [{"metadata": {...}, "data": base64}]}` in and out; what is not encrypted comes back as it is."""
    services = _services(request)
    await _require_operator(request, services)
    body = await _bounded_body(request, MAX_BODY_BYTES)
    payloads = _parse(body)
    try:
        opened = EncryptingCodec(services.vault).open_all(payloads.payloads)
    except VaultError as error:
        raise InvalidRequest(str(error), code="undecodable_payload") from None
    return Response(json_format.MessageToJson(Payloads(payloads=opened)), media_type="application/json")


@router.get("/login")
async def login_form(request: Request) -> Response:
    return _form_page(status=200)


@router.post("/login")
async def login(request: Request) -> Response:
    """Sets the session cookie for a valid operator key; the page never shows the key again."""
    services = _services(request)
    fields = parse_qs((await _bounded_body(request, MAX_FORM_BYTES)).decode(errors="replace"))
    token = fields.get("key", [""])[0].strip()
    principal = None
    if token:
        principal = await services.db.read(lambda session: authenticate(session, token, services.clock()))
    if principal is None:
        _count_failure(request, services)
        return _form_page(status=401, problem="This key is not known, or was revoked.")
    if principal.role is not Role.CLUSTER_ADMIN:
        return _form_page(
            status=403, problem=f"This key has the role {principal.role}; {Role.CLUSTER_ADMIN} is needed."
        )
    scheme = "https" if _served_over_https(request) else "http"
    response = _signed_in_page(services.settings.temporal_ui_url, f"{scheme}://{request.url.netloc}/codec")
    response.set_cookie(
        COOKIE,
        issue_session(services.vault, principal.key_id, services.clock() + SESSION),
        max_age=int(SESSION.total_seconds()),
        path=router.prefix,
        secure=_served_over_https(request),
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/logout")
async def logout(request: Request) -> Response:
    response = _form_page(status=200)
    response.delete_cookie(COOKIE, path=router.prefix)
    return response


def issue_session(vault: Vault, key_id: str, expires_at: datetime) -> str:
    """A cookie value: which key it was made for and until when, signed."""
    claim = f"{key_id}.{int(expires_at.timestamp())}"
    return f"{claim}.{vault.fingerprint(_signed_part(claim))}"


def read_session(vault: Vault, cookie: str, now: datetime) -> str | None:
    """The key id of a session; None when it was not issued by us, was changed, or has expired."""
    key_id, _, rest = cookie.partition(".")
    expiry, _, signature = rest.partition(".")
    if not vault.matches(signature, _signed_part(f"{key_id}.{expiry}")):
        return None
    return key_id if datetime.fromtimestamp(int(expiry), UTC) > now else None


def _signed_part(claim: str) -> bytes:
    return f"codec-session:{claim}".encode()


async def _require_operator(request: Request, services: CodecServices) -> None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme:
        principal = None
        if scheme.lower() == "bearer" and token.strip():
            principal = await services.db.read(lambda session: authenticate(session, token.strip(), services.clock()))
        role = principal.role if principal else None
    else:
        key_id = read_session(services.vault, request.cookies.get(COOKIE, ""), services.clock())
        role = (
            await services.db.read(lambda session: _role_of(session, key_id or "", services.clock()))
            if key_id
            else None
        )
    if role is None:
        _count_failure(request, services)
        raise NotAuthenticated("sign in at /codec/login, or send a key with the role cluster_admin")
    if role is not Role.CLUSTER_ADMIN:
        raise Forbidden(f"decoding payloads needs the role {Role.CLUSTER_ADMIN}, this key has {role}")


def _count_failure(request: Request, services: CodecServices) -> None:
    """Raises TooManyRequests for an address that has failed too often."""
    services.rate_limits.failure(request.client.host if request.client else "")


def _role_of(session: Session, key_id: str, now: datetime) -> Role | None:
    """The role of a key that is still valid: a session ends with its key."""
    key = session.exec(select(ApiKey).where(ApiKey.id == key_id, col(ApiKey.revoked_at).is_(None))).one_or_none()
    valid = key is not None and (key.expires_at is None or key.expires_at > now)
    return Role(key.role) if key is not None and valid else None


def _parse(body: bytes) -> Payloads:
    payloads = Payloads()
    try:
        document = orjson.loads(body)
        if not isinstance(document, dict) or not isinstance(document.get("payloads"), list):
            raise ValueError("no payloads")
        json_format.ParseDict(document, payloads, ignore_unknown_fields=True)
    except (ValueError, json_format.ParseError, AttributeError, TypeError):
        raise BadRequest('the body is not JSON of the form {"payloads": [...]}') from None
    return payloads


async def _bounded_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes", details={"limit": limit})
    return bytes(body)


def _services(request: Request) -> CodecServices:
    services: CodecServices = request.app.state.services
    return services


def _served_over_https(request: Request) -> bool:
    """Directly, or by a proxy that says so: a caller who lies about it harms its own cookie only."""
    return "https" in {request.url.scheme, request.headers.get("x-forwarded-proto", "").lower()}


def _cors(request: Request) -> dict[str, str]:
    url = urlsplit(_services(request).settings.temporal_ui_url or "")
    headers = {"Vary": "Origin"}
    if not url.netloc or request.headers.get("origin") != f"{url.scheme}://{url.netloc}":
        return headers
    return headers | {
        "Access-Control-Allow-Origin": f"{url.scheme}://{url.netloc}",
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "content-type, x-namespace, authorization",
        "Access-Control-Max-Age": "600",
    }


def _refusal(request: Request, error: RequestError) -> Response:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if (request_id := getattr(request.state, "request_id", None)) is not None:
        body["request_id"] = request_id
    if error.details:
        body["details"] = error.details
    headers = {"Retry-After": str(error.retry_after_seconds)} if isinstance(error, TooManyRequests) else None
    return Response(orjson.dumps({"error": body}), error.status, headers, media_type="application/json")


def _page(title: str, content: str, status: int) -> Response:
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><main><h1>{title}</h1>{content}</main></html>"
    )
    return Response(text, status, headers=_PAGE_HEADERS, media_type="text/html")


def _form_page(status: int, problem: str | None = None) -> Response:
    shown = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
    form = (
        "<p>Signing in lets the Temporal UI in this browser decode encrypted payloads for 12 hours.</p>"
        f'{shown}<form method="post" action="/codec/login">'
        '<p><label for="key">API key with the role cluster_admin</label></p>'
        '<p><input id="key" name="key" type="password" autocomplete="off" size="50" required autofocus></p>'
        '<p><button type="submit">Sign in</button></p></form>'
    )
    return _page("Headrace: decode payloads", form, status)


def _signed_in_page(ui_url: str | None, codec_url: str) -> Response:
    safe = html.escape(ui_url or "", quote=True)
    link = f'<p>Open the <a href="{safe}">Temporal UI</a>.</p>' if ui_url else "<p>Open the Temporal UI.</p>"
    out = '<form method="post" action="/codec/logout"><p><button type="submit">Sign out</button></p></form>'
    red = (
        "<p>If the glasses at its top right are red, click them: <em>Use my browser setting</em>, the endpoint "
        f"<code>{html.escape(codec_url)}</code>, <em>Include cross-origin credentials</em>, <em>Apply</em>; reload.</p>"
    )
    return _page("Headrace: signed in", link + red + out, 200)
