"""What the tests' Google has: machine types and GPUs in zones, quotas, and SKUs as the price list words them."""

from typing import Any

PROJECT = "headrace-tests"
HOST = "https://www.googleapis.com/compute/v1"
ZONES = ("us-central1-a", "us-central1-b", "us-east1-c", "europe-west4-a")

# name: vCPUs, MiB, accelerator, number, bundled local disks
MACHINES: dict[str, tuple[int, int, str, int, int]] = {
    "e2-standard-2": (2, 8192, "", 0, 0),
    "e2-standard-8": (8, 32768, "", 0, 0),
    "n1-standard-8": (8, 30720, "", 0, 0),
    "n1-standard-16": (16, 61440, "", 0, 0),
    "g2-standard-4": (4, 16384, "nvidia-l4", 1, 0),
    "a2-highgpu-1g": (12, 87040, "nvidia-tesla-a100", 1, 0),
    "a3-highgpu-8g": (208, 1916928, "nvidia-h100-80gb", 8, 16),
    "a4x-highgpu-4g": (140, 905216, "nvidia-gb200", 4, 0),
}
ELSEWHERE = {"a3-highgpu-8g": ("us-central1-a",), "a2-highgpu-1g": ("us-central1-a", "us-central1-b")}
"""Machines that only some zones have."""
ACCELERATORS = {"nvidia-tesla-t4": 4, "nvidia-l4": 8, "nvidia-tesla-t4-vws": 4}

# What is priced: usage unit, resource group, units and nanos, and those of spot.
SKUS: dict[str, tuple[str, str, int, int]] = {
    "E2 Instance Core": ("h", "CPU", 21_811_590, 8_724_000),
    "E2 Instance Ram": ("GiBy.h", "RAM", 2_923_530, 1_169_000),
    "N1 Predefined Instance Core": ("h", "N1Standard", 31_611_000, 6_320_000),
    "N1 Predefined Instance Ram": ("GiBy.h", "N1Standard", 4_237_000, 850_000),
    "G2 Instance Core": ("h", "CPU", 24_988_000, 9_995_000),
    "G2 Instance Ram": ("GiBy.h", "RAM", 2_927_000, 1_171_000),
    "A2 Instance Core": ("h", "CPU", 31_611_000, 9_483_000),
    "A2 Instance Ram": ("GiBy.h", "RAM", 4_237_000, 1_271_000),
    "A3 Instance Core": ("h", "CPU", 29_311_000, 8_793_000),
    "A3 Instance Ram": ("GiBy.h", "RAM", 2_553_000, 766_000),
    "Nvidia Tesla T4 GPU": ("h", "GPU", 350_000_000, 140_000_000),
    "Nvidia L4 GPU": ("h", "GPU", 560_040_000, 224_016_000),
    "Nvidia Tesla A100 GPU": ("h", "GPU", 2_933_908_000, 880_172_000),
    "Nvidia H100 80GB GPU": ("h", "GPU", 9_796_550_000, 2_938_965_000),
    "SSD backed Local Storage": ("GiBy.mo", "LocalSSD", 80_000_000, 28_000_000),
}
OTHER_PRODUCTS = (
    "E2 Custom Instance Core running in Americas", "N1 Predefined Instance Core Sole Tenancy running in Americas",
    "Commitment v1: Cpu in Americas for 1 Year", "Reserved E2 Instance Core in Americas",
)  # fmt: skip


def regions() -> list[str]:
    return sorted({zone.rpartition("-")[0] for zone in ZONES})


def machine_types() -> dict[str, list[dict[str, Any]]]:
    """By zone, as the API answers them."""
    return {zone: [_machine_type(name, zone) for name in MACHINES if is_in(name, zone)] for zone in ZONES}


def is_in(machine: str, zone: str) -> bool:
    return machine in MACHINES and zone in ELSEWHERE.get(machine, ZONES)


def accelerator_types() -> dict[str, list[dict[str, Any]]]:
    return {
        zone: [
            {
                "kind": "compute#acceleratorType", "id": "1", "name": name, "maximumCardsPerInstance": most,
                "zone": f"{HOST}/projects/{PROJECT}/zones/{zone}",
            }
            for name, most in ACCELERATORS.items()
        ]
        for zone in ZONES
        if zone != "us-east1-c"
    }  # fmt: skip


def skus() -> list[dict[str, Any]]:
    found = []
    for name, (unit, group, nanos, spot_nanos) in SKUS.items():
        spot_name = (
            f"{name} attached to Spot Preemptible VMs" if group in ("GPU", "LocalSSD") else f"Spot Preemptible {name}"
        )
        found.append(_sku(f"{name} running in Americas", "OnDemand", unit, group, nanos))
        found.append(_sku(f"{spot_name} running in Americas", "Preemptible", unit, group, spot_nanos))
    found += [_sku(name, "OnDemand", "h", "CPU", 1_000_000) for name in OTHER_PRODUCTS]
    found.append(_sku("E2 Instance Core running in Americas", "Commit1Yr", "h", "CPU", 2_000_000))
    return found


def _machine_type(name: str, zone: str) -> dict[str, Any]:
    vcpus, memory, accelerator, count, local_disks = MACHINES[name]
    kind: dict[str, Any] = {
        "kind": "compute#machineType", "id": "2", "name": name, "guestCpus": vcpus, "memoryMb": memory, "zone": zone,
        "selfLink": f"{HOST}/projects/{PROJECT}/zones/{zone}/machineTypes/{name}",
        "architecture": "ARM64" if name.startswith("a4x") else "X86_64",
    }  # fmt: skip
    if accelerator:
        kind["accelerators"] = [{"guestAcceleratorType": accelerator, "guestAcceleratorCount": count}]
    if local_disks:
        kind["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": local_disks}
    return kind


def _sku(description: str, usage: str, unit: str, group: str, nanos: int) -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
    return {
        "name": "services/6F81-5844-456A/skus/0000-0000-0000", "skuId": "0000-0000-0000", "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine", "resourceFamily": "Storage" if group == "LocalSSD" else "Compute",
            "resourceGroup": group, "usageType": usage,
        },
        "serviceRegions": ["us-central1", "us-east1"],
        "pricingInfo": [{
            "effectiveTime": "2026-11-29T00:00:00Z",
            "pricingExpression": {
                "usageUnit": unit, "displayQuantity": 1, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}],
            },
        }],
        "serviceProviderName": "Google",
    }  # fmt: skip
