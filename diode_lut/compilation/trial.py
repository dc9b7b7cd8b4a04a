"""One config as Triton compiles it for an architecture, whether there is a device or not."""

from __future__ import annotations

from typing import Any, NamedTuple

from diode_lut.domain.ops import letters
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import Config
from diode_lut.kernels.template import Heads

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
    from diode_lut.compilation import kernels

    letter_a, letter_b = letters(trial.layout)
    constants = {
        **dict.fromkeys("MNK", _SIZES[trial.align]),
        "A_ROW_MAJOR": letter_a == "n",
        "B_ROW_MAJOR": letter_b == "n",
        **_blocks(trial),
    }
    kernel = getattr(kernels, trial.config.kernel.stand_in)
    return kernel, dict(zip("abc", _POINTERS[trial.dtype], strict=True)), constants


def _attention(trial: Trial, heads: Heads) -> _Source:
    from diode_lut.compilation import attention

    gap = _GAPS[trial.align]
    constants = {"K": heads.k, "V": heads.v, "STRIDE_K": heads.k + gap, "STRIDE_V": heads.v + gap, **_blocks(trial)}
    kernel = getattr(attention, trial.config.kernel.stand_in)
    gradients = kernel is attention.backward
    rows = ("q", "k", "v", "do", "dq", "dk", "dv") if gradients else ("q", "k", "v", "out")
    numbers = {"sums": "*fp32", "delta": "*fp32"} if gradients else {}
    pointers = {**dict.fromkeys(rows, _POINTERS[trial.dtype][0]), **numbers, "steps": "*i32", "jumps": "*i32"}
    return kernel, pointers, constants


def _blocks(trial: Trial) -> dict[str, int]:
    return trial.config.kernel.blocks(trial.config.params, trial.heads)


def _options(trial: Trial) -> dict[str, int]:
    """Warps, stages, and the tunables that Triton takes as options of its compiler; 0 leaves these to Triton."""
    kernel, known = trial.config.kernel, architecture(trial.arch)
    values = kernel.values(trial.config.params)
    options = (each.name for each in kernel.parameters if each.option and each.is_known_to(known))
    return {name: values[name] for name in options if values.get(name)}


def _target(name: str) -> object:
    from triton.backends.compiler import GPUTarget

    known = architecture(name)
    return GPUTarget(known.triton, int(name.removeprefix("sm_")) if known.triton == "cuda" else name, known.warp_size)
