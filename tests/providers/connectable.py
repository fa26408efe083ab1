"""The simulated cloud as a third party's backend: what an entry point of `headrace.providers` names."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain import backends
from domain.backends import Backend, FieldKind, FormField, Values
from providers.base import Provider, ProviderContext
from providers.fake.provider import FakeProvider

SIMULATED = Backend(
    "fake",
    "Simulated",
    "For tests",
    (FormField("url", "URL"), FormField("api_key", "API Key", FieldKind.SECRET)),
    "tests.providers.connectable:build",
)


def build(context: ProviderContext, values: Values) -> Provider:
    context.options = {**context.options, "api_key": values["api_key"]}
    return FakeProvider(context, values["url"])


@contextlib.contextmanager
def installed(directory: Path, monkeypatch: pytest.MonkeyPatch, **entries: str) -> Iterator[None]:
    """While a package with these entry points of `headrace.providers` is installed: what pip leaves of one, on the path
    by a directory of its own. By default it is the simulated cloud's."""
    entries = entries or {SIMULATED.key: f"{__name__}:SIMULATED"}
    metadata = directory / "headrace_third_party-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-third-party\nVersion: 1.0\n")
    lines = [f"[{backends.GROUP}]", *(f"{key} = {value}" for key, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    with monkeypatch.context() as path:
        path.syspath_prepend(directory)
        backends._third_parties.cache_clear()
        yield
    backends._third_parties.cache_clear()
