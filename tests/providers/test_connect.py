"""From what was filled in to a provider, where that cannot be."""

from dataclasses import replace

import pytest

from domain import backends
from domain.errors import InvalidRequest, ProviderRejected
from providers.base import ProviderContext
from providers.connect import build
from tests.providers.connectable import SIMULATED

CONTEXT = ProviderContext("conn", "owner", "/nonexistent")


@pytest.mark.parametrize(("key", "missing"), [("runpod", r"headrace\[runpod\]"), ("fake", "it")])
def test_a_package_that_is_not_there_is_named_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, key: str, missing: str
) -> None:
    found = replace(backends.catalog().get(key, SIMULATED), factory="no_such_module:build")
    monkeypatch.setattr("providers.connect.catalog", lambda: {key: found})
    monkeypatch.setattr("providers.connect.OURS", () if key == "fake" else (found,))
    with pytest.raises(ProviderRejected, match=rf"lacks the package no_such_module: install {missing} where"):
        build(key, CONTEXT, {})


def test_a_backend_without_an_adapter_is_named() -> None:
    with pytest.raises(ProviderRejected, match="no adapter for 'modal'"):
        build("modal", CONTEXT, {})


def test_a_value_that_is_none_of_a_providers_is_not_repeated() -> None:
    with pytest.raises(ProviderRejected) as caught:
        build("runpod", CONTEXT, {"api_key": "k", "min_cuda_version": "canary-value"})
    assert "min_cuda_version" in caught.value.message
    assert "canary" not in caught.value.message


def test_what_an_adapter_chokes_on_is_a_refusal_of_that_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def choke(*_: object) -> None:
        raise UnicodeEncodeError("ascii", "canary-value", 0, 1, "no")

    monkeypatch.setattr("providers.connect.runpod", choke)
    with pytest.raises(ProviderRejected, match="UnicodeEncodeError") as caught:
        build("runpod", CONTEXT, {"api_key": "k"})
    assert "canary" not in caught.value.message
    with pytest.raises(ProviderRejected, match="JSON file of a service account"):
        build("gcp", CONTEXT, {"service_account_key": "[" * 16_000})


@pytest.mark.parametrize("key", ["canary\r\nX: y", "canary-\u00e9"])
def test_a_key_that_no_header_carries_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"fields\.api_key: is no API Key") as caught:
        backends.check_fields(backends.backend_of("runpod"), {"api_key": key})
    assert "canary" not in caught.value.message
