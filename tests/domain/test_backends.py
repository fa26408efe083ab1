"""Backends as data: their terms and precedence, and those that an installed package brings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain import backends
from domain.backends import LAST, OURS, backend_of, catalog, precedence_of
from domain.errors import InvalidRequest
from domain.money import PricingModel
from domain.terms import DEFAULT
from tests.domain.test_placement import ask, ids, offer, spec
from tests.providers.connectable import installed

DOCUMENT = Path("docs/adding-a-provider.md")


def test_own_hardware_comes_first_and_no_two_backends_share_a_place() -> None:
    order = sorted(OURS, key=lambda backend: backend.precedence)
    assert [backend.key for backend in order] == [
        "ssh", "aws", "gcp", "azure", "nebius", "oci", "runpod", "modal", "vastai",
    ]  # fmt: skip
    assert len({backend.precedence for backend in OURS}) == len(OURS)
    assert precedence_of("local") < precedence_of("ssh")
    assert precedence_of("what is this") == LAST


def test_only_what_is_ones_own_is_charged_by_the_minute() -> None:
    by_minute = {backend.key for backend in OURS if backend.billing.pricing_model is PricingModel.INSTANCE_MINUTES}
    assert by_minute == {"ssh"}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example of the document, as pip would leave it: a package and its metadata on the path."""
    module, project = (_example(language) for language in ("python", "toml"))
    (tmp_path / "headrace_acme").mkdir()
    (tmp_path / "headrace_acme/__init__.py").touch()
    (tmp_path / "headrace_acme/backend.py").write_text(module)
    entries = dict(re.findall(r'^(\w+) = "(.+)"$', project, re.MULTILINE))
    with installed(tmp_path, monkeypatch, **entries):
        yield "acme"


def _example(language: str) -> str:
    found = re.search(rf"^```{language}\n(.+?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_an_installed_package_brings_a_backend_with_its_form_terms_and_place(acme: str) -> None:
    found = backend_of(acme)
    assert [field.name for field in found.fields if field.secret] == ["api_key"]
    assert found.billing.minimum_seconds == 600
    assert precedence_of(acme) == 35
    values = backends.check_fields(found, {"api_key": "k", "regions": ["oslo-1"]})
    assert values == {"api_key": "k", "regions": ["oslo-1"]}
    with pytest.raises(InvalidRequest, match=r"fields\.regions"):
        backends.check_fields(found, {"api_key": "k", "regions": ["../"]})


def test_its_offers_are_charged_and_ordered_by_what_it_declares(acme: str) -> None:
    offers = [offer(name, provider=name) for name in ("vastai", acme, "azure", "gcp", "local")]
    assert offers[1].terms == catalog()[acme].billing != DEFAULT
    assert ids(ask(spec(), *offers)) == ["local", "gcp", acme, "azure", "vastai"]


def test_a_package_takes_no_place_of_ours(acme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"aws": backend_of(acme)}
    backends._third_parties.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(backends, "_third_parties", lambda: theirs)
        assert catalog()["aws"] is OURS[0]
