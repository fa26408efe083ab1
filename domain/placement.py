"""The placement menu: which offers may serve a request, why the others may not, and in which order to try them.

The same function serves allocation and quotes, so a quote is what a create would get.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import cache
from types import MappingProxyType
from typing import Any

from domain.backends import precedence_of
from domain.limits import affordable, least_cost
from domain.money import UsdPerHour
from domain.offers import Capabilities, Offer
from domain.spec import ComputeRequest, JobSpec, PlacementStrategy, SpotPolicy

_MICRO_USD = Decimal("1e-6")
_SHOWN_NAMES = 5
_REASON_CHARACTERS = 300
_MOST_REASONS = 32


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a provider has no eligible offer: a sentence for people, about the offer that came closest."""

    provider: str
    message: str


@dataclass(frozen=True, slots=True)
class Menu:
    """Offers in the order of trying, and a reason for each provider that has none."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...]
    may_free_up: bool = False
    """Whether some offer would serve, were it not taken at the moment: worth waiting for."""
    over_limit: bool = False
    """Whether some offer would serve, were it not for `max_cost_usd`."""

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
    reserved: frozenset[str] = frozenset(),
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> Menu:
    """The eligible offers for `spec`, best first.

    `spent` is what earlier attempts have cost (USD); `rejected` holds the `ref` of each offer that was tried in vain,
    `reserved` those of the exclusive offers that other attempts have. `unreadable` are the providers whose offers are
    not known now, each with the reason.
    """
    by_provider: dict[str, list[Offer]] = {name: [] for name in capabilities}
    for offer in offers:
        by_provider.setdefault(offer.provider, []).append(offer)
    eligible: list[Offer] = []
    refusals: list[Refusal] = []
    stopped_by: set[_Rule] = set()
    for provider, candidates in sorted(by_provider.items()):
        reason = _provider_refusal(spec, provider, capabilities.get(provider, Capabilities()))
        if reason is None:
            verdicts = [(offer, _first_refusal(spec, _as_it_stands(offer, reserved), spent)) for offer in candidates]
            good = [offer for offer, verdict in verdicts if verdict is None and offer.ref not in rejected]
            eligible += good
            stopped = [verdict for _, verdict in verdicts if verdict is not None]
            stopped_by |= {_OFFER_RULES[place] for place, _ in stopped}
            if not good:
                reason = _summary(spec.compute, candidates, stopped, tried=len(stopped) < len(verdicts))
        if reason is not None:
            refusals.append(Refusal(provider, reason))
    refusals += _missing(spec, by_provider.keys(), unreadable)
    return Menu(
        offers=tuple(sorted(eligible, key=_order(spec.placement.strategy))),
        refusals=tuple(sorted(refusals, key=lambda refusal: refusal.provider)),
        may_free_up=_taken in stopped_by,
        over_limit=_over_limit in stopped_by,
    )


def reason_details(refusals: Sequence[Refusal]) -> dict[str, Any] | None:
    """Refusals as a job's `reason.details`, bounded; None when there are none."""
    shown = [{"provider": r.provider, "reason": r.message[:_REASON_CHARACTERS]} for r in refusals[:_MOST_REASONS]]
    return {"providers": shown} if shown else None


def only_too_dear(result: Menu) -> bool:
    """Whether money alone stands in the way: nothing is eligible, or may become so, but for `max_cost_usd`."""
    return not result.offers and result.over_limit and not result.may_free_up


def _as_it_stands(offer: Offer, reserved: frozenset[str]) -> Offer:
    return offer.model_copy(update={"available": False}) if offer.exclusive and offer.ref in reserved else offer


def _missing(spec: JobSpec, known: Collection[str], unreadable: Mapping[str, str]) -> list[Refusal]:
    """Providers of which there is no word: those that do not answer, and those that were asked for and do not exist."""
    wanted = spec.placement.providers
    found = [
        Refusal(name, why) for name, why in unreadable.items() if name not in known and name in (wanted or (name,))
    ]
    return found + [
        Refusal(name, "is not connected")
        for name in dict.fromkeys(wanted)
        if name not in known and name not in unreadable
    ]


def _provider_refusal(spec: JobSpec, provider: str, can: Capabilities) -> str | None:
    wanted = spec.placement.providers
    protocols = {port.protocol for port in spec.ports}
    if wanted and provider not in wanted:
        return f"is not among the requested providers ({_some(wanted)})"
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


_Rule = Callable[[JobSpec, Offer, Decimal], str | None]
"""Why the offer may not serve the job, with what earlier attempts have cost; None when it may."""


def _other_hardware(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    wanted = spec.compute
    if (offer.accelerator, offer.gpu_count) == (wanted.accelerator, wanted.gpu_count):
        return None
    return f"has no {_hardware(wanted)}"


def _few_vcpus(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    wanted = spec.compute.vcpu_count
    return None if wanted is None or offer.vcpus >= wanted else f"has at most {offer.vcpus} vCPUs, {wanted} wanted"


def _small_disk(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    wanted = spec.compute.ephemeral_disk_gb
    return None if offer.ephemeral_disk_gb >= wanted else f"has {offer.ephemeral_disk_gb} GB of disk, {wanted} wanted"


def _other_interconnect(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    wanted = spec.compute.interconnect
    return None if wanted is None or offer.interconnect == wanted else f"has no {wanted} interconnect"


def _unwanted_spot(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    if offer.spot and spec.placement.spot is SpotPolicy.NEVER:
        return "has spot instances only, and spot was not allowed"
    if not offer.spot and spec.placement.spot is SpotPolicy.ONLY:
        return "has no spot instances"
    return None


def _elsewhere(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    regions, zones = spec.placement.regions, spec.placement.zones
    if regions and offer.region not in regions:
        return f"is not in the regions {_some(regions)}"
    if zones and offer.zone not in zones:
        return f"is not in the zones {_some(zones)}"
    return None


def _above_price(spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    most = spec.placement.max_price_usd_hr
    return (
        None
        if most is None or offer.price_usd_hr <= most
        else f"costs {offer.price_usd_hr} USD/h, at most {most} wanted"
    )


def _over_limit(spec: JobSpec, offer: Offer, spent: Decimal) -> str | None:
    price, unit_seconds = UsdPerHour(offer.price_usd_hr), offer.pricing_model.unit_seconds
    most = spec.limits.max_cost_usd
    minimum_seconds = offer.terms.minimum_seconds
    if affordable(price, unit_seconds, offer.teardown_seconds, spent, most, minimum_seconds):
        return None
    least = spent + least_cost(price, unit_seconds, offer.teardown_seconds, minimum_seconds)
    least = least.quantize(_MICRO_USD, ROUND_CEILING)
    return f"would bring the cost to {least} USD at least (at {price} USD/h): above max_cost_usd {most}"


def _over_quota(_spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    return offer.over_quota


def _taken(_spec: JobSpec, offer: Offer, _spent: Decimal) -> str | None:
    return None if offer.available else "has none free now"


# An offer that fails a later rule came closer: money is judged of what fits, availability of what could be paid.
_OFFER_RULES: tuple[_Rule, ...] = (
    _other_hardware,
    _few_vcpus,
    _small_disk,
    _other_interconnect,
    _unwanted_spot,
    _elsewhere,
    _above_price,
    _over_limit,
    _over_quota,
    _taken,
)


def _first_refusal(spec: JobSpec, offer: Offer, spent: Decimal) -> tuple[int, str] | None:
    """The place of the first rule that refuses the offer, and its reason; None when all pass."""
    for place, rule in enumerate(_OFFER_RULES):
        reason = rule(spec, offer, spent)
        if reason is not None:
            return place, reason
    return None


def _summary(
    wanted: ComputeRequest, candidates: Sequence[Offer], stopped: Sequence[tuple[int, str]], *, tried: bool
) -> str:
    if tried:
        return "all its eligible offers were tried"
    if not stopped:
        return f"has no offers of {_hardware(wanted)}"
    place, reason = max(stopped, key=lambda verdict: verdict[0])
    if _OFFER_RULES[place] is not _other_hardware:
        return reason
    return f"{reason}, only {_some(sorted({_hardware(offer) for offer in candidates}))}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{', '.join(names[:_SHOWN_NAMES])}{more}"


def _hardware(of: ComputeRequest | Offer) -> str:
    return f"{of.gpu_count} x {of.accelerator}" if of.gpu_count else of.accelerator


def _order(strategy: PlacementStrategy) -> Callable[[Offer], tuple[Decimal | int, Decimal | int, str]]:
    rank = cache(precedence_of)

    def key(offer: Offer) -> tuple[Decimal | int, Decimal | int, str]:
        precedence = rank(offer.provider)
        if strategy is PlacementStrategy.LOWEST_COST:
            return (offer.price_usd_hr, precedence, offer.id)
        return (precedence, offer.price_usd_hr, offer.id)

    return key
