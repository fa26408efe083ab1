"""The curated accelerator catalog: stable names, what can be asked of each. Memory in GB as vendors state it.

Names follow the seed (`nvidia-rtx-4090-24gb`): vendor, product, memory. Interconnects are those between the GPUs of
one node. Sources: the vendors' product pages and data sheets.
"""

import re
from dataclasses import dataclass

from domain.spec import Interconnect

PCIE = (Interconnect.PCIE,)
NVLINK = (Interconnect.NVLINK,)
PCIE_OR_NVLINK = (Interconnect.PCIE, Interconnect.NVLINK)
INFINITY_FABRIC = (Interconnect.INFINITY_FABRIC,)
ONE_TO_EIGHT = (1, 2, 3, 4, 5, 6, 7, 8)
POWERS_TO_EIGHT = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model. `memory_gb` is per GPU."""

    name: str
    display_name: str
    vendor: str
    memory_gb: int
    gpu_counts: tuple[int, ...]
    interconnects: tuple[Interconnect, ...]


@dataclass(frozen=True, slots=True)
class CpuClass:
    """A CPU-only class: memory follows the vCPUs."""

    name: str
    display_name: str
    vcpu_min: int
    vcpu_max: int
    memory_gb_per_vcpu: int


Accelerator = Gpu | CpuClass


def _nvidia(
    product: str,
    title: str,
    memory_gb: int,
    interconnects: tuple[Interconnect, ...] = PCIE,
    counts: tuple[int, ...] = ONE_TO_EIGHT,
) -> Gpu:
    return Gpu(
        f"nvidia-{product}-{memory_gb}gb", f"NVIDIA {title} {memory_gb}GB", "nvidia", memory_gb, counts, interconnects
    )


def _amd(product: str, title: str, memory_gb: int, interconnects: tuple[Interconnect, ...] = INFINITY_FABRIC) -> Gpu:
    return Gpu(
        f"amd-{product}-{memory_gb}gb", f"AMD {title} {memory_gb}GB", "amd", memory_gb, ONE_TO_EIGHT, interconnects
    )


CATALOG: tuple[Accelerator, ...] = (
    _nvidia("b300", "B300", 288, NVLINK, POWERS_TO_EIGHT),
    _nvidia("b200", "B200", 192, NVLINK, POWERS_TO_EIGHT),
    _nvidia("gb200", "GB200", 192, NVLINK, (1, 2, 4)),
    _nvidia("h200", "H200", 141, PCIE_OR_NVLINK),
    _nvidia("h100", "H100", 80, PCIE_OR_NVLINK),
    _nvidia("h100-nvl", "H100 NVL", 94, PCIE_OR_NVLINK),
    _nvidia("gh200", "GH200", 96, NVLINK, (1,)),
    _nvidia("a100", "A100", 80, PCIE_OR_NVLINK),
    _nvidia("a100", "A100", 40, PCIE_OR_NVLINK),
    _nvidia("l40s", "L40S", 48),
    _nvidia("l40", "L40", 48),
    _nvidia("l4", "L4", 24),
    _nvidia("a40", "A40", 48, PCIE_OR_NVLINK),
    _nvidia("a30", "A30", 24, PCIE_OR_NVLINK),
    _nvidia("a10g", "A10G", 24),
    _nvidia("a10", "A10", 24),
    _nvidia("t4", "T4", 16),
    _nvidia("v100", "V100", 32, PCIE_OR_NVLINK),
    _nvidia("v100", "V100", 16, PCIE_OR_NVLINK),
    _nvidia("rtx-pro-6000-blackwell", "RTX PRO 6000 Blackwell", 96),
    _nvidia("rtx-6000-ada", "RTX 6000 Ada", 48),
    _nvidia("rtx-5000-ada", "RTX 5000 Ada", 32),
    _nvidia("rtx-4000-ada", "RTX 4000 Ada", 20),
    _nvidia("rtx-a6000", "RTX A6000", 48, PCIE_OR_NVLINK),
    _nvidia("rtx-a5000", "RTX A5000", 24, PCIE_OR_NVLINK),
    _nvidia("rtx-a4000", "RTX A4000", 16),
    _nvidia("rtx-5090", "GeForce RTX 5090", 32),
    _nvidia("rtx-5080", "GeForce RTX 5080", 16),
    _nvidia("rtx-4090", "GeForce RTX 4090", 24),
    _nvidia("rtx-4080", "GeForce RTX 4080", 16),
    _nvidia("rtx-3090", "GeForce RTX 3090", 24, PCIE_OR_NVLINK),
    _nvidia("rtx-3080", "GeForce RTX 3080", 10),
    _amd("mi355x", "Instinct MI355X", 288),
    _amd("mi325x", "Instinct MI325X", 256),
    _amd("mi300x", "Instinct MI300X", 192),
    _amd("mi250x", "Instinct MI250X", 128),
    _amd("mi210", "Instinct MI210", 64, (Interconnect.PCIE, Interconnect.INFINITY_FABRIC)),
    _amd("radeon-pro-w7900", "Radeon PRO W7900", 48, PCIE),
    CpuClass("cpu-general", "General-purpose CPU", vcpu_min=1, vcpu_max=128, memory_gb_per_vcpu=4),
)

BY_NAME: dict[str, Accelerator] = {entry.name: entry for entry in CATALOG}


_VARIANTS = frozenset({"ti", "super", "laptop", "mobile", "sff", "d"})


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def match_nvidia_smi(product: str, memory_mib: int) -> Gpu | None:
    """The catalog entry of what `nvidia-smi` names, such as `NVIDIA H100 80GB HBM3` with 81559 MiB; None if unknown.

    The words of the entry's product must all be there, the memory must be within 12 % (drivers report a little less
    than the data sheet), and the most specific entry wins. A faster or slower variant of a product is another product.
    """
    found = _words(product)
    if found & _VARIANTS:
        return None
    best: tuple[int, Gpu] | None = None
    for entry in CATALOG:
        if not isinstance(entry, Gpu) or entry.vendor != "nvidia":
            continue
        wanted = _words(entry.name) - {"nvidia", f"{entry.memory_gb}gb"}
        # `A100-SXM4-80GB` and `Tesla T4` carry extra words; a missing word is another product.
        if not wanted <= found or abs(memory_mib / 1024 - entry.memory_gb) > 0.12 * entry.memory_gb:
            continue
        if best is None or len(wanted) > best[0]:
            best = (len(wanted), entry)
    return best[1] if best else None
