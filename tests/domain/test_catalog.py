"""The catalog's names are stable, and what nvidia-smi says finds the right one or none."""

import re

import pytest

from domain.catalog import BY_NAME, CATALOG, CpuClass, Gpu, match_nvidia_smi
from domain.spec import Interconnect


@pytest.mark.parametrize(
    ("product", "memory_mib", "name"),
    [
        ("NVIDIA B300 SXM6 AC", 275_040, "nvidia-b300-288gb"),
        ("NVIDIA B200", 183_359, "nvidia-b200-192gb"),
        ("NVIDIA GB200", 189_471, "nvidia-gb200-192gb"),
        ("NVIDIA H200", 143_771, "nvidia-h200-141gb"),
        ("NVIDIA H200 NVL", 143_771, "nvidia-h200-141gb"),
        ("NVIDIA H100 80GB HBM3", 81_559, "nvidia-h100-80gb"),
        ("NVIDIA H100 PCIe", 81_559, "nvidia-h100-80gb"),
        ("NVIDIA H100 NVL", 95_830, "nvidia-h100-nvl-94gb"),
        ("NVIDIA GH200 480GB", 97_871, "nvidia-gh200-96gb"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "nvidia-a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 81_920, "nvidia-a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "nvidia-a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", 40_960, "nvidia-a100-40gb"),
        ("NVIDIA L40S", 46_068, "nvidia-l40s-48gb"),
        ("NVIDIA L40", 46_068, "nvidia-l40-48gb"),
        ("NVIDIA L4", 23_034, "nvidia-l4-24gb"),
        ("NVIDIA A40", 46_068, "nvidia-a40-48gb"),
        ("NVIDIA A30", 24_576, "nvidia-a30-24gb"),
        ("NVIDIA A10G", 23_028, "nvidia-a10g-24gb"),
        ("NVIDIA A10", 23_028, "nvidia-a10-24gb"),
        ("Tesla T4", 15_360, "nvidia-t4-16gb"),
        ("Tesla V100-SXM2-16GB", 16_384, "nvidia-v100-16gb"),
        ("Tesla V100-SXM2-32GB", 32_768, "nvidia-v100-32gb"),
        ("Tesla V100-PCIE-16GB", 16_160, "nvidia-v100-16gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97_887, "nvidia-rtx-pro-6000-blackwell-96gb"),
        ("NVIDIA RTX 6000 Ada Generation", 49_140, "nvidia-rtx-6000-ada-48gb"),
        ("NVIDIA RTX 5000 Ada Generation", 32_760, "nvidia-rtx-5000-ada-32gb"),
        ("NVIDIA RTX 4000 Ada Generation", 20_475, "nvidia-rtx-4000-ada-20gb"),
        ("NVIDIA RTX A6000", 49_140, "nvidia-rtx-a6000-48gb"),
        ("NVIDIA RTX A5000", 24_564, "nvidia-rtx-a5000-24gb"),
        ("NVIDIA RTX A4000", 16_376, "nvidia-rtx-a4000-16gb"),
        ("NVIDIA GeForce RTX 5090", 32_607, "nvidia-rtx-5090-32gb"),
        ("NVIDIA GeForce RTX 5080", 16_303, "nvidia-rtx-5080-16gb"),
        ("NVIDIA GeForce RTX 4090", 24_564, "nvidia-rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4080", 16_376, "nvidia-rtx-4080-16gb"),
        ("NVIDIA GeForce RTX 3090", 24_576, "nvidia-rtx-3090-24gb"),
        ("NVIDIA GeForce RTX 3080", 10_240, "nvidia-rtx-3080-10gb"),
    ],
)
def test_a_product_as_its_driver_names_it_is_found(product: str, memory_mib: int, name: str) -> None:
    found = match_nvidia_smi(product, memory_mib)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("product", "memory_mib"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16_376),
        ("NVIDIA GeForce RTX 5080 Laptop GPU", 16_303),
        ("NVIDIA GeForce RTX 4090 D", 24_564),
        ("NVIDIA GeForce RTX 4080 SUPER", 16_376),
        ("NVIDIA GeForce RTX 3090 Ti", 24_564),
        ("NVIDIA GeForce RTX 3080 Ti", 12_288),
        ("NVIDIA GeForce RTX 3080", 12_288),
        ("NVIDIA RTX 4000 SFF Ada Generation", 20_475),
        ("Quadro RTX 6000", 24_576),
        ("Quadro RTX 4000", 8_192),
        ("NVIDIA GeForce GTX 1080 Ti", 11_264),
        ("NVIDIA H800", 81_559),
        ("NVIDIA H20", 97_871),
        ("NVIDIA A800-SXM4-80GB", 81_920),
        ("NVIDIA H100 80GB HBM3", 10_240),
        ("Tesla K80", 11_441),
        ("", 0),
    ],
)
def test_another_product_is_not_taken_for_a_known_one(product: str, memory_mib: int) -> None:
    assert match_nvidia_smi(product, memory_mib) is None


def test_names_are_unique_and_say_vendor_product_and_memory() -> None:
    assert len(BY_NAME) == len(CATALOG)
    for entry in CATALOG:
        if isinstance(entry, Gpu):
            assert re.fullmatch(rf"{entry.vendor}-[a-z0-9-]+-{entry.memory_gb}gb", entry.name)
            assert entry.display_name.endswith(f"{entry.memory_gb}GB")


def test_every_entry_can_be_asked_for() -> None:
    for entry in CATALOG:
        if isinstance(entry, CpuClass):
            assert 1 <= entry.vcpu_min <= entry.vcpu_max
            assert entry.memory_gb_per_vcpu > 0
        else:
            assert entry.memory_gb > 0
            assert set(entry.gpu_counts) <= set(range(1, 9))
            assert entry.gpu_counts
            assert entry.interconnects
            assert (Interconnect.NVLINK in entry.interconnects) <= (entry.vendor == "nvidia")
            assert (Interconnect.INFINITY_FABRIC in entry.interconnects) <= (entry.vendor == "amd")


def test_both_vendors_and_cpus_are_there() -> None:
    assert {entry.vendor for entry in CATALOG if isinstance(entry, Gpu)} == {"nvidia", "amd"}
    assert any(isinstance(entry, CpuClass) for entry in CATALOG)
