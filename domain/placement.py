"""The placement menu: which offers may serve a request, why the others may not, and in which order to try them.

The same function serves allocation and quotes, so a quote is what a create would get.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from domain.limits import affordable
from domain.money import UsdPerHour
from domain.offers import Capabilities, Offer
from domain.spec import JobSpec, PlacementStrategy, SpotPolicy

# Curated precedence of `capacity_optimized`: own hardware first, then breadth of capacity. Unknown ones come last.
PRECEDENCE = ("local", "ssh", "aws", "gcp", "azure", "nebius", "oci", "runpod", "modal", "vastai")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a provider has no eligible offer: a sentence for people."""

    provider: str
    message: str


@dataclass(frozen=True, slots=True)
class Menu:
    """Offers in the order of trying, and a reason for each provider that has none."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...]

    def explain(self) -> str:
        """One line that says why nothing is eligible."""
        if not self.refusals:
            return "no backend is connected"
        return "; ".join(f"{r.provider}: {r.message}" for r in self.refusals)


def menu(
    spec: JobSpec,
    offers: Iterable[Offer],
    capabilities: Mapping[str, Capabilities],
    *,
    spent: Decimal = Decimal(0),
    rejected: frozenset[str] = frozenset(),
) -> Menu:
    """The eligible offers for `spec`, best first.

    `spent` is what earlier attempts have cost (USD); `rejected` holds the ids of offers that were tried in this round.
    """
    by_provider: dict[str, list[Offer]] = {name: [] for name in capabilities}
    for offer in offers:
        by_provider.setdefault(offer.provider, []).append(offer)
    eligible: list[Offer] = []
    refusals: list[Refusal] = []
    for provider, candidates in sorted(by_provider.items()):
        reason = _provider_refusal(spec, provider, capabilities.get(provider, Capabilities()))
        if reason is None:
            verdicts = [(offer, _offer_refusal(spec, offer, spent)) for offer in candidates]
            good = [offer for offer, verdict in verdicts if verdict is None and offer.id not in rejected]
            eligible += good
            if not good:
                reason = _summary(verdicts)
        if reason is not None:
            refusals.append(Refusal(provider, reason))
    return Menu(tuple(sorted(eligible, key=_order(spec.placement.strategy))), tuple(refusals))


def _provider_refusal(spec: JobSpec, provider: str, can: Capabilities) -> str | None:
    wanted = spec.placement.providers
    protocols = {port.protocol for port in spec.ports}
    if wanted and provider not in wanted:
        return f"not among the requested providers ({', '.join(wanted)})"
    if "http" in protocols and not can.http_ports:
        return "publishes no http ports"
    if "tcp" in protocols and not can.tcp_ports:
        return "publishes no tcp ports"
    if spec.ssh_public_key and not can.ssh:
        return "offers no SSH access"
    if spec.image_pull_secret and not can.private_image:
        return "pulls no private images"
    if (spec.compute.instance_count or 1) > 1 and not can.multi_node:
        return "runs single-instance jobs only"
    if can.bundles_cpu_with_gpu and spec.compute.gpu_count and spec.compute.vcpu_count is not None:
        return "bundles CPU with the GPU and takes no vcpu_count"
    return None


def _offer_refusal(spec: JobSpec, offer: Offer, spent: Decimal) -> str | None:
    wanted, place = spec.compute, spec.placement
    if offer.accelerator != wanted.accelerator or offer.gpu_count != wanted.gpu_count:
        return f"has no {wanted.gpu_count or ''} {wanted.accelerator}".replace("  ", " ")
    if not offer.available:
        return "has none free now"
    if wanted.vcpu_count is not None and offer.vcpus < wanted.vcpu_count:
        return f"has at most {offer.vcpus} vCPUs, {wanted.vcpu_count} wanted"
    if offer.ephemeral_disk_gb < wanted.ephemeral_disk_gb:
        return f"has {offer.ephemeral_disk_gb} GB of disk, {wanted.ephemeral_disk_gb} wanted"
    if wanted.interconnect is not None and offer.interconnect != wanted.interconnect:
        return f"has no {wanted.interconnect} interconnect"
    if offer.spot and place.spot is SpotPolicy.NEVER:
        return "has spot instances only, and spot was not allowed"
    if not offer.spot and place.spot is SpotPolicy.ONLY:
        return "has no spot instances"
    if place.max_price_usd_hr is not None and offer.price_usd_hr > place.max_price_usd_hr:
        return f"costs {offer.price_usd_hr} USD/h, at most {place.max_price_usd_hr} wanted"
    if place.regions and offer.region not in place.regions:
        return f"is not in the regions {', '.join(place.regions)}"
    if place.zones and offer.zone not in place.zones:
        return f"is not in the zones {', '.join(place.zones)}"
    if not affordable(
        UsdPerHour(offer.price_usd_hr),
        offer.pricing_model.unit_seconds,
        offer.teardown_seconds,
        spent,
        spec.limits.max_cost_usd,
    ):
        return f"{OVER_LIMIT} max_cost_usd {spec.limits.max_cost_usd} at {offer.price_usd_hr} USD/h"
    return None


OVER_LIMIT = "its first billable unit would exceed"


def only_too_dear(result: Menu) -> bool:
    """Whether money alone stands in the way: nothing is eligible and some provider would be but for max_cost_usd."""
    return not result.offers and any(r.message.startswith(OVER_LIMIT) for r in result.refusals)


def _summary(verdicts: Sequence[tuple[Offer, str | None]]) -> str:
    """The most telling refusal: the one of the offer that came furthest, which is the last distinct kind of check."""
    reasons = [reason for _, reason in verdicts if reason is not None]
    if not reasons:
        return "all its offers were tried" if verdicts else "has no offers"
    telling = [r for r in reasons if not r.startswith("has no ")] or reasons
    return telling[0]


def _order(strategy: PlacementStrategy) -> Callable[[Offer], tuple[Decimal | int, Decimal | int, str]]:
    rank = {name: index for index, name in enumerate(PRECEDENCE)}

    def key(offer: Offer) -> tuple[Decimal | int, Decimal | int, str]:
        precedence = rank.get(offer.provider, len(rank))
        if strategy is PlacementStrategy.LOWEST_COST:
            return (offer.price_usd_hr, precedence, offer.id)
        return (precedence, offer.price_usd_hr, offer.id)

    return key
