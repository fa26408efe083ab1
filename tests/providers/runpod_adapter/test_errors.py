"""What RunPod's refusals mean, and answers of another shape."""

import httpx
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
    QuotaExceeded,
    RateLimited,
)
from providers.fake.control import CloudControl
from providers.fake.faults import Answer, Operation
from providers.runpod.answers import PodPage, kind_of_sentence, read_graphql, read_rest
from providers.runpod.provider import RunPodProvider


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "detail", "kind"),
        [
            (400, "There are no longer any instances available with the requested specifications.", NoCapacity),
            (400, "This machine does not have the resources to deploy your pod.", NoCapacity),
            (400, "Renting this pod would exceed your spend limit of $80 per hour.", QuotaExceeded),
            (400, "Your account balance is too low to rent this pod.", BillingBlocked),
            (400, "exactly one of gpu and cpu must be set", ProviderRejected),
            (401, "missing bearer token", AuthError),
            (402, "Insufficient balance", BillingBlocked),
            (403, "access denied", PermissionDenied),
            (403, "Your account cannot access the requested pool.", QuotaExceeded),
            (404, "pod not found", ProviderNotFound),
            (409, "the pod belongs to a cluster", ProviderRejected),
            (422, "Request validation failed.", ProviderRejected),
            (422, "access denied to the image, or there are no instances available of it", ProviderRejected),
            (429, "rate limit exceeded for the minute window", RateLimited),
            (500, "internal error", Ambiguous),
            (503, "There are no longer any instances available", Ambiguous),
        ],
    )
    @pytest.mark.parametrize("http_status", [None, 200])
    def test_rest_refusals_are_of_these_kinds(
        self, status: int, detail: str, kind: type[ProviderError], http_status: int | None
    ) -> None:
        body = {"title": "x", "status": status, "detail": detail}
        with pytest.raises(ProviderError) as caught:
            read_rest(httpx.Response(http_status or status, json=body), PodPage, "list", ())
        assert type(caught.value) is kind

    @pytest.mark.parametrize(
        ("status", "code", "message", "kind"),
        [
            (
                200,
                "RUNPOD",
                "There are no longer any instances available with the requested specifications.",
                NoCapacity,
            ),
            (200, "INTERNAL_SERVER_ERROR", "There are no longer any instances available", NoCapacity),
            (200, "RUNPOD", "Your bid is too low to rent this pod", NoCapacity),
            (200, "INTERNAL_SERVER_ERROR", "Something went wrong. Please try again later.", Ambiguous),
            (200, "INTERNAL_SERVER_ERROR", "x is undefined", Ambiguous),
            (200, "BAD_USER_INPUT", "Variable $input got an invalid value", ProviderRejected),
            (200, "UNAUTHENTICATED", "no", AuthError),
            (200, "FORBIDDEN", "no", PermissionDenied),
            (200, "RUNPOD", "You do not have permission to do this", PermissionDenied),
            (200, "RUNPOD", "Your account balance is too low", BillingBlocked),
            (200, "RUNPOD", "You have reached the maximum number of pods", QuotaExceeded),
            (200, "RUNPOD", "what is this", ProviderRejected),
            (429, "x", "slow down", RateLimited),
            (502, "x", "bad gateway", Ambiguous),
        ],
    )
    def test_graphql_refusals_are_of_these_kinds(
        self, status: int, code: str, message: str, kind: type[ProviderError]
    ) -> None:
        body = {"errors": [{"message": message, "extensions": {"code": code}}], "data": None}
        with pytest.raises(ProviderError) as caught:
            read_graphql(httpx.Response(status, json=body), "create", ())
        assert type(caught.value) is kind

    def test_words_that_a_refusal_repeats_of_the_request_decide_nothing(self) -> None:
        assert kind_of_sentence("cannot read the request: " + "x" * 200 + " quota, spend limit, forbidden") is None

    @pytest.mark.parametrize(
        "body",
        [
            b"[]", b"{}", b"null", b"", b"<html>", b'{"pods": null}', b'{"pods": [{}]}', b'{"pods": [null]}',
            b'{"pods": [], "pagination": {}}', b'{"pods": [], "pagination": {"hasNextPage": "perhaps"}}',
        ],
    )  # fmt: skip
    def test_a_list_of_another_shape_is_no_list(self, body: bytes) -> None:
        with pytest.raises(Ambiguous):
            read_rest(httpx.Response(200, content=body), PodPage, "list", ())


async def test_of_an_answer_without_end_no_more_is_kept_than_of_any_true_one(
    provider: RunPodProvider, control: CloudControl
) -> None:
    await control.fault(Operation.LIST, Answer.INVALID, message_bytes=17 << 20)
    with pytest.raises(Ambiguous, match=r"an answer of more than 16 MiB$"):
        await provider.list_owned()
