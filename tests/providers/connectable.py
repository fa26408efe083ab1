"""The simulated cloud as a third party's backend: what an entry point of `headrace.providers` names."""

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
