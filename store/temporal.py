"""The connection to Temporal, the same for the API, the worker and the command line."""

from temporalio.client import Client, Interceptor
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

from settings import Settings
from store.payload_codec import EncryptingCodec
from store.vault import Vault

_JSON = PydanticJSONPlainPayloadConverter()
"""The only one: it keeps a compiled schema for each type."""


class SharedPayloadConverter(CompositePayloadConverter):
    """Pydantic's. Temporal makes a converter for each workflow: with schemas of its own each would hold 60 KB for as
    long as the workflow runs, and compile them anew."""

    def __init__(self) -> None:
        super().__init__(
            *(
                _JSON if isinstance(converter, JSONPlainPayloadConverter) else converter
                for converter in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


def data_converter(vault: Vault) -> DataConverter:
    """Pydantic models as JSON, encrypted. Failures: message and stack trace are encrypted, the type is in clear."""
    return DataConverter(
        payload_converter_class=SharedPayloadConverter,
        payload_codec=EncryptingCodec(vault),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


def interceptors(settings: Settings) -> list[Interceptor]:
    """What every client carries. Workers take them over from their client, so they are given to the client only."""
    return [TracingInterceptor()] if settings.otel_endpoint else []


async def connect(settings: Settings, vault: Vault, *, lazy: bool = False) -> Client:
    """Connects to `settings.temporal_address`; a lazy client connects at its first call.

    Call it after `observability.setup`, whose tracer the interceptor uses.

    Raises:
        RuntimeError: the server does not answer (never for a lazy client).
    """
    key = settings.temporal_api_key
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=data_converter(vault),
        interceptors=interceptors(settings),
        tls=settings.temporal_tls,
        api_key=key.get_secret_value() if key is not None else None,
        lazy=lazy,
    )
