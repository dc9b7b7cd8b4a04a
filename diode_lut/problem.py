"""Problems: a GEMM, a grouped matmul, an attention or a generated kernel, with everything a choice may depend on."""

from __future__ import annotations

from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut.errors import OPS_OF_LAYERS, ProblemError, dtype_of, layout_of, number_of, op_of, variant_of

if TYPE_CHECKING:
    import torch


SCALINGS = ("tensor", "row")  # scales are for each of A and B, or for each row of A and each column of B
RESULT_DTYPES = ("bfloat16", "float16", "float32")  # the dtypes of scaled_mm's result


class Scaling(NamedTuple):
    """The parts of a variant of scaled_mm. A bias has the result's dtype, but not float32."""

    per: str
    result: str
    bias: bool = False
    fast: bool = False

    @classmethod
    def of(cls, variant: str) -> Scaling:
        """Return the parts of a variant in VARIANTS["scaled_mm"]."""
        per, result, *flags = variant.split("-")
        return cls(per, result, "bias" in flags, "fast" in flags)

    def __str__(self) -> str:
        flags = ("bias",) * self.bias + ("fast",) * self.fast
        return "-".join((self.per, self.result, *flags))


MASKS = ("full", "causal", "computed", "captured")
"""Attention's masks: none; query not before key, and nothing else; computed from the indices, such as a sliding window;
read from tensors, such as the document of each index."""

SCORES = ("plain", "computed", "captured")
"""Modifications of attention's scores: none; computed from them and the indices, such as a soft cap; read from tensors,
such as a bias for each head."""


class Modifications(NamedTuple):
    """The parts of a variant of ATTENTION: a mask, and a modification of scores, left out if it is ``plain``."""

    mask: str
    score: str = SCORES[0]

    @classmethod
    def of(cls, variant: str) -> Modifications:
        """Return the parts of a variant in VARIANTS["flex_attention"]."""
        mask, *score = variant.split("-score-")
        return cls(mask, *score)

    def __str__(self) -> str:
        return self.mask if self.score == SCORES[0] else f"{self.mask}-score-{self.score}"


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
    "joined_mm": ("m", "n", "k"),
    "fused_mm": ("m", "n", "k"),
    "pointwise": ("x", "y", "loads"),
    "reduction": ("x", "r"),
    "split_reduction": ("x", "r"),
}
"""The sizes of each op, in canonical order."""

OPS = tuple(OP_SIZES)

MEANING_OF_OPS = (
    "The GEMM: C = A B (mm), C = bias + A B (addmm), both in batches (bmm, baddbmm), and with scales for A and B, "
    "whose types are float8 (scaled_mm); A B of int8 to int32 (int_mm); or attention: forward (flex_attention), "
    "its gradients (flex_attention_backward), and forward with few queries (flex_decoding); or a matmul of rows in "
    "groups, each with a matrix B of its own (grouped_mm); or two or three matmuls with the same A in one kernel "
    "(joined_mm); or a matmul with all the pointwise work after it in one kernel (fused_mm); or a kernel that Inductor "
    "generates for anything else, "
    "with a reduction or without (reduction, pointwise); or how many parts a reduction is computed in "
    "(split_reduction). Left out, any GEMM but grouped_mm."
)
"""The meaning of each op, and of a row without an op, for the schema."""

OF_KERNELS = ("x", "y", "r", "loads")  # the sizes of GENERATED
SIZE_FIELDS = (*ATTENTION_SIZES, *OF_KERNELS)  # all sizes, in canonical order

ATTENTION = ("flex_attention", "flex_attention_backward", "flex_decoding")
"""Inductor's kernels for ``torch.nn.attention.flex_attention``: forward, backward, and forward for few queries."""

GROUPED = ("grouped_mm",)  # ``functional.grouped_mm`` of experts: consecutive rows of A are a group with its own B
JOINED = ("joined_mm",)  # matmuls with the same A, with or without bias, such as projections to queries, keys, values
JOINED_SCALINGS = ("tensor-bfloat16-fast", "row-bfloat16-fast")  # the variants of scaled_mm that JOINED has in float8
PRODUCTS = {"two": 2, "three": 3, "swiglu": 2, "geglu": 2}  # the number of B of each variant of JOINED
GATED = ("swiglu", "geglu")  # the variants with one result: ``silu(A @ B0) * (A @ B1)``, and the same of gelu with tanh
FUSED = ("fused_mm",)  # a matmul, with or without a bias, and all the pointwise work after it, in one kernel

WORK = ("relu", "gelu", "gelu_tanh", "add", *GATED)
"""The variants of FUSED: an activation of the product; its sum with another M x N tensor, such as a residual; the
product times ``silu``, or gelu with tanh, of another M x N tensor."""

TOGETHER = (*JOINED, *FUSED)  # matmuls in one kernel with other work, without which they are asked about as usual
SPLIT = "split_reduction"  # a reduction, before Inductor decides whether it takes one kernel or two
GENERATED = ("pointwise", "reduction", SPLIT)  # kernels that Inductor generates for other work


def needed_sizes(op: str, variant: str | None) -> tuple[str, ...]:
    """Return the sizes of a generated kernel that have no default."""
    has_default = ("loads",) if (variant or "").startswith("tiled") else ("loads", "y")
    return tuple(name for name in OP_SIZES[op] if name not in has_default)


MATMULS = tuple(op for op in OPS if op not in (*ATTENTION, *GROUPED, *TOGETHER, *GENERATED))  # on two matrices
MATMUL_SIZES = ("b", "m", "n", "k")  # The sizes of MATMULS. A size an op does not have is 1
ATTENTION_ONLY = tuple(name for name in ATTENTION_SIZES if name not in MATMUL_SIZES)  # the sizes of ATTENTION alone
BATCHED = tuple(op for op, sizes in OP_SIZES.items() if "b" in sizes)  # with a batch or groups: b is 1 for others

NO_EPILOGUE = "none"

EPILOGUES = {
    NO_EPILOGUE: "no pointwise work follows",
    "light": "work that costs next to nothing, such as relu, a scale or a cast",
    "medium": "one exponential function, such as in silu or gelu with erf, or another M x N tensor, such as a residual",
    "heavy": "more than that, such as gelu with tanh, the derivative of gelu, or dropout",
}
"""The classes of pointwise work to fuse after a GEMM, and their meanings."""

DTYPES = ("float16", "bfloat16", "float32", "tf32", "float8_e4m3fn", "float8_e5m2", "int8")

LAYOUTS = ("nn", "nt", "tn", "tt")

ALIGNS = (2, 16)

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")  # the dtypes of scaled_mm
FLOAT8_UNIT = 16  # N and K of scaled_mm are multiples of this: PyTorch computes no others on a GPU
INT8 = "int8"  # the dtype of int_mm
INTEGER = ("int_mm",)  # The ops on integers, with a C of RESULT_OF_INTEGERS. They have no rounding errors

RESULT_OF_INTEGERS = "int32"

SCALED = ("scaled_mm",)  # The ops whose A and B have scales. Their variants are Scalings as text

NO_VARIANT = ""

NO_DTYPE = NO_LAYOUT = ""  # the dtype and layout of GENERATED

VARIANTS: dict[str, tuple[str, ...]] = {
    "scaled_mm": tuple(
        str(Scaling(per, result, bias, fast))
        for per, result, bias, fast in product(SCALINGS, RESULT_DTYPES, (False, True), (False, True))
        if not (bias and result == "float32")
    ),
    **dict.fromkeys(ATTENTION, tuple(str(Modifications(mask, score)) for mask in MASKS for score in SCORES)),
    **dict.fromkeys(JOINED, tuple(PRODUCTS)),
    **dict.fromkeys(FUSED, WORK),
    "pointwise": ("flat", "tiled", "tiled-x", "tiled-y"),
    "reduction": ("inner", "outer", "outer_tiny", "default", "mixed"),
    SPLIT: ("inner", "outer"),
}
"""The variants of the ops with some. Other ops have NO_VARIANT, and it is not written."""

NAMED_VARIANTS = tuple(dict.fromkeys(variant for variants in VARIANTS.values() for variant in variants))
"""The variants of all ops, in canonical order."""


class Domain(NamedTuple):
    """The values an op's problems can have, in canonical order."""

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
    **{op: Domain((*_WIDE, FLOAT8[0]), ("nt", "nn", "tn", "tt"), (NO_EPILOGUE,), VARIANTS[op]) for op in JOINED},
    **{op: Domain(("bfloat16",), ("nt",), (NO_EPILOGUE,), VARIANTS[op]) for op in FUSED},
    **{op: Domain((NO_DTYPE,), (NO_LAYOUT,), (NO_EPILOGUE,), VARIANTS[op]) for op in GENERATED},
}
"""The domain of each op. Library and hardware multiply float8 only if A is row-major and B column-major. Attention
multiplies Q by K transposed: in its layout, rows of Q, K and V are without gaps. A library has grouped_mm in bfloat16
only. Generated kernels read and write several tensors, of any dtypes and layouts."""

GEMMS = tuple(op for op in OPS if DOMAINS[op] is _GEMM)  # The ops on numbers of more than 8 bits. They have no variants
OF_BYTES = (*SCALED, *INTEGER)  # the ops on numbers of 8 bits: in programs linear layers of language models
RANKED = (*GEMMS, *OF_BYTES)  # the ops of models
MAX_SIZE = 2**31 - 1  # largest b, m, n or k in a table: Inductor's kernels index with 32 bits

ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4, **dict.fromkeys((*FLOAT8, INT8), 1)}
"""Bytes of an element, for each of DTYPES."""

WITHOUT_TENSOR_CORES = "float32"
"""A dtype multiplied without them. If its loop over K is a single step, an epilogue with a bias can make a kernel 34
times slower (measured on sm_90 with Triton 3.6): such blocks should be neither tried nor chosen."""

WITHOUT_CHOICE = "float64"  # Inductor has only the library's kernel for it, so tables have no such problems
ROW_BYTES = 16  # rows start at multiples of this number of bytes in an aligned problem


def least_itemsize(op: str | None, dtype: str | None) -> int:
    """Return the fewest bytes an element has in problems of an op and a dtype. None stands for any."""
    ops = DOMAINS if op is None else (op,)
    return min(ITEMSIZES.get(each, 1) for op in ops for each in ((dtype,) if dtype else DOMAINS[op].dtypes))


def rounded_up(size: int) -> int:
    """Return the least power of two that is not below the size."""
    return 1 << (size - 1).bit_length()


def letters(layout: str) -> tuple[str, str]:
    """Return the letters of A and B in a layout."""
    return layout[0], layout[1]


_RESULT_SIZES = {**ITEMSIZES, RESULT_OF_INTEGERS: 4}

_NOT_PLAIN = frozenset((*ATTENTION, *GROUPED, *TOGETHER, *SCALED, *INTEGER, *GENERATED))  # other than GEMMs of floats

_VALUES: dict[str, tuple[str, ...]] = {"dtype": DTYPES, "layout": LAYOUTS, "epilogue": tuple(EPILOGUES)}
"""The values of these fields in problems of any op with such a field."""

_OTHER_SIZES = {
    op: (attrgetter(*names), (1,) * len(names))
    for op, own in OP_SIZES.items()
    for names in [[name for name in SIZE_FIELDS if name not in own]]
}
"""By op: what reads the sizes that the op does not have, and their values."""


class Problem(NamedTuple):
    """A GEMM or an attention: everything a choice may depend on, as plain values.

    ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``, plus a bias for addmm and baddbmm. ``dtype`` is torch's name of the
    inputs' type, or ``tf32`` for float32 with TF32 allowed. It is ``float8_e5m2`` if one of A and B has that type and
    the other float8_e4m3fn. For int_mm it is ``int8``, and C is int32. ``layout`` has a BLAS letter for A and one for
    B: ``n`` is row-major, ``t`` column-major. ``align`` is 16 if every row of A and B starts on a 16-byte boundary,
    else 2. ``b`` is 1 for mm, addmm, scaled_mm and int_mm. ``epilogue`` is the class of the pointwise work fused after
    the GEMM. ``variant`` is one of the op's in VARIANTS: for scaled_mm, a Scaling as text.

    grouped_mm has ``b`` groups, which have ``m`` rows together: ``C[m, n] = A[m, k] @ B[b, k, n]``, where ``b`` is the
    group of row ``m``. The number of rows of each group is not known before it runs.

    joined_mm has two or three B, as its variant says, with ``n`` columns together and the same letter in ``layout``. In
    float8 it has the scales of one of JOINED_SCALINGS.
    The variant of fused_mm is the work after the matmul.

    Attention has ``b`` batches of ``h`` query heads, of which each ``g`` share a head of keys and values. There are
    ``m`` queries and ``n`` keys of ``k`` elements, and values of ``v`` elements. ``align`` is 16 if every row of Q, K
    and V starts on a 16-byte boundary. ``variant`` is Modifications as text. For GEMMs h, g and v are 1.

    A generated kernel writes ``x`` elements, or ``y`` rows of ``x``, or reduces ``r`` elements to each of ``x``. These
    are Inductor's dimensions after it has joined loops. The variant of a reduction is Inductor's hint: ``inner`` reads
    contiguously along r, ``outer`` along x. With Inductor's hint ``default``, it is ``mixed`` if something is read
    contiguously along r. A pointwise kernel is ``flat``, with a single dimension, or ``tiled``: ``tiled-x`` if it reads
    and writes more contiguously along x, ``tiled-y`` if it never does, by Inductor's scores. It reads ``loads``
    different elements for each that it computes; without any, it is 1. A reduction that may be split has ``x`` and
    ``r`` of the whole reduction. The other sizes are 1, ``dtype`` and ``layout``
    empty, and ``align`` is 16.
    """

    op: str
    dtype: str
    layout: str
    align: int
    b: int
    m: int
    n: int
    k: int
    epilogue: str = NO_EPILOGUE
    variant: str = NO_VARIANT
    h: int = 1
    g: int = 1
    v: int = 1
    x: int = 1
    y: int = 1
    r: int = 1
    loads: int = 1

    @classmethod
    def checked(cls, *values: Any, **named: Any) -> Problem:
        """Return the problem of these fields, or raise ProblemError with the first value that is not allowed."""
        problem = cls(*values, **named)
        op = problem.op
        for name, value, allowed in (("op", op, OPS), ("align", problem.align, ALIGNS)):
            if value not in allowed:
                layer = f" ({value} is {OPS_OF_LAYERS[value]})" if value in [*OPS_OF_LAYERS] else ""
                raise ProblemError(f"{name}: {value!r} is not one of {', '.join(map(str, allowed))}{layer}")
        for names, value, allowed in zip(Domain._fields, problem[1:3] + problem[8:10], DOMAINS[op], strict=True):
            if value in allowed:
                continue
            name = names.removesuffix("s")
            if name in _VALUES and value not in _VALUES[name] and allowed != (NO_VARIANT,):
                raise ProblemError(f"{name}: {value!r} is not one of {', '.join(_VALUES[name])}")
            if allowed == (NO_VARIANT,):
                raise ProblemError(f"{name}: {value!r} is not for {op}, which has no {names}")
            fault = f"{op} needs one" if value == NO_VARIANT else f"{value!r} is not for {op}"
            raise ProblemError(f"{name}: {fault} (allowed: {', '.join(allowed)})")
        for name in OP_SIZES[op]:
            size = getattr(problem, name)
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise ProblemError(f"{name}: {size!r} is not an integer from 1 to {MAX_SIZE}")
        others, ones = _OTHER_SIZES[op]
        for name in SIZE_FIELDS if others(problem) != ones else ():
            size = getattr(problem, name)
            if size != 1 and name not in OP_SIZES[op]:
                lacking = "batch" if name == "b" else f"size {name}"
                raise ProblemError(f"{name}: {op} has no {lacking}, so {name} is 1, not {size}")
        if problem.h % problem.g:
            raise ProblemError(f"g: {problem.g} does not divide h, which is {problem.h}")
        return problem

    @classmethod
    def of(
        cls,
        op: str,
        m: int | str,
        n: int | str,
        k: int | str,
        *,
        dtype: str | torch.dtype,
        layout: str,
        b: int | str = 1,
        align: int | None = None,
        epilogue: str = NO_EPILOGUE,
        variant: str = NO_VARIANT,
        h: int | str = 1,
        g: int | str = 1,
        v: int | str | None = None,
    ) -> Problem:
        """Return the problem, or raise ProblemError. ``align`` is by default for packed matrices, ``v`` attention's
        ``k``.

        Ops, types, layouts and sizes may be spelled as on the command line: ``bf16``, ``NT``, ``1k``.
        """
        op, dtype, layout, variant = op_of(op), dtype_of(dtype), layout_of(layout), variant_of(variant)
        attention = op in ATTENTION
        sizes = (b, m, n, k, h, g, (k if attention else 1) if v is None else v)
        b, m, n, k, h, g, v = map(number_of, ATTENTION_SIZES, sizes)
        problem = cls.checked(op, dtype, layout, 16 if align is None else align, b, m, n, k, epilogue, variant, h, g, v)
        if align is not None:
            return problem
        packed = attention_align(dtype, k, v) if attention else contiguous_align(dtype, layout, m, n, k, b)
        return problem._replace(align=packed)

    @classmethod
    def generated(
        cls, op: str, variant: str, *, x: int | str, y: int | str = 1, r: int | str = 1, loads: int | str = 1
    ) -> Problem:
        """Return the problem of a generated kernel, or raise ProblemError. Sizes may be text: ``1k``."""
        sizes = dict(zip(OF_KERNELS, map(number_of, OF_KERNELS, (x, y, r, loads)), strict=True))
        return cls.checked(op_of(op), NO_DTYPE, NO_LAYOUT, 16, *[1] * 4, variant=variant_of(variant), **sizes)

    @property
    def kind(self) -> tuple[str, str, str, int, str, str]:
        """op, dtype, layout, align, epilogue and variant: all fields but the sizes."""
        return self.op, self.dtype, self.layout, self.align, self.epilogue, self.variant

    @property
    def alone(self) -> Problem:
        """The GEMM without an epilogue."""
        return self if self.epilogue == NO_EPILOGUE else self._replace(epilogue=NO_EPILOGUE)

    @property
    def sizes(self) -> tuple[int, ...]:
        """b, m, n and k, for attention h, g and v as well, and for generated kernels all of SIZE_FIELDS."""
        if self.op in ATTENTION:
            return self.b, self.m, self.n, self.k, self.h, self.g, self.v
        if self.op in GENERATED:
            return 1, 1, 1, 1, 1, 1, 1, self.x, self.y, self.r, self.loads
        return self.b, self.m, self.n, self.k

    @property
    def operations(self) -> int:
        """The multiplications and additions, of attention without its mask; of a generated kernel the elements."""
        if self.op in GENERATED:
            return self.x * self.y * self.r
        if self.op in ATTENTION:
            products = 2 * (self.k + self.v) if self.op != "flex_attention_backward" else 2 * (3 * self.k + 2 * self.v)
            return self.b * self.h * self.m * self.n * products
        if self.op in GROUPED:
            return 2 * self.m * self.n * self.k
        return 2 * self.b * self.m * self.n * self.k

    @property
    def result_dtype(self) -> str:
        """The type of C, by PyTorch's name."""
        if self.dtype in FLOAT8:
            return Scaling.of(self.variant if self.op in SCALED else JOINED_SCALINGS[0]).result
        if self.op in INTEGER:
            return RESULT_OF_INTEGERS
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def n_align(self) -> int:
        """16 if every row of a packed C starts on a 16-byte boundary, or the op is no plain GEMM of floats, else 2."""
        return 2 if self.n % aligned_columns(self.op, self.dtype) else 16

    @property
    def nbytes(self) -> int:
        """The bytes of A, B and the result; of Q, K, V, and the result or all gradients; 0 of a generated kernel."""
        if self.op in GENERATED:
            return 0
        if self.op in ATTENTION:
            rows = self.h * self.m * (self.k + self.v) + self.h // self.g * self.n * (self.k + self.v)
            return ITEMSIZES[self.dtype] * self.b * rows * (2 if self.op == "flex_attention_backward" else 1)
        if self.op in GROUPED:
            return ITEMSIZES[self.dtype] * (self.m * (self.k + self.n) + self.b * self.k * self.n)
        operands = ITEMSIZES[self.dtype] * (self.m * self.k + self.k * self.n)
        return self.b * (operands + _RESULT_SIZES[self.result_dtype] * self.m * self.n)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a problem file, for ``collect``."""
        op, dtype, layout, align, _, _, _, _, epilogue, variant, *_ = self
        if op in GENERATED:
            return {"op": op, "variant": variant, **{name.upper(): getattr(self, name) for name in OP_SIZES[op]}}
        fields: dict[str, Any] = {"op": op, "dtype": dtype, "layout": layout, "align": align}
        fields |= dict(zip(map(str.upper, SIZE_FIELDS), self.sizes, strict=False))
        if epilogue != NO_EPILOGUE:
            fields["epilogue"] = epilogue
        return fields if variant == NO_VARIANT else {**fields, "variant": variant}

    def stored(self) -> dict[str, Any]:
        """Return the fields by name, for files, without those at the end with their defaults."""
        fields = self._asdict()
        for name in reversed(self._field_defaults):
            if fields[name] != self._field_defaults[name]:
                break
            del fields[name]
        return fields

    def __str__(self) -> str:
        if self.op in GENERATED:
            sizes = {name: getattr(self, name) for name in OP_SIZES[self.op]}
            shown = (f"{name} {size}" for name, size in sizes.items() if name == "x" or size > 1)
            return " ".join((self.op, self.variant, *shown))
        batch = f"{self.b}x" if self.op in BATCHED else ""
        if self.op in ATTENTION:
            batch += f"{self.h}x"
        more = f" v {self.v}" if self.op in ATTENTION and self.v != self.k else ""
        more += f" g {self.g}" if self.g != 1 else ""
        tail = "" if self.epilogue == NO_EPILOGUE else f" epilogue {self.epilogue}"
        head = self.op if self.variant == NO_VARIANT else f"{self.op} {self.variant}"
        return f"{head} {batch}{self.m}x{self.n}x{self.k}{more} {self.dtype} {self.layout} align {self.align}{tail}"


def aligned_columns(op: str, dtype: str) -> int:
    """N must be a multiple of this for the rows of a packed C to be 16-byte aligned. 1 for any N."""
    return 1 if op in _NOT_PLAIN else ROW_BYTES // ITEMSIZES[dtype]


def contiguous_align(dtype: str, layout: str, m: int, n: int, k: int, b: int = 1) -> int:
    """Return ``align`` of a GEMM whose A and B are packed, without gaps between rows, as ``layout`` says."""
    letter_a, letter_b = letters(layout)
    itemsize = ITEMSIZES[dtype]
    operands = packed_operand(letter_a, m, k, b), packed_operand(letter_b, k, n, b)
    return 16 if all(operand.is_aligned(itemsize) for operand in operands) else 2


def attention_align(dtype: str, k: int, v: int) -> int:
    """Return ``align`` of an attention whose Q, K and V are packed."""
    unit = ROW_BYTES // ITEMSIZES[dtype]
    return 2 if k % unit or v % unit else 16


class Operand(NamedTuple):
    """A matrix, or a batch of them. Sizes, strides and offset count elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def letter(self) -> str | None:
        """``n`` for a row-major matrix, ``t`` for a column-major matrix, None if no dimension has stride 1."""
        return "n" if self.strides[-1] == 1 else "t" if self.strides[-2] == 1 else None

    def is_aligned(self, itemsize: int) -> bool:
        """Return whether each row, or column if column-major, of each matrix starts on a 16-byte boundary."""
        matrix = len(self.sizes) - 2
        for axis, (size, step) in enumerate(zip(self.sizes, self.strides, strict=True)):
            if step * itemsize % ROW_BYTES and size != 1 and (step != 1 or axis < matrix):
                return False
        return self.offset * itemsize % ROW_BYTES == 0


def problem_of(op: str, dtype: str, a: Operand, b: Operand, variant: str = NO_VARIANT) -> Problem:
    """Return the problem of two matrices or batches, or of a grouped_mm. ProblemError if tables have none such."""
    dimensions = (3 if op in BATCHED and op not in GROUPED else 2), (3 if op in BATCHED else 2)
    if not (len(a.sizes), len(b.sizes)) == (len(a.strides), len(b.strides)) == dimensions:
        raise ProblemError(f"{op} of operands with {len(a.sizes)} and {len(b.sizes)} dimensions")
    if a.sizes[-1] != b.sizes[-2]:
        raise ProblemError("operands whose sizes do not match")
    m, k, n = a.sizes[-2], a.sizes[-1], b.sizes[-1]
    letter_a, letter_b = a.letter, b.letter
    if letter_a is None or letter_b is None:
        raise ProblemError("the matrix has no dimension with stride 1")
    batch = b.sizes[0] if op in BATCHED else 1
    problem = Problem.checked(op, dtype, letter_a + letter_b, 16, batch, m, n, k, variant=variant)
    itemsize = ITEMSIZES[dtype]
    return problem if a.is_aligned(itemsize) and b.is_aligned(itemsize) else problem._replace(align=2)


def packed_operands(problem: Problem) -> tuple[Operand, Operand]:
    """Return A and B without gaps. ProblemError if that makes another problem. A single row or column is row-major."""
    b, m, n, k = problem.sizes
    batch = b if problem.op in BATCHED else None
    letter_a, letter_b = letters(problem.layout)
    a = packed_operand(letter_a, m, k, None if problem.op in GROUPED else batch)
    operands = a, packed_operand(letter_b, k, n, batch)
    if problem_of(problem.op, problem.dtype, *operands, problem.variant) != problem:
        raise ProblemError(f"{problem.layout} align {problem.align}, which packed matrices of these sizes are not")
    return operands


def packed_operand(letter: str, rows: int, columns: int, batch: int | None, step: int | None = None) -> Operand:
    """Return a matrix, or a batch of them, without gaps but those in its rows, or columns if ``t``, of ``step``."""
    step = step or (columns if letter == "n" else rows)
    strides = (step, 1) if letter == "n" else (1, step)
    if batch is None:
        return Operand((rows, columns), strides)
    return Operand((batch, rows, columns), (step * (rows if letter == "n" else columns), *strides))
