"""One config, compiled by Triton for an architecture that need not be there."""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import Config

_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "tf32": "*fp32"}

_SIZES = {16: 4096, 2: 4098}
"""M, N and K, for each align: large enough for any block, rows on boundaries of 16 bytes, or not."""


class Trial(NamedTuple):
    """What decides how a config compiles; ``config`` is of a tiled template, ``arch`` is a Hardware's."""

    arch: str
    config: Config
    dtype: str
    layout: str
    align: int


def compile_trial(trial: Trial) -> int:
    """Bytes of shared memory that the compiled kernel needs; any error of Triton's if it does not compile.

    Triton keeps what it has compiled in its cache on disk (``TRITON_CACHE_DIR``), so that it is done once.
    """
    import triton
    from triton.compiler import ASTSource

    from diode_lut.compilation.kernels import persistent_tma_product, product

    tiles = trial.config.tiles
    constants = {
        **dict.fromkeys("MNK", _SIZES[trial.align]),
        "A_ROW_MAJOR": trial.layout[0] == "n",
        "B_ROW_MAJOR": trial.layout[1] == "n",
        "PRECISION": "tf32" if trial.dtype == "tf32" else "ieee",
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "BLOCK_K": tiles.block_k,
        "GROUP_M": tiles.group_m,
    }
    signature = {**dict.fromkeys("abc", _POINTERS[trial.dtype]), **dict.fromkeys(constants, "constexpr")}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(3)}
    kernel = persistent_tma_product if trial.config.kernel.tma else product
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return int(triton.compile(source, target=_target(trial.arch), options=options).metadata.shared)


def _target(arch: str) -> object:
    from triton.backends.compiler import GPUTarget

    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, architecture(arch).warp_size)
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
