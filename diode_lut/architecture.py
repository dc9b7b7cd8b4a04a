"""What an architecture can launch, as numbers: known without a device, and without PyTorch."""

from __future__ import annotations

from diode_lut.problem import Config

SHARED_MEMORY = {
    "sm_70": 98304,
    "sm_72": 98304,
    "sm_75": 65536,
    "sm_80": 166912,
    "sm_86": 101376,
    "sm_87": 166912,
    "sm_89": 101376,
    "sm_90": 232448,
    "sm_100": 232448,
    "sm_103": 232448,
    "sm_110": 232448,
    "sm_120": 101376,
    "sm_121": 101376,
}
"""Bytes of shared memory that one block may have, for each architecture where that is known: CUDA C++ Programming
Guide, technical specifications per compute capability."""

_REGISTERS_PER_THREAD, _REGISTERS_PER_BLOCK = 255, 65536
"""Registers of one thread, and of all threads of a block: CUDA C++ Programming Guide, as above."""

GEMM_TEMPLATES = ("triton_mm", "triton_bmm", "triton_mm_persistent_tma")
"""The templates that are one Triton kernel, with blocks as tunables."""

WITHOUT_TENSOR_CORES = "float32"
"""The type that is multiplied without them. Where its loop over K is a single step, an epilogue that reads a bias can
make a kernel 34 times slower (measured on sm_90 with Triton 3.6): nobody should try or choose such blocks."""

_BARRIERS = 128
"""Bytes that Inductor adds to what a kernel's blocks need."""


def runs_on(arch: str) -> tuple[str, ...]:
    """The templates that there are for an architecture, whatever their tunables."""
    if arch.startswith("cpu"):
        return ("aten", "cpp_gemm")
    capability = arch.removeprefix("sm_")
    tma = () if capability.isdecimal() and int(capability) < 90 else ("triton_mm_persistent_tma",)
    return ("aten", "triton_mm", "triton_bmm", *tma, "decompose_k")


def accumulator_registers(config: Config) -> int:
    """Registers of 4 bytes that one thread needs for the accumulator; ``config`` is of one of GEMM_TEMPLATES."""
    block_m, block_n, *_, num_warps = config.params
    return -(-block_m * block_n // (32 * num_warps))


def registers(config: Config) -> int:
    """Registers that one thread may have. The accumulator must leave some of them, or it spills, or does not compile.

    ``config`` is of one of GEMM_TEMPLATES.
    """
    return min(_REGISTERS_PER_THREAD, _REGISTERS_PER_BLOCK // (32 * config.params[-1]))


def shared_memory(config: Config, op: str, itemsize: int) -> int:
    """Bytes of shared memory that Inductor reckons with before it compiles; ``config`` is of one of GEMM_TEMPLATES.

    That is the blocks of A and B in each stage, and for TMA the result's block with padding: in float32 where a bias
    is added, else in the inputs' type, which has ``itemsize`` bytes.
    """
    block_m, block_n, block_k, _, num_stages, _ = config.params
    stages = itemsize * block_k * (block_m + block_n) * num_stages
    if config.template != "triton_mm_persistent_tma":
        return stages + _BARRIERS
    item = 4 if op == "addmm" else itemsize
    return stages + item * block_m * (block_n + 16 // item) + _BARRIERS
