"""The ops, the sizes that each has, and the values that its problems have, in canonical order."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from diode_lut.domain.variants import MASKS, RESULT_DTYPES, SCALINGS, SCORES, Modifications, Scaling

ATTENTION_SIZES = ("b", "m", "n", "k", "h", "g", "v")

OP_SIZES = {
    "mm": ("m", "n", "k"),
    "addmm": ("m", "n", "k"),
    "bmm": ("b", "m", "n", "k"),
    "baddbmm": ("b", "m", "n", "k"),
    "scaled_mm": ("m", "n", "k"),
    "int_mm": ("m", "n", "k"),
    "flex_attention": ATTENTION_SIZES,
    "flex_attention_backward": ATTENTION_SIZES,
    "flex_decoding": ATTENTION_SIZES,
    "grouped_mm": ("b", "m", "n", "k"),
}
"""The sizes that each op has, in canonical order."""

OPS = tuple(OP_SIZES)

SIZE_FIELDS = tuple(dict.fromkeys(name for sizes in sorted(OP_SIZES.values()) for name in sizes))
"""The sizes that any op has, in canonical order."""

ATTENTION = ("flex_attention", "flex_attention_backward", "flex_decoding")
"""Inductor's kernels for ``torch.nn.attention.flex_attention``: forward, backward, and forward for few queries."""

GROUPED = ("grouped_mm",)
"""``torch.nn.functional.grouped_mm`` of experts: consecutive rows of A are a group, each with a matrix B of its own."""

MATMULS = tuple(op for op in OPS if op not in (*ATTENTION, *GROUPED))
"""The ops that multiply two matrices, or two batches. A row that names no op is for these."""

MATMUL_SIZES = ("b", "m", "n", "k")
"""The sizes that some of MATMULS has. A size that an op does not have is 1."""

ATTENTION_ONLY = tuple(name for name in SIZE_FIELDS if name not in MATMUL_SIZES)
"""The sizes that only ATTENTION has."""

BATCHED = tuple(op for op, sizes in OP_SIZES.items() if "b" in sizes)
"""The ops with a batch, or with groups; b is 1 for the others."""

NO_EPILOGUE = "none"

EPILOGUES = {
    NO_EPILOGUE: "no pointwise work follows",
    "light": "work that costs next to nothing, such as relu, a scale or a cast",
    "medium": "one exponential function, such as in silu or gelu with erf, or another M x N tensor, such as a residual",
    "heavy": "more than that, such as gelu with tanh, the derivative of gelu, or dropout",
}
"""The classes of pointwise work that may be fused behind a GEMM, and what each means."""

DTYPES = ("float16", "bfloat16", "float32", "tf32", "float8_e4m3fn", "float8_e5m2", "int8")

LAYOUTS = ("nn", "nt", "tn", "tt")

ALIGNS = (2, 16)

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
"""The dtypes of scaled_mm."""

FLOAT8_UNIT = 16
"""What N and K of scaled_mm are multiples of: PyTorch computes no others on a GPU."""

INT8 = "int8"
"""The dtype of int_mm."""

INTEGER = ("int_mm",)
"""The ops that multiply integers, whose C is of RESULT_OF_INTEGERS. It has no rounding errors."""

RESULT_OF_INTEGERS = "int32"

SCALED = ("scaled_mm",)
"""The ops whose A and B have scales. Their variants are Scalings as text."""

NO_VARIANT = ""

VARIANTS: dict[str, tuple[str, ...]] = {
    "scaled_mm": tuple(
        str(Scaling(per, result, bias, fast))
        for per, result, bias, fast in product(SCALINGS, RESULT_DTYPES, (False, True), (False, True))
        if not (bias and result == "float32")
    ),
    **dict.fromkeys(ATTENTION, tuple(str(Modifications(mask, score)) for mask in MASKS for score in SCORES)),
}
"""The variants of the ops that have some. Others have the variant NO_VARIANT, which is not written."""

NAMED_VARIANTS = tuple(dict.fromkeys(variant for variants in VARIANTS.values() for variant in variants))
"""The variants of all ops, in canonical order."""


class Domain(NamedTuple):
    """The values that an op's problems have, in canonical order."""

    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    epilogues: tuple[str, ...]
    variants: tuple[str, ...]


_WIDE = tuple(dtype for dtype in DTYPES if dtype not in (*FLOAT8, INT8))

_GEMM = Domain(_WIDE, LAYOUTS, tuple(EPILOGUES), (NO_VARIANT,))

DOMAINS = dict.fromkeys(OPS, _GEMM) | {
    "scaled_mm": Domain(FLOAT8, ("nt",), (NO_EPILOGUE,), VARIANTS["scaled_mm"]),
    "int_mm": Domain((INT8,), LAYOUTS, tuple(EPILOGUES), (NO_VARIANT,)),
    **{op: Domain(_WIDE, ("nt",), (NO_EPILOGUE,), VARIANTS[op]) for op in ATTENTION},
    "grouped_mm": Domain(("bfloat16",), ("nn", "nt"), (NO_EPILOGUE,), (NO_VARIANT,)),
}
"""By op. Library and hardware multiply float8 only where A is row-major and B column-major. Attention multiplies Q by
K transposed: in its layout, rows of Q, K and V are without gaps. A library has grouped_mm in bfloat16 only."""

GEMMS = tuple(op for op in OPS if DOMAINS[op] is _GEMM)
"""The ops that multiply numbers of more than 8 bits. They have no variants."""

OF_BYTES = (*SCALED, *INTEGER)
"""The ops that multiply numbers of 8 bits. In programs they are the linear layers of language models."""

RANKED = (*GEMMS, *OF_BYTES)
"""The ops that models can rank kernels for."""

MAX_SIZE = 2**31 - 1
"""Largest b, m, n or k that a table can speak of: Inductor's kernels index with 32 bits."""

ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4, **dict.fromkeys((*FLOAT8, INT8), 1)}
"""Bytes of one element, for each of DTYPES."""


WITHOUT_TENSOR_CORES = "float32"
"""The dtype that is multiplied without them. Where its loop over K is a single step, an epilogue that reads a bias can
make a kernel 34 times slower (measured on sm_90 with Triton 3.6): such blocks should be neither tried nor chosen."""

ROW_BYTES = 16
"""Bytes that the starts of rows are multiples of in an aligned problem."""


def least_itemsize(op: str | None, dtype: str | None) -> int:
    """Bytes of one element of A and B, the fewest that problems of an op and a dtype have; None stands for any."""
    ops = DOMAINS if op is None else (op,)
    return min(ITEMSIZES[each] for op in ops for each in ((dtype,) if dtype else DOMAINS[op].dtypes))


def letters(layout: str) -> tuple[str, str]:
    """The letter of A, and that of B, in one of LAYOUTS."""
    return layout[0], layout[1]
