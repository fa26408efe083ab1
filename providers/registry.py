"""The providers of this process, by connection. The worker builds them: nothing is imported before it is configured."""

from collections.abc import Mapping
from dataclasses import dataclass

from domain.offers import Capabilities
from providers.base import Provider


@dataclass
class Providers:
    """Connected backends. Order does not matter: placement orders offers."""

    by_connection: dict[str, Provider]

    def of(self, connection_id: str) -> Provider:
        """The provider of a connection.

        Raises:
            LookupError: the connection is not configured in this process.
        """
        provider = self.by_connection.get(connection_id)
        if provider is None:
            raise LookupError(f"connection {connection_id!r} is not configured here")
        return provider

    @property
    def capabilities(self) -> Mapping[str, Capabilities]:
        return {provider.name: provider.capabilities for provider in self.by_connection.values()}

    async def close(self) -> None:
        """Releases connections; instances stay."""
        for provider in self.by_connection.values():
            await provider.close()
