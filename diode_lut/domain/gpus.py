"""GPUs by name: the architecture and the number of multiprocessors, where a file or a person says only the name.

Sources: the vendors' data sheets and architecture white papers, and the names that the drivers and vLLM's configs give.
On an MI250X, PyTorch's device is one of its two dies. Compute units of RDNA GPUs are counted in pairs, as PyTorch does.
"""

from __future__ import annotations

import re

from diode_lut.domain.hardware import Hardware, slug


def _gpu(name: str, arch: str, sm_count: int, *aliases: str) -> Hardware:
    return Hardware(name, arch, sm_count, aliases)


KNOWN = (
    _gpu("Tesla V100-SXM2-16GB", "sm_70", 80, "V100", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB"),
    _gpu("Tesla T4", "sm_75", 40, "T4", "NVIDIA T4"),
    _gpu("NVIDIA GeForce RTX 2080 Ti", "sm_75", 68, "RTX 2080 Ti"),
    _gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, "A100", "NVIDIA A100", "NVIDIA A100-SXM4-40GB"),
    _gpu("NVIDIA A100 80GB PCIe", "sm_80", 108, "A100 PCIe", "NVIDIA A100-PCIE-40GB"),
    _gpu("NVIDIA A800-SXM4-80GB", "sm_80", 108, "A800", "NVIDIA A800-SXM4-40GB"),
    _gpu("NVIDIA A30", "sm_80", 56, "A30"),
    _gpu("NVIDIA A10", "sm_86", 72, "A10"),
    _gpu("NVIDIA A10G", "sm_86", 80, "A10G"),
    _gpu("NVIDIA A40", "sm_86", 84, "A40"),
    _gpu("NVIDIA RTX A6000", "sm_86", 84, "A6000", "RTX A6000"),
    _gpu("NVIDIA GeForce RTX 3090", "sm_86", 82, "RTX 3090"),
    _gpu("NVIDIA L4", "sm_89", 58, "L4"),
    _gpu("NVIDIA L20", "sm_89", 92, "L20"),
    _gpu("NVIDIA L40", "sm_89", 142, "L40"),
    _gpu("NVIDIA L40S", "sm_89", 142, "L40S"),
    _gpu("NVIDIA RTX 6000 Ada Generation", "sm_89", 142, "RTX 6000 Ada"),
    _gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, "RTX 4090"),
    _gpu("NVIDIA GeForce RTX 4090 D", "sm_89", 114, "RTX 4090 D"),
    _gpu("NVIDIA H100 80GB HBM3", "sm_90", 132, "H100", "NVIDIA H100", "H100 SXM"),
    _gpu("NVIDIA H100 PCIe", "sm_90", 114, "H100 PCIe"),
    _gpu("NVIDIA H100 NVL", "sm_90", 132, "H100 NVL"),
    _gpu("NVIDIA H200", "sm_90", 132, "H200"),
    _gpu("NVIDIA H20", "sm_90", 78, "H20"),
    _gpu("NVIDIA H20-3e", "sm_90", 78, "H20-3e"),
    _gpu("NVIDIA H800", "sm_90", 132, "H800", "H800 SXM"),
    _gpu("NVIDIA L20Y", "sm_90", 132, "L20Y"),
    _gpu("NVIDIA GH200 480GB", "sm_90", 132, "GH200", "NVIDIA GH200"),
    _gpu("NVIDIA B200", "sm_100", 148, "B200"),
    _gpu("NVIDIA GB200", "sm_100", 152, "GB200"),
    _gpu("NVIDIA B300 SXM6 AC", "sm_103", 148, "B300", "NVIDIA B300"),
    _gpu("NVIDIA GeForce RTX 5090", "sm_120", 170, "RTX 5090"),
    _gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120", 188, "RTX PRO 6000 Server"),
    _gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120", 188, "RTX PRO 6000"),
    _gpu("NVIDIA GB10", "sm_121", 48, "GB10"),
    _gpu("AMD Instinct MI210", "gfx90a", 104, "MI210"),
    _gpu("AMD Instinct MI250X", "gfx90a", 110, "MI250X"),
    _gpu("AMD Instinct MI300X", "gfx942", 304, "MI300X", "AMD Instinct MI300X HF", "AMD Instinct MI300XHF OAM"),
    _gpu("AMD Instinct MI308X", "gfx942", 80, "MI308X"),
    _gpu("AMD Instinct MI325X", "gfx942", 304, "MI325X", "AMD Instinct MI325 OAM"),
    _gpu("AMD Instinct MI350X", "gfx950", 256, "MI350X", "AMD Instinct MI350 OAM"),
    _gpu("AMD Instinct MI355X", "gfx950", 256, "MI355X", "AMD Instinct MI355 OAM"),
    _gpu("AMD Radeon RX 7900 XTX", "gfx1100", 48, "RX 7900 XTX", "Radeon RX 7900 XTX"),
    _gpu("AMD Radeon RX 7900 XT", "gfx1100", 42, "RX 7900 XT", "Radeon RX 7900 XT"),
    _gpu("AMD Radeon AI PRO R9700", "gfx1201", 32, "R9700", "AMD Radeon R9700"),
    _gpu("Radeon 8060S Graphics", "gfx1151", 20, "Radeon 8060S", "AMD Radeon 8060S"),
)
"""Each with the names that people and files give it."""


def known_gpu(name: str) -> Hardware | None:
    """The GPU of that name or alias, with or without its blanks: ``RTX4090``; None if it is not known."""
    wanted = _closed(name)
    return next((gpu for gpu in KNOWN if wanted in map(_closed, (gpu.name, *gpu.aliases))), None)


def is_called(hardware: Hardware, name: str) -> bool:
    """Whether this is the hardware's name or alias, or a well-known name of the same GPU."""
    gpu = known_gpu(name)
    return hardware.called(name) or (gpu is not None and gpu.same_device(hardware))


def gpus_of(arch: str) -> list[str]:
    """The short names of the well-known GPUs of an architecture."""
    return [gpu.aliases[0] for gpu in KNOWN if gpu.arch == arch]


def _closed(name: str) -> str:
    return slug(name).replace("-", "")


def gpu_named_in(text: str) -> Hardware | None:
    """The GPU whose name is part of a text, such as a file's name; of several names, the longest counts."""
    words = f"-{re.sub(r'[^a-z0-9]+', '-', text.casefold())}-"
    found = [(len(name), gpu) for gpu in KNOWN for name in map(slug, (gpu.name, *gpu.aliases)) if f"-{name}-" in words]
    return max(found, key=lambda each: each[0])[1] if found else None
