"""Figures of accelerators from their data sheets."""

import re
from dataclasses import dataclass, fields
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fields import check_positive

_GIB: Final = 1024**3
_PCIE_3: Final = 15.75e9
_PCIE_4: Final = 31.5e9
_PCIE_5: Final = 63.0e9
"""Bytes per second of 16 lanes, one way."""

_VENDOR_WORDS: Final = frozenset({"NVIDIA", "AMD", "TESLA", "GEFORCE", "INSTINCT", "QUADRO", "RTX", "GPU"})
_FORMS: Final = frozenset({"SXM", "SXM2", "SXM3", "SXM4", "SXM5", "OAM", "HBM3", "HBM3E"})
"""Words of a device name that do not change the figures; `PCIE` and sizes of memory may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One kind of accelerator.

    Attributes:
        name: Name in profiles and configurations.
        bandwidth_bytes_per_s: Peak bandwidth of its memory.
        flops_per_s: Peak of dense 16-bit matrix products with 32-bit accumulation.
        bf16: It multiplies bfloat16; without it, 16-bit models run as float16.
        fp8: It multiplies 8-bit floats, at twice `flops_per_s`.
        memory_bytes: Memory that CUDA or ROCm reports as its total; less than the name says where error
            correction takes some.
        host_link_bytes_per_s: Peak between it and host memory, one way.
        peer_link_bytes_per_s: Peak between it and the other accelerators of a machine, one way; that of PCIe
            where a bridge is optional.
        source: Address of the data sheet.
    """

    name: str
    bandwidth_bytes_per_s: float
    flops_per_s: float
    bf16: bool = True
    fp8: bool = False
    memory_bytes: int
    host_link_bytes_per_s: float
    peer_link_bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.type in (int, float):
                check_positive(each.name, getattr(self, each.name))


def find_accelerator(name: str) -> Accelerator | None:
    """Return the accelerator with that name, or None.

    Names of devices as drivers report them are known too: `NVIDIA A100-SXM4-80GB`. `A100` is the one with
    80 GB, `H100` the one with NVLink.
    """
    return _BY_KEY.get(_key(name))


def accelerator_of(name: str) -> Accelerator:
    """Return the accelerator with that name.

    Raises:
        InvalidValueError: There is none; the message lists the known ones.
    """
    found = find_accelerator(name)
    if found is None:
        known = ", ".join(each.name for each in ACCELERATORS)
        raise InvalidValueError("accelerator", name, f"one of: {known}")
    return found


def _key(name: str) -> str:
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]
    return "".join(word for word in words if word not in _VENDOR_WORDS | _FORMS)


def _memory(gib: float) -> int:
    return round(gib * _GIB)


_SHEETS: Final = "https://www.nvidia.com/content/dam/en-zz/Solutions"

ACCELERATORS: Final = (
    Accelerator(
        name="A10",
        bandwidth_bytes_per_s=600e9,
        flops_per_s=125e12,
        memory_bytes=_memory(22.05),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source=f"{_SHEETS}/Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf",
    ),
    Accelerator(
        name="A10G",
        bandwidth_bytes_per_s=600e9,
        flops_per_s=70e12,
        memory_bytes=_memory(22.05),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source="https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
    ),
    Accelerator(
        name="A100",
        bandwidth_bytes_per_s=2039e9,
        flops_per_s=312e12,
        memory_bytes=_memory(79.15),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=300e9,
        source=f"{_SHEETS}/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    ),
    Accelerator(
        name="A100-40GB",
        bandwidth_bytes_per_s=1555e9,
        flops_per_s=312e12,
        memory_bytes=_memory(39.39),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=300e9,
        source=f"{_SHEETS}/Data-Center/a100/pdf/nvidia-a100-datasheet.pdf",
    ),
    Accelerator(
        name="H100",
        bandwidth_bytes_per_s=3350e9,
        flops_per_s=989.4e12,
        fp8=True,
        memory_bytes=_memory(79.1),
        host_link_bytes_per_s=_PCIE_5,
        peer_link_bytes_per_s=450e9,
        source="https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
    ),
    Accelerator(
        name="H100-PCIe",
        bandwidth_bytes_per_s=2000e9,
        flops_per_s=756e12,
        fp8=True,
        memory_bytes=_memory(79.1),
        host_link_bytes_per_s=_PCIE_5,
        peer_link_bytes_per_s=_PCIE_5,
        source="https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
    ),
    Accelerator(
        name="H200",
        bandwidth_bytes_per_s=4800e9,
        flops_per_s=989.4e12,
        fp8=True,
        memory_bytes=_memory(139.8),
        host_link_bytes_per_s=_PCIE_5,
        peer_link_bytes_per_s=450e9,
        source="https://resources.nvidia.com/en-us-data-center-overview-mc/en-us-data-center-overview/hpc-datasheet-sc23-h200",
    ),
    Accelerator(
        name="B200",
        bandwidth_bytes_per_s=8000e9,
        flops_per_s=2250e12,
        fp8=True,
        memory_bytes=_memory(178.35),
        host_link_bytes_per_s=_PCIE_5,
        peer_link_bytes_per_s=900e9,
        source="https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet (an eighth of the system)",
    ),
    Accelerator(
        name="L4",
        bandwidth_bytes_per_s=300e9,
        flops_per_s=121e12,
        fp8=True,
        memory_bytes=_memory(22.05),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source="https://resources.nvidia.com/en-us-data-center-overview/l4-gpu-datasheet",
    ),
    Accelerator(
        name="L40S",
        bandwidth_bytes_per_s=864e9,
        flops_per_s=362e12,
        fp8=True,
        memory_bytes=_memory(44.4),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source="https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413",
    ),
    Accelerator(
        name="L40",
        bandwidth_bytes_per_s=864e9,
        flops_per_s=181e12,
        fp8=True,
        memory_bytes=_memory(44.4),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source=f"{_SHEETS}/design-visualization/support-guide/NVIDIA-L40-Datasheet-January-2023.pdf",
    ),
    Accelerator(
        name="A40",
        bandwidth_bytes_per_s=696e9,
        flops_per_s=149.7e12,
        memory_bytes=_memory(44.35),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source="https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf",
    ),
    Accelerator(
        name="A6000",
        bandwidth_bytes_per_s=768e9,
        flops_per_s=154.8e12,
        memory_bytes=_memory(47.5),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source=f"{_SHEETS}/design-visualization/quadro-product-literature/proviz-print-nvidia-rtx-a6000-datasheet-us-nvidia-1454980-r9-web%20(1).pdf",
    ),
    Accelerator(
        name="RTX-4090",
        bandwidth_bytes_per_s=1008e9,
        flops_per_s=165.2e12,
        fp8=True,
        memory_bytes=_memory(23.64),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
    Accelerator(
        name="RTX-3090",
        bandwidth_bytes_per_s=936e9,
        flops_per_s=71e12,
        memory_bytes=_memory(23.68),
        host_link_bytes_per_s=_PCIE_4,
        peer_link_bytes_per_s=_PCIE_4,
        source="https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf",
    ),
    Accelerator(
        name="T4",
        bandwidth_bytes_per_s=320e9,
        flops_per_s=65e12,
        bf16=False,
        memory_bytes=_memory(14.56),
        host_link_bytes_per_s=_PCIE_3,
        peer_link_bytes_per_s=_PCIE_3,
        source=f"{_SHEETS}/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    Accelerator(
        name="V100",
        bandwidth_bytes_per_s=900e9,
        flops_per_s=125e12,
        bf16=False,
        memory_bytes=_memory(31.73),
        host_link_bytes_per_s=_PCIE_3,
        peer_link_bytes_per_s=150e9,
        source="https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    Accelerator(
        name="MI300X",
        bandwidth_bytes_per_s=5300e9,
        flops_per_s=1307.4e12,
        fp8=True,
        memory_bytes=_memory(191.98),
        host_link_bytes_per_s=_PCIE_5,
        peer_link_bytes_per_s=448e9,
        source="https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf",
    ),
)
"""V100 is the one with 32 GB and NVLink."""

_ALIASES: Final = {
    "A10080GB": "A100",
    "A100PCIE80GB": "A100",
    "A10080GBPCIE": "A100",
    "A100PCIE": "A100",
    "A10040GB": "A100-40GB",
    "A100PCIE40GB": "A100-40GB",
    "H10080GB": "H100",
    "H200141GB": "H200",
    "B200180GB": "B200",
    "V10032GB": "V100",
    "A1024GB": "A10",
    "A10G24GB": "A10G",
}
_BY_KEY: Final = {_key(each.name): each for each in ACCELERATORS}
_BY_KEY.update({key: _BY_KEY[_key(name)] for key, name in _ALIASES.items()})
