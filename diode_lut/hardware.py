"""What this machine computes on, as PyTorch sees it."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from diode_lut.errors import BROKEN_IMPORT, HardwareError
from diode_lut.problem import Hardware, slug

if TYPE_CHECKING:
    import torch


def detect_hardware(device: str | torch.device | None = None) -> Hardware:
    """The hardware behind torch's ``device`` (``cuda``, ``cuda:1``, ``cpu``); by default CUDA where there is any.

    ROCm's devices are called ``cuda`` as well. HardwareError if torch cannot be imported, or has no such device.
    """
    try:
        import torch
    except BROKEN_IMPORT as error:
        raise HardwareError(f"torch cannot be imported ({error}): install it, or name the hardware") from error
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device) if isinstance(device, str) else device
        if found.type == "cuda":
            return _gpu(found)
    except (AssertionError, RuntimeError) as error:
        raise HardwareError(f"{device}: torch has no such device: {str(error).splitlines()[0]}") from error
    if found.type == "cpu":
        return _cpu()
    raise HardwareError(f"{device}: tables know no {found.type} devices (allowed: cuda, cpu)")


def local_devices() -> list[str]:
    """The devices of this machine that tables can be for, by torch's names."""
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def _gpu(device: torch.device) -> Hardware:
    import torch

    properties = torch.cuda.get_device_properties(device)
    gcn_arch = properties.gcnArchName.partition(":")[0] if torch.version.hip else ""
    arch = gcn_arch or f"sm_{properties.major}{properties.minor}"
    return Hardware(properties.name, arch, properties.multi_processor_count)


def _cpu() -> Hardware:
    import torch

    capability = slug(torch.backends.cpu.get_cpu_capability())
    return Hardware(_cpu_name(), f"cpu-{capability}", torch.get_num_threads())


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    """The model name that Linux gives, else what the platform module finds out."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
