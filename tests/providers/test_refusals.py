"""What all backends' refusals have in common: the kind where no table names it, the message, and when to come back."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderNotFound,
    ProviderRejected,
    RateLimited,
)
from providers.refusals import MESSAGE_CHARACTERS, kind_of, refusal

SECRET = "canary-of-refusals"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthError), (402, BillingBlocked), (403, PermissionDenied), (404, ProviderNotFound), (429, RateLimited),
        (408, Ambiguous), (500, Ambiguous), (503, Ambiguous), (0, Ambiguous), (302, Ambiguous),
        (400, ProviderRejected), (409, ProviderRejected), (422, ProviderRejected),
    ],
)  # fmt: skip
def test_what_no_table_names_goes_by_its_status(status: int, kind: type[ProviderError]) -> None:
    assert kind_of(status, {"Other": NoCapacity}, ("Unknown",)) is kind


def test_the_first_code_that_the_table_knows_counts_over_the_status() -> None:
    table = {"NoCapacity": NoCapacity, "Denied": PermissionDenied}
    assert kind_of(500, table, ("Vague", "NoCapacity", "Denied")) is NoCapacity


def test_a_message_is_masked_before_it_is_cut() -> None:
    words = "x" * (MESSAGE_CHARACTERS - 5) + SECRET + "y" * 3_000_000
    message = refusal(Ambiguous, "create inst-x", "HTTP 500", words, (SECRET,), code=SECRET + "z" * 1_000).message
    assert message.startswith("create inst-x: HTTP 500, ***zzz")
    assert "canary" not in message
    assert len(message) < MESSAGE_CHARACTERS + 150


def test_what_every_call_would_meet_is_of_the_connection() -> None:
    scopes = {kind: refusal(kind, "w", "h", "", ()).scope for kind in (AuthError, RateLimited, NoCapacity, Ambiguous)}
    assert scopes == {AuthError: "connection", RateLimited: "connection", NoCapacity: "offer", Ambiguous: "offer"}
    assert refusal(NoCapacity, "w", "h", "", (), scope="connection").scope == "connection"


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("-1", 0.0), (None, None), ("soon", None)])
def test_when_to_come_back_is_the_headers_seconds(header: str | None, seconds: float | None) -> None:
    assert refusal(RateLimited, "w", "h", "", (), retry_after=header).retry_after_seconds == seconds


def test_when_to_come_back_may_be_a_date() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    seconds = refusal(RateLimited, "w", "h", "", (), retry_after=at).retry_after_seconds
    assert seconds is not None
    assert 3_500 < seconds <= 3_600
