"""Hardware: the device of a table, the devices of this machine as PyTorch sees them, well-known GPUs, architectures.

Architectures are data, known without a device and without PyTorch. ``tools/compile_candidates.py`` compares them with
Triton's compiler.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut.errors import BROKEN_IMPORT, HardwareError, ProblemError, install_command, printable
from diode_lut.problem import ITEMSIZES, Problem
from diode_lut.process import in_forked_children

if TYPE_CHECKING:
    import torch


_ARCHITECTURE = re.compile(r"sm_\d+\w*|gfx\w+|cpu-\w+")
_CPU = "cpu-"  # the beginning of the names of CPUs' architectures
_THREADS, _VECTORS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), ("ATEN_CPU_CAPABILITY",)  # set by these variables


def require_architecture(arch: str) -> None:
    """Raise ProblemError if this is not the name of an architecture."""
    if not _ARCHITECTURE.fullmatch(arch):
        raise ProblemError(f"{arch!r} is no architecture, such as sm_90, gfx942 or cpu-avx2")


class Hardware(NamedTuple):
    """The device a table was measured on.

    ``name`` is the marketing name as the driver gives it. ``arch`` names the instruction set (``sm_90``, ``gfx942``,
    ``cpu-avx512``). ``sm_count`` counts multiprocessors, and on a CPU the threads torch uses.
    """

    name: str
    arch: str
    sm_count: int
    aliases: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Hardware:
        """Return the hardware of ``{"name": ..., "arch": ..., "sm_count": ..., "aliases": [...]}``, or raise
        ProblemError.
        """
        unknown = fields.keys() - set(cls._fields)
        if unknown:
            raise ProblemError(f"{min(map(str, unknown))}: hardware has no such field")
        for name in ("name", "arch"):
            if not isinstance(fields.get(name), str) or not fields[name]:
                raise ProblemError(f"{name}: {fields.get(name)!r} is not a name")
        sm_count, aliases = fields.get("sm_count"), fields.get("aliases", ())
        if type(sm_count) is not int or sm_count < 1:
            raise ProblemError(f"sm_count: {sm_count!r} is not a positive integer")
        if not isinstance(aliases, (list, tuple)) or not all(isinstance(alias, str) for alias in aliases):
            raise ProblemError(f"aliases: {aliases!r} is not a list of names")
        return cls(fields["name"], fields["arch"], sm_count, tuple(aliases))

    @classmethod
    def described(cls, name: str, arch: str, sm_count: int, aliases: Iterable[str] = ()) -> Hardware:
        """Return the hardware a person describes. ProblemError if ``arch`` is not a name of an architecture."""
        require_architecture(arch)
        return cls.from_json({"name": name, "arch": arch, "sm_count": sm_count, "aliases": list(aliases)})

    def same_device(self, other: Hardware) -> bool:
        """Return whether both are the same device: a name, the architecture and the SM count agree."""
        return self.same_arch(other) and not self._names().isdisjoint(other._names())

    def same_arch(self, other: Hardware) -> bool:
        """Return whether both have the same architecture and SM count, whatever they are called."""
        return (self.arch, self.sm_count) == (other.arch, other.sm_count)

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, whose ``sm_count`` is a number of threads."""
        return self.arch.startswith(_CPU)

    def difference_from(self, found: Hardware, environment: Mapping[str, str] = os.environ) -> str:
        """Say how a device differs from this hardware, the hardware of a table. Empty if they cannot be compared.

        For a CPU's threads and vector instructions it also names the environment variable that sets them.
        """
        if self.is_cpu != found.is_cpu:
            return ""
        parts = []
        if found.arch != self.arch and self.is_cpu:
            vectors = f"{found.arch.removeprefix(_CPU)}, not {self.arch.removeprefix(_CPU)}"
            parts.append(f"the vector instructions are {vectors}{_set_by(_VECTORS, environment)}")
        elif found.arch != self.arch:
            parts.append(f"the architecture is {found.arch}, not {self.arch}")
        if found.sm_count != self.sm_count and self.is_cpu:
            torchrun = ", which torchrun sets unless you do" if "TORCHELASTIC_RUN_ID" in environment else ""
            count = f"PyTorch has {found.sm_count} thread{'' if found.sm_count == 1 else 's'}, not {self.sm_count}"
            remedy = f"the table is for OMP_NUM_THREADS={self.sm_count}"
            parts.append(f"{count}{_set_by(_THREADS, environment, torchrun)}; {remedy}")
        elif found.sm_count != self.sm_count:
            parts.append(f"it has {found.sm_count} SMs, not {self.sm_count}")
        return ", and ".join(parts)

    def why_none_of(self, devices: Iterable[Hardware]) -> str:
        """Say how all of these devices of a machine differ from this hardware, the hardware of a table."""
        reasons = [reason for device in dict.fromkeys(devices) if (reason := self.difference_from(device))]
        return "; ".join(reasons) or "PyTorch sees no GPU"

    def called(self, name: str) -> bool:
        """Return whether ``name`` is its name or an alias. Case, spaces, dashes and underscores do not matter."""
        return slug(name) in self._names()

    def _names(self) -> set[str]:
        return {slug(name) for name in (self.name, *self.aliases)}

    def __str__(self) -> str:
        unit = f"thread{'' if self.sm_count == 1 else 's'}" if self.is_cpu else "SMs"
        return printable(f"{self.name} ({self.arch}, {self.sm_count} {unit})")


def _set_by(names: Iterable[str], environment: Mapping[str, str], more: str = "") -> str:
    """Name the first variable with a value. Empty if none has one."""
    found = next((name for name in names if environment.get(name)), None)
    return "" if found is None else printable(f" (set by {found}={environment[found]}{more})")


def slug(name: str) -> str:
    """Return a name as file names have it: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-")


def detect_hardware(device: str | torch.device | None = None) -> Hardware:
    """Return the hardware of torch's ``device`` (``cuda``, ``cuda:1``, ``cpu``), by default CUDA if there is any.

    ROCm's devices are called ``cuda`` as well. HardwareError if torch cannot be imported, or has no such device.
    """
    try:
        import torch
    except BROKEN_IMPORT as error:
        remedy = f"name the hardware, or install torch: {install_command('torch')}"
        raise HardwareError(f"torch cannot be imported ({error}): {remedy}") from error
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device) if isinstance(device, str) else device
        if found.type == "cuda":
            properties = torch.cuda.get_device_properties(found)
            gcn_arch = properties.gcnArchName.partition(":")[0] if torch.version.hip else ""
            arch = gcn_arch or f"sm_{properties.major}{properties.minor}"
            return Hardware(properties.name, arch, properties.multi_processor_count)
    except (AssertionError, RuntimeError) as error:
        raise HardwareError(f"{device}: torch has no such device: {str(error).splitlines()[0]}") from error
    if found.type == "cpu":
        capability = slug(torch.backends.cpu.get_cpu_capability())
        return Hardware(_cpu_name(), f"{_CPU}{capability}", torch.get_num_threads())
    raise HardwareError(f"{device}: tables know no {found.type} devices (allowed: cuda, cpu)")


_cpu: Hardware | None = None  # the CPU as it was when it was last asked about
_is_parents = False  # whether the parent process has asked about it


def hardware_of(device: str | torch.device | None = None) -> Hardware:
    """Return the hardware of torch's ``device``, by default of torch's present device.

    In a forked process the CPU is the parent's, whatever number of threads the process sets, so it answers like its
    parent. A worker of a DataLoader has a single thread, and would need tables for that.
    """
    global _cpu
    found = detect_hardware(device)
    if not found.is_cpu:
        return found
    if _cpu is None or not _is_parents:
        _cpu = found
    return _cpu


@in_forked_children
def _begin_again() -> None:
    """Answer for the CPU as the parent, if it has asked."""
    global _is_parents
    _is_parents = _cpu is not None


def local_devices() -> list[str]:
    """Return the devices of this machine, by torch's names."""
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    """Return the model name by Linux, or else by the platform module."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _known(name: str, arch: str, sm_count: int, *aliases: str) -> Hardware:
    return Hardware(name, arch, sm_count, aliases)


KNOWN = (
    _known("Tesla V100-SXM2-16GB", "sm_70", 80, "V100", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB"),
    _known("Tesla T4", "sm_75", 40, "T4", "NVIDIA T4"),
    _known("NVIDIA GeForce RTX 2080 Ti", "sm_75", 68, "RTX 2080 Ti"),
    _known("NVIDIA A100-SXM4-80GB", "sm_80", 108, "A100", "NVIDIA A100", "NVIDIA A100-SXM4-40GB"),
    _known("NVIDIA A100 80GB PCIe", "sm_80", 108, "A100 PCIe", "NVIDIA A100-PCIE-40GB"),
    _known("NVIDIA A800-SXM4-80GB", "sm_80", 108, "A800", "NVIDIA A800-SXM4-40GB"),
    _known("NVIDIA A30", "sm_80", 56, "A30"),
    _known("NVIDIA A10", "sm_86", 72, "A10"),
    _known("NVIDIA A10G", "sm_86", 80, "A10G"),
    _known("NVIDIA A40", "sm_86", 84, "A40"),
    _known("NVIDIA RTX A6000", "sm_86", 84, "A6000", "RTX A6000"),
    _known("NVIDIA GeForce RTX 3090", "sm_86", 82, "RTX 3090"),
    _known("NVIDIA L4", "sm_89", 58, "L4"),
    _known("NVIDIA L20", "sm_89", 92, "L20"),
    _known("NVIDIA L40", "sm_89", 142, "L40"),
    _known("NVIDIA L40S", "sm_89", 142, "L40S"),
    _known("NVIDIA RTX 6000 Ada Generation", "sm_89", 142, "RTX 6000 Ada"),
    _known("NVIDIA GeForce RTX 4090", "sm_89", 128, "RTX 4090"),
    _known("NVIDIA GeForce RTX 4090 D", "sm_89", 114, "RTX 4090 D"),
    _known("NVIDIA H100 80GB HBM3", "sm_90", 132, "H100", "NVIDIA H100", "H100 SXM"),
    _known("NVIDIA H100 PCIe", "sm_90", 114, "H100 PCIe"),
    _known("NVIDIA H100 NVL", "sm_90", 132, "H100 NVL"),
    _known("NVIDIA H200", "sm_90", 132, "H200"),
    _known("NVIDIA H20", "sm_90", 78, "H20"),
    _known("NVIDIA H20-3e", "sm_90", 78, "H20-3e"),
    _known("NVIDIA H800", "sm_90", 132, "H800", "H800 SXM"),
    _known("NVIDIA L20Y", "sm_90", 132, "L20Y"),
    _known("NVIDIA GH200 480GB", "sm_90", 132, "GH200", "NVIDIA GH200"),
    _known("NVIDIA B200", "sm_100", 148, "B200"),
    _known("NVIDIA GB200", "sm_100", 152, "GB200"),
    _known("NVIDIA B300 SXM6 AC", "sm_103", 148, "B300", "NVIDIA B300"),
    _known("NVIDIA GeForce RTX 5090", "sm_120", 170, "RTX 5090"),
    _known("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120", 188, "RTX PRO 6000 Server"),
    _known("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120", 188, "RTX PRO 6000"),
    _known("NVIDIA GB10", "sm_121", 48, "GB10"),
    _known("AMD Instinct MI210", "gfx90a", 104, "MI210"),
    _known("AMD Instinct MI250X", "gfx90a", 110, "MI250X"),
    _known("AMD Instinct MI300X", "gfx942", 304, "MI300X", "AMD Instinct MI300X HF", "AMD Instinct MI300XHF OAM"),
    _known("AMD Instinct MI308X", "gfx942", 80, "MI308X"),
    _known("AMD Instinct MI325X", "gfx942", 304, "MI325X", "AMD Instinct MI325 OAM"),
    _known("AMD Instinct MI350X", "gfx950", 256, "MI350X", "AMD Instinct MI350 OAM"),
    _known("AMD Instinct MI355X", "gfx950", 256, "MI355X", "AMD Instinct MI355 OAM"),
    _known("AMD Radeon RX 7900 XTX", "gfx1100", 48, "RX 7900 XTX", "Radeon RX 7900 XTX"),
    _known("AMD Radeon RX 7900 XT", "gfx1100", 42, "RX 7900 XT", "Radeon RX 7900 XT"),
    _known("AMD Radeon AI PRO R9700", "gfx1201", 32, "R9700", "AMD Radeon R9700"),
    _known("Radeon 8060S Graphics", "gfx1151", 20, "Radeon 8060S", "AMD Radeon 8060S"),
)
"""Well-known GPUs, with the names people and files give them."""


def known_gpu(name: str) -> Hardware | None:
    """Return the GPU with the name or alias, with or without its blanks: ``RTX4090``. None if it is not known."""
    wanted = _closed(name)
    return next((gpu for gpu in KNOWN if wanted in map(_closed, (gpu.name, *gpu.aliases))), None)


def is_called(hardware: Hardware, name: str) -> bool:
    """Return whether this is the hardware's name or alias, or a well-known name of the same GPU."""
    gpu = known_gpu(name)
    return hardware.called(name) or (gpu is not None and gpu.same_device(hardware))


def gpus_of(arch: str) -> list[str]:
    """Return the short names of the well-known GPUs of an architecture."""
    return [gpu.aliases[0] for gpu in KNOWN if gpu.arch == arch]


def _closed(name: str) -> str:
    return slug(name).replace("-", "")


def gpu_named_in(text: str) -> Hardware | None:
    """Return the GPU whose name is part of a text, such as a file's name. Of several names, the longest counts."""
    words = f"-{re.sub(r'[^a-z0-9]+', '-', text.casefold())}-"
    found = [(len(name), gpu) for gpu in KNOWN for name in map(slug, (gpu.name, *gpu.aliases)) if f"-{name}-" in words]
    return max(found, key=lambda each: each[0])[1] if found else None


class Peaks(NamedTuple):
    """The most a multiprocessor, or a thread of a CPU, does in a nanosecond.

    ``half``, ``tf32`` and ``single`` count floating-point operations of dense matmuls with such operands. With operands
    of a byte, there are twice those of ``half``. ``memory_bytes`` is the multiprocessor's share of the memory's
    bandwidth.
    """

    half: float
    tf32: float
    single: float
    memory_bytes: float


class Architecture(NamedTuple):
    """The limits of a kernel launch on an architecture. They are None if they are not known.

    ``shared_memory`` counts the bytes a block may have. ``registers_per_thread`` and ``registers_per_block`` are of 4
    bytes. ``warp_size`` counts threads, ``warps_per_multiprocessor`` resident warps. ``tma`` says whether there are
    tensor descriptors. ``triton`` is the backend that compiles for it, empty for CPUs. ``peaks`` are those of its
    largest device. ``free_stages`` counts the stages of a pipeline that take no shared memory, because their operands
    are in registers. ``padding_permille`` is added by Triton there against bank conflicts.
    """

    name: str
    shared_memory: int | None = None
    tma: bool = True
    registers_per_thread: int | None = None
    registers_per_block: int | None = None
    warp_size: int = 32
    warps_per_multiprocessor: int | None = None
    triton: str = "cuda"
    peaks: Peaks | None = None
    free_stages: int = 0
    padding_permille: int = 0

    def stages_in_memory(self, num_stages: int) -> int:
        """Return how many stages of a pipeline of this depth take shared memory. Operands of a GEMM take it at least
        once.
        """
        return max(1, num_stages - self.free_stages)

    @property
    def matrix_rows(self) -> int:
        """Rows a matrix instruction multiplies: 64 if tensor cores read operands from shared memory."""
        return 64 if self.tma and not self.free_stages else 16

    @property
    def gpu(self) -> bool:
        """Whether its devices are GPUs."""
        return bool(self.triton)


_H200_PEAKS = Peaks(7500, 3750, 500, 36)  # data sheet without sparsity: 989, 495, 67 TFLOP/s, 4.8 TB/s, 132 SMs
_CPU_PEAKS = Peaks(100, 100, 100, 10)  # the order of magnitude of a server's thread with AVX-512

_ALL_BUT_ONE = 8  # free stages of GPUs that copy nothing to shared memory in the background: there is no pipeline


def _cuda(
    name: str, shared_memory: int | None, warps: int | None, *, tma: bool, peaks: Peaks | None = None, free: int = 0
) -> Architecture:
    return Architecture(name, shared_memory, tma, 255, 65536, 32, warps, peaks=peaks, free_stages=free)


def _cdna(name: str, shared_memory: int, *, free: int, padding: int = 0) -> Architecture:
    return Architecture(
        name, shared_memory, False, 512, 131072, 64, 32, "hip", free_stages=free, padding_permille=padding
    )


_NVIDIA = {
    each.name: each
    for each in (
        _cuda("sm_70", 98304, 64, tma=False, free=_ALL_BUT_ONE),
        _cuda("sm_72", 98304, 64, tma=False, free=_ALL_BUT_ONE),
        _cuda("sm_75", 65536, 32, tma=False, free=_ALL_BUT_ONE),
        _cuda("sm_80", 166912, 64, tma=False, free=1),
        _cuda("sm_86", 101376, 48, tma=False, free=1),
        _cuda("sm_87", 166912, 48, tma=False, free=1),
        _cuda("sm_89", 101376, 48, tma=False, free=1),
        _cuda("sm_90", 232448, 64, tma=True, peaks=_H200_PEAKS),
        _cuda("sm_100", 232448, 64, tma=True),
        _cuda("sm_103", 232448, 64, tma=True),
        _cuda("sm_110", 232448, 48, tma=True),
        _cuda("sm_120", 101376, 48, tma=True, free=1),
        _cuda("sm_121", 101376, 48, tma=True, free=1),
    )
}
"""CUDA C++ Programming Guide, technical specifications per compute capability.

From sm_90 to sm_110, tensor cores read operands from shared memory, so that all stages take some.
"""

_AMD = {
    each.name: each
    for each in (
        *(_cdna(name, 65536, free=1) for name in ("gfx908", "gfx90a", "gfx942")),
        _cdna("gfx950", 163840, free=0, padding=32),
        *(
            Architecture(name, 65536, False, 256, 98304, 32, 32, "hip", free_stages=1)
            for name in ("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201")
        ),
    )
}
"""AMD's instruction set guides, for one work-group: local data share, and vector registers of a thread and of all.

CDNA has 4 SIMDs of 512 registers for each of 64 lanes. RDNA's compute units have 2 of 1,536 for each of 32 lanes, and a
thread reaches 256 of them. For gfx950, Triton 3.9 copies to shared memory in the background. Earlier releases need less
of it.
"""

_KNOWN = {**_NVIDIA, **_AMD}

_FIRST_TMA = 90  # the first compute capability with tensor descriptors


def architecture(name: str) -> Architecture:
    """Return an architecture by the name a Hardware has: ``sm_90``, ``gfx942``, ``cpu-avx512``."""
    if name in _KNOWN:
        return _KNOWN[name]
    if name.startswith("cpu"):
        return Architecture(name, tma=False, triton="", peaks=_CPU_PEAKS)
    if name.startswith("gfx"):
        return Architecture(name, tma=False, warp_size=64 if name.startswith("gfx9") else 32, triton="hip")
    capability = name.removeprefix("sm_")
    if name.startswith("sm_") and capability.isdecimal():
        return _cuda(name, None, None, tma=int(capability) >= _FIRST_TMA)
    return Architecture(name)


def roofline_ns(problem: Problem, hardware: Hardware) -> float | None:
    """Return the least time of an execution, in nanoseconds. None if the device's peaks are not known."""
    peaks = architecture(hardware.arch).peaks
    if peaks is None:
        return None
    bytewise = 2 * peaks.half if ITEMSIZES[problem.dtype] == 1 else peaks.half
    operations_per_ns = {"float32": peaks.single, "tf32": peaks.tf32}.get(problem.dtype, bytewise)
    return max(problem.operations / operations_per_ns, problem.nbytes / peaks.memory_bytes) / hardware.sm_count
