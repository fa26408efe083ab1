"""Fills the offers cache as a poll would."""

from decimal import Decimal
from typing import Any

from domain.offers import Capabilities, Offer
from store import offers
from store.offers import Snapshot
from tests.api.conftest import Api

GPU = "nvidia-l4-24gb"
ABLE = Capabilities(http_ports=True, tcp_ports=True, ssh=True, private_image=True)


class Market:
    """Connections by their provider's name."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def offer(self, provider: str, offer_id: str, **fields: Any) -> Offer:
        defaults: dict[str, Any] = {
            "id": offer_id,
            "provider": provider,
            "connection_id": provider,
            "provider_sku": f"sku-{offer_id}",
            "accelerator": GPU,
            "gpu_count": 1,
            "gpu_memory_gb": 24,
            "vcpus": 8,
            "memory_gb": 31.5,
            "ephemeral_disk_gb": 200,
            "price_usd_hr": Decimal("0.72"),
            "region": "eu-1",
            "observed_at": self._api.services.clock(),
            "network_isolated": True,
        }
        return Offer(**(defaults | fields))

    def polled(self, provider: str, *found: Offer, capabilities: Capabilities = ABLE) -> None:
        now = self._api.services.clock()
        self._api.write(lambda s: offers.replace(s, provider, provider, capabilities, Snapshot.of(found), 42, now))

    def failed(self, provider: str, message: str = "no answer", kind: str = "ambiguous") -> None:
        now = self._api.services.clock()
        self._api.write(lambda s: offers.poll_failed(s, provider, provider, kind, message, 7, now))

    def blocked(self, provider: str) -> None:
        self._api.write(lambda s: offers.block(s, provider, provider, "auth", "the key is wrong"))
