"""`headrace offers`: what the connected providers offer, and how they do."""

from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials
from commands.options import AsJson, DataDir
from commands.render import amount, moment, print_json, print_table

_OFFER_COLUMNS = ("PROVIDER", "SKU", "HARDWARE", "VCPUS", "MEMORY", "DISK", "REGION", "PER HOUR", "NOTES")
_HEALTH_COLUMNS = ("PROVIDER", "STATE", "OFFERS", "LATENCY", "LAST POLL", "ERROR")


def offers(
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", help="A name of `headrace accelerators`.", show_default=False)
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs on the node.", show_default=False)] = None,
    interconnect: Annotated[
        str | None, typer.Option("--interconnect", help="pcie, nvlink or infinity_fabric.", show_default=False)
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Of this provider.", show_default=False)] = None,
    region: Annotated[str | None, typer.Option("--region", help="In this region.", show_default=False)] = None,
    available: Annotated[bool, typer.Option("--available", help="Only what can be had now.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many.")] = 50,
    health: Annotated[bool, typer.Option("--health", help="The providers and how they do, instead.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List what the connected providers offer, by their latest polls. For administrators."""
    with ApiClient(find_credentials(data_dir)) as client:
        if health:
            found = list(client.pages("/catalog/providers", limit=limit))
        else:
            filters = {
                "accelerator": accelerator,
                "gpu_count": gpus,
                "interconnect": interconnect,
                "provider": provider,
                "region": region,
                "available": True if available else None,
            }
            found = list(client.pages("/catalog/offers", filters, limit=limit))
    if as_json:
        print_json(found)
    elif health:
        print_table(_HEALTH_COLUMNS, map(_health_row, found))
    else:
        print_table(_OFFER_COLUMNS, map(_offer_row, found))


def _offer_row(offer: dict[str, Any]) -> tuple[str, ...]:
    compute = offer["compute"]
    count = compute["gpu_count"]
    remarks = (
        ("spot", offer.get("spot")),
        ("taken", not offer["available"]),
        ("disk not enforced", offer.get("disk_enforced") is False),
        ("network not closed", offer.get("network_isolated") is False),
    )
    notes = [note for note, holds in remarks if holds]
    return (
        offer["provider"],
        offer["provider_sku"],
        f"{count} x {compute['accelerator']}" if count else compute["accelerator"],
        str(compute["vcpus"]),
        f"{compute['memory_gb']} GB",
        f"{compute['ephemeral_disk_gb']} GB",
        offer["region"]["name"],
        amount(offer["price_usd_hr"]) or "",
        ", ".join(notes),
    )


def _health_row(provider: dict[str, Any]) -> tuple[str, ...]:
    state = "healthy" if provider["healthy"] else "degraded" if provider["degraded"] else "down"
    return (
        provider["provider"],
        state,
        str(provider["offer_count"]),
        f"{provider['latency_ms']} ms",
        moment(provider["last_poll_at"]) or "",
        provider["error"] or "",
    )
