"""From what was filled in to a provider, where that cannot be."""

from dataclasses import replace

import pytest

from domain import backends
from domain.errors import ProviderRejected
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
