"""One config as Triton compiles it for an architecture, whether there is a device or not."""

from __future__ import annotations

from typing import Any, NamedTuple

from diode_lut.domain.ops import letters
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import Config
from diode_lut.kernels.flex_attention import Heads
from diode_lut.kernels.grouped_mm import GroupedMm
from diode_lut.kernels.triton_gemm import ROCM

_POINTERS = {
    "float16": ("*fp16",) * 3,
    "bfloat16": ("*bf16",) * 3,
    "float32": ("*fp32",) * 3,
    "tf32": ("*fp32",) * 3,
    "float8_e4m3fn": ("*fp8e4nv", "*fp8e4nv", "*bf16"),
    "float8_e5m2": ("*fp8e5", "*fp8e4nv", "*bf16"),
    "int8": ("*i8", "*i8", "*i32"),
}
"""By dtype: the types of A, B and C, or of attention's queries, keys and everything else."""

_SIZES = {16: 4096, 2: 4098}
"""By align: the size of M, N and K, larger than any block, with rows on 16-byte boundaries or not."""

_GAPS = {16: 0, 2: 1}
"""By align: elements between rows of heads."""


class Trial(NamedTuple):
    """Everything that decides how a config compiles: its template has tiles, or is of attention, which has ``heads``.

    ``arch`` is a Hardware's.
    """

    arch: str
    config: Config
    dtype: str
    layout: str
    align: int
    heads: Heads | None = None

    def __str__(self) -> str:
        if self.heads is None:
            return f"{self.config} for {self.dtype} {self.layout} align {self.align}"
        heads = f"heads of {self.heads.k} and {self.heads.v} elements"
        return f"{self.config} for {self.dtype} align {self.align} and {heads}"


def compile_trial(trial: Trial) -> int:
    """Bytes of shared memory that the compiled kernel needs; any error of Triton's if it does not compile."""
    return int(compiled(trial).metadata.shared)


def compiled(trial: Trial) -> Any:
    """The kernel that Triton makes, with its ``metadata`` and ``asm``; any error of Triton's if it does not compile.

    Triton keeps compiled kernels in its cache on disk (``TRITON_CACHE_DIR``), so that each is compiled once.
    """
    import triton
    from triton.compiler import ASTSource

    kernel, pointers, constants = _gemm(trial) if trial.heads is None else _attention(trial, trial.heads)
    constants["PRECISION"] = "tf32" if trial.dtype == "tf32" else "ieee"
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(pointers))}
    source = ASTSource(kernel, {**pointers, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    return triton.compile(source, target=_target(trial.arch), options=_options(trial))


_Source = tuple[Any, dict[str, str], dict[str, Any]]
"""A kernel, its pointers with their types, and its constants."""


def _gemm(trial: Trial) -> _Source:
    from diode_lut.compilation.kernels import gemm, persistent_tma_gemm

    own = trial.config.kernel
    tiles = own.tiles(trial.config.params) if isinstance(own, GroupedMm) else trial.config.tiles
    letter_a, letter_b = letters(trial.layout)
    constants = {
        **dict.fromkeys("MNK", _SIZES[trial.align]),
        "A_ROW_MAJOR": letter_a == "n",
        "B_ROW_MAJOR": letter_b == "n",
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "BLOCK_K": tiles.block_k,
        "GROUP_M": tiles.group_m,
    }
    kernel = persistent_tma_gemm if trial.config.kernel.tma else gemm
    return kernel, dict(zip("abc", _POINTERS[trial.dtype], strict=True)), constants


def _attention(trial: Trial, heads: Heads) -> _Source:
    from diode_lut.compilation.attention import backward, forward

    blocks = {name.upper(): value for name, value in trial.config.tunables.items() if name.startswith("block_")}
    if trial.config.template == "triton_flex_decoding":
        blocks["BLOCK_M"] = heads.rows
    gap = _GAPS[trial.align]
    constants = {"K": heads.k, "V": heads.v, "STRIDE_K": heads.k + gap, "STRIDE_V": heads.v + gap, **blocks}
    of_op = trial.config.kernel.ops == ("flex_attention_backward",)
    rows = ("q", "k", "v", "do", "dq", "dk", "dv") if of_op else ("q", "k", "v", "out")
    numbers = {"sums": "*fp32", "delta": "*fp32"} if of_op else {}
    pointers = {**dict.fromkeys(rows, _POINTERS[trial.dtype][0]), **numbers, "steps": "*i32", "jumps": "*i32"}
    return backward if of_op else forward, pointers, constants


def _options(trial: Trial) -> dict[str, int]:
    """Warps, stages, and the tunables that Triton takes as options of its compiler; 0 leaves these to Triton."""
    values = trial.config.kernel.values(trial.config.params)
    known = architecture(trial.arch)
    more = {each.name: values[each.name] for each in ROCM if each.is_known_to(known) and values.get(each.name)}
    return {"num_warps": values["num_warps"], "num_stages": values["num_stages"], **more}


def _target(name: str) -> object:
    from triton.backends.compiler import GPUTarget

    known = architecture(name)
    return GPUTarget(known.triton, int(name.removeprefix("sm_")) if known.triton == "cuda" else name, known.warp_size)
