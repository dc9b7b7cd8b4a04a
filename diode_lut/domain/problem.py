"""One GEMM, or one attention, as a table knows it.

Problem is a named tuple, because a lookup hashes it in a microsecond. Making one directly checks nothing;
``Problem.checked`` and ``problem_of`` check everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.ops import (
    ALIGNS,
    ATTENTION,
    BATCHED,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    GROUPED,
    INTEGER,
    ITEMSIZES,
    LAYOUTS,
    MAX_SIZE,
    NO_EPILOGUE,
    NO_VARIANT,
    OP_SIZES,
    OPS,
    RESULT_OF_INTEGERS,
    ROW_BYTES,
    SCALED,
    SIZE_FIELDS,
    Domain,
    letters,
)
from diode_lut.domain.spelling import OPS_OF_LAYERS, dtype_of, layout_of, number_of, op_of, variant_of
from diode_lut.domain.variants import Scaling

if TYPE_CHECKING:
    import torch

_RESULT_SIZES = {**ITEMSIZES, RESULT_OF_INTEGERS: 4}

_NOT_PLAIN = frozenset((*ATTENTION, *GROUPED, *SCALED, *INTEGER))
"""The ops that are no plain GEMMs of floating-point numbers."""

_VALUES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("op", OPS),
    ("dtype", DTYPES),
    ("layout", LAYOUTS),
    ("align", ALIGNS),
    ("epilogue", tuple(EPILOGUES)),
)
"""What the fields of any problem may be."""


class Problem(NamedTuple):
    """One GEMM, or one attention: everything a choice may depend on, as plain values.

    ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``, plus a bias for addmm and baddbmm. ``dtype`` is torch's name of the
    inputs' type, or ``tf32`` for float32 with TF32 allowed; ``float8_e5m2`` if one of A and B has that type, and the
    other float8_e4m3fn. Of int_mm it is ``int8``, and C is int32. ``layout`` has a BLAS letter for A and one for B:
    ``n`` is row-major, ``t`` column-major. ``align`` is 16 if every row of A and B starts on a 16-byte boundary, else
    2. ``b`` is 1 for mm, addmm, scaled_mm and int_mm. ``epilogue`` is the class of the pointwise work that is fused
    behind the GEMM. ``variant`` is one of the op's in VARIANTS: for scaled_mm, a Scaling as text.

    grouped_mm has ``b`` groups, which have ``m`` rows together: ``C[m, n] = A[m, k] @ B[b, k, n]``, where ``b`` is the
    group of row ``m``. How many rows each group has is not known before it runs.

    Attention has ``b`` batches of ``h`` query heads, of which each ``g`` share a head of keys and values. There are
    ``m`` queries and ``n`` keys of ``k`` elements, and values of ``v`` elements. ``align`` is 16 if every row of Q, K
    and V starts on a 16-byte boundary. ``variant`` is Modifications as text. For GEMMs h, g and v are 1.
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

    @classmethod
    def checked(
        cls,
        op: str,
        dtype: str,
        layout: str,
        align: int,
        b: int,
        m: int,
        n: int,
        k: int,
        epilogue: str = NO_EPILOGUE,
        variant: str = NO_VARIANT,
        h: int = 1,
        g: int = 1,
        v: int = 1,
    ) -> Problem:
        """The problem, or ProblemError naming the first value that is not allowed."""
        for (name, allowed), value in zip(_VALUES, (op, dtype, layout, align, epilogue), strict=True):
            if value not in allowed:
                layer = f" ({value} is {OPS_OF_LAYERS[value]})" if name == "op" and value in [*OPS_OF_LAYERS] else ""
                raise ProblemError(f"{name}: {value!r} is not one of {_one_of(allowed)}{layer}")
        for name, size in zip(SIZE_FIELDS, (b, m, n, k, h, g, v), strict=True):
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise ProblemError(f"{name}: {size!r} is not an integer from 1 to {MAX_SIZE}")
            if size != 1 and name not in OP_SIZES[op]:
                lacking = "batch" if name == "b" else f"size {name}"
                raise ProblemError(f"{name}: {op} has no {lacking}, so {name} is 1, not {size}")
        if h % g:
            raise ProblemError(f"g: {g} does not divide h, which is {h}")
        values = dtype, layout, epilogue, variant
        for name, value, allowed in zip(Domain._fields, values, DOMAINS[op], strict=True):
            if value not in allowed:
                raise ProblemError(f"{name.removesuffix('s')}: {_not_for(op, value, allowed)}")
        return cls(op, dtype, layout, align, b, m, n, k, epilogue, variant, h, g, v)

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
        """The problem, or ProblemError; ``align`` is by default that of packed matrices, ``v`` attention's ``k``.

        Ops, types, layouts and sizes may be spelled as on the command line: ``bf16``, ``NT``, ``1k``.
        """
        op, dtype, layout, variant = op_of(op), dtype_of(dtype), layout_of(layout), variant_of(variant)
        attention = op in ATTENTION
        sizes = (b, m, n, k, h, g, (k if attention else 1) if v is None else v)
        b, m, n, k, h, g, v = map(number_of, SIZE_FIELDS, sizes)
        problem = cls.checked(op, dtype, layout, 16 if align is None else align, b, m, n, k, epilogue, variant, h, g, v)
        if align is not None:
            return problem
        packed = attention_align(dtype, k, v) if attention else contiguous_align(dtype, layout, m, n, k, b)
        return problem._replace(align=packed)

    @property
    def kind(self) -> tuple[str, str, str, int, str, str]:
        """op, dtype, layout, align, epilogue and variant: what does not depend on sizes."""
        return self.op, self.dtype, self.layout, self.align, self.epilogue, self.variant

    @property
    def alone(self) -> Problem:
        """The GEMM without an epilogue."""
        return self if self.epilogue == NO_EPILOGUE else self._replace(epilogue=NO_EPILOGUE)

    @property
    def sizes(self) -> tuple[int, ...]:
        """b, m, n and k; of attention h, g and v as well."""
        if self.op in ATTENTION:
            return self.b, self.m, self.n, self.k, self.h, self.g, self.v
        return self.b, self.m, self.n, self.k

    @property
    def operations(self) -> int:
        """The number of multiplications and additions; of attention, without its mask."""
        if self.op in ATTENTION:
            products = 2 * (self.k + self.v) if self.op != "flex_attention_backward" else 2 * (3 * self.k + 2 * self.v)
            return self.b * self.h * self.m * self.n * products
        if self.op in GROUPED:
            return 2 * self.m * self.n * self.k
        return 2 * self.b * self.m * self.n * self.k

    @property
    def result_dtype(self) -> str:
        """The type of C, by PyTorch's name."""
        if self.op in SCALED:
            return Scaling.of(self.variant).result
        if self.op in INTEGER:
            return RESULT_OF_INTEGERS
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def has_aligned_result(self) -> bool:
        """Whether all rows of a packed C are multiples of 16 bytes. If not, a GEMM may take several times as long.

        True for ops that are no plain GEMMs of floating-point numbers.
        """
        return self.n % aligned_columns(self.op, self.dtype) == 0

    @property
    def nbytes(self) -> int:
        """The size of A, B and the result, in bytes; of attention that of Q, K, V, and the result or all gradients."""
        if self.op in ATTENTION:
            rows = self.h * self.m * (self.k + self.v) + self.h // self.g * self.n * (self.k + self.v)
            return ITEMSIZES[self.dtype] * self.b * rows * (2 if self.op == "flex_attention_backward" else 1)
        if self.op in GROUPED:
            return ITEMSIZES[self.dtype] * (self.m * (self.k + self.n) + self.b * self.k * self.n)
        operands = ITEMSIZES[self.dtype] * (self.m * self.k + self.k * self.n)
        return self.b * (operands + _RESULT_SIZES[self.result_dtype] * self.m * self.n)

    def to_json(self) -> dict[str, Any]:
        """The fields that a problem file has, which ``collect`` takes."""
        op, dtype, layout, align, _, _, _, _, epilogue, variant, *_ = self
        fields: dict[str, Any] = {"op": op, "dtype": dtype, "layout": layout, "align": align}
        fields |= dict(zip(map(str.upper, SIZE_FIELDS), self.sizes, strict=False))
        if epilogue != NO_EPILOGUE:
            fields["epilogue"] = epilogue
        return fields if variant == NO_VARIANT else {**fields, "variant": variant}

    def stored(self) -> dict[str, Any]:
        """The fields by name, for files; without what is at the end and has its default."""
        fields = self._asdict()
        for name in reversed(self._field_defaults):
            if fields[name] != self._field_defaults[name]:
                break
            del fields[name]
        return fields

    def __str__(self) -> str:
        batch = f"{self.b}x" if self.op in BATCHED else ""
        if self.op in ATTENTION:
            batch += f"{self.h}x"
        more = f" v {self.v}" if self.op in ATTENTION and self.v != self.k else ""
        more += f" g {self.g}" if self.g != 1 else ""
        tail = "" if self.epilogue == NO_EPILOGUE else f" epilogue {self.epilogue}"
        head = self.op if self.variant == NO_VARIANT else f"{self.op} {self.variant}"
        return f"{head} {batch}{self.m}x{self.n}x{self.k}{more} {self.dtype} {self.layout} align {self.align}{tail}"


def aligned_columns(op: str, dtype: str) -> int:
    """Of what N is a multiple where all rows of a packed C are multiples of 16 bytes; 1 if that does not matter."""
    return 1 if op in _NOT_PLAIN else ROW_BYTES // ITEMSIZES[dtype]


def contiguous_align(dtype: str, layout: str, m: int, n: int, k: int, b: int = 1) -> int:
    """``align`` of a GEMM whose A and B are packed, without gaps between rows, as ``layout`` says."""
    letter_a, letter_b = letters(layout)
    a = (m, k) if letter_a == "n" else (k, m)
    c = (k, n) if letter_b == "n" else (n, k)
    unit = 16 // ITEMSIZES[dtype]
    packed = all(
        (rows == 1 or cols == 1 or cols % unit == 0) and (b == 1 or rows * cols % unit == 0) for rows, cols in (a, c)
    )
    return 16 if packed else 2


def attention_align(dtype: str, k: int, v: int) -> int:
    """``align`` of an attention whose Q, K and V are packed."""
    unit = ROW_BYTES // ITEMSIZES[dtype]
    return 2 if k % unit or v % unit else 16


def _not_for(op: str, value: str, allowed: tuple[str, ...]) -> str:
    if allowed == (NO_VARIANT,):
        return f"{value!r} is not for {op}, which has no variants"
    if value == NO_VARIANT:
        return f"{op} needs one (allowed: {_one_of(allowed)})"
    return f"{value!r} is not for {op} (allowed: {_one_of(allowed)})"


def _one_of(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values)
