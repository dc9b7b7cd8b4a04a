"""Architectures as data, known without a device and without PyTorch.

``tools/compile_candidates.py`` compares it with Triton's compiler.
"""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.hardware import Hardware
from diode_lut.problem import ITEMSIZES, Problem


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


_H200_PEAKS = Peaks(7500, 3750, 500, 36)
"""NVIDIA H200 data sheet, without sparsity: 989, 495 and 67 TFLOP/s and 4.8 TB/s, over 132 multiprocessors."""
_CPU_PEAKS = Peaks(100, 100, 100, 10)
"""The order of magnitude of a server's thread with AVX-512."""


_ALL_BUT_ONE = 8
"""Free stages of GPUs that copy nothing to shared memory in the background: Triton has no pipeline there."""


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

_FIRST_TMA = 90
"""The first compute capability with tensor descriptors."""


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
