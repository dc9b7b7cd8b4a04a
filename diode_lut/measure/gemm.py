"""GEMMs and grouped matmuls as functions: their tensors, epilogues, operands, and the check of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from diode_lut.errors import CollectError
from diode_lut.hook.problems import TORCH_DTYPES, operand_dtypes
from diode_lut.hook.quack import apart
from diode_lut.problem import (
    BATCHED,
    FLOAT8,
    FLOAT8_UNIT,
    FUSED,
    GATED,
    INT8,
    INTEGER,
    ITEMSIZES,
    MATMULS,
    NO_EPILOGUE,
    NO_VARIANT,
    PRODUCTS,
    SCALED,
    Problem,
    Scaling,
    contiguous_align,
    letters,
)
from diode_lut.templates.config import Config


class Part(NamedTuple):
    """A tensor of a GEMM. Only A and B have the ``letter`` of a layout; ``role`` may also be ``bias`` or ``scale``."""

    role: str
    dtype: torch.dtype
    size: tuple[Any, ...]
    letter: str = ""

    @property
    def stride(self) -> tuple[Any, ...]:
        """Steps between its elements if it is packed."""
        *batch, rows, columns = (1, *self.size) if len(self.size) == 1 else self.size
        steps = (1, rows) if self.letter == "t" else (columns, 1)
        return (*(rows * columns for _ in batch), *steps)[-len(self.size) :]


MAX_BATCH = 65535  # The largest batch of a kernel for many problems. More batches take another launch grid

_MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of a tensor, so that kernels made for small hints, with 32-bit indices, reach all."""


class Specialization(NamedTuple):
    """The facts of a problem with packed operands known to the compiler. Problems with the same facts share kernels.

    ``units`` are divisors of M, N and K known to the compiler: powers of two, up to the number of elements in 16 bytes,
    which a thread reads at once. ``even_k`` is the block size along K if it divides K, else 0. ``one_step`` is K if a
    block is at least as long, so that there is no loop to be pipelined, else 0.
    """

    op: str
    dtype: str
    layout: str
    units: tuple[int, int, int]
    even_k: int
    one_step: int
    variant: str = NO_VARIANT

    @classmethod
    def of(cls, problem: Problem, config: Config) -> Specialization:
        """Return the specialization of ``config``, of a Triton template, for a problem that shares kernels."""
        vector = 16 // ITEMSIZES[problem.dtype]
        m, n, k = (math.gcd(size, vector) for size in (problem.m, problem.n, problem.k))
        block_k = config.tiles.block_k
        of_a, _ = letters(problem.layout)
        units = (m if of_a == "t" else 1, n, k)  # a row-major A is not read along M
        even_k, one_step = (problem.k % block_k == 0) * block_k, (problem.k <= block_k) * problem.k
        return cls(problem.op, problem.dtype, problem.layout, units, even_k, one_step, problem.variant)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Divisors of B, M, N and K."""
        m, n, k = self.units
        return 1, m, n, max(k, self.even_k)


def shares_kernels(problem: Problem) -> bool:
    """Return whether kernels with sizes as arguments can compute it: operands are packed, neither many nor large."""
    b, m, n, k = problem.sizes
    packed = problem.align == contiguous_align(problem.dtype, problem.layout, m, n, k, b)
    return packed and b <= MAX_BATCH and b * max(m * k, k * n, m * n) <= _MAX_ELEMENTS


def tensors_of(kind: Problem | Specialization, b: Any, m: Any, n: Any, k: Any) -> list[Part]:
    """Return the tensors in the function's order: the bias of (b)addmm, A, B, then scales and bias of scaled_mm."""
    batch = (b,) if kind.op in BATCHED else ()
    (letter_a, letter_b), (type_a, type_b) = letters(kind.layout), operand_dtypes(kind.dtype)
    operands = [Part("a", type_a, (*batch, m, k), letter_a), Part("b", type_b, (*batch, k, n), letter_b)]
    if kind.op in SCALED:
        scaling = Scaling.of(kind.variant)
        rows, columns = (m, n) if scaling.per == "row" else (1, 1)
        scales = [Part("scale", torch.float32, size) for size in ((rows, 1), (1, columns))]
        return [*operands, *scales, *([Part("bias", TORCH_DTYPES[scaling.result], (n,))] if scaling.bias else [])]
    bias = {"addmm": (n,), "baddbmm": (b, m, n)}.get(kind.op)
    return operands if bias is None else [Part("bias", type_a, bias), *operands]


def function_of(problem: Problem) -> Callable[..., torch.Tensor]:
    """Return the problem as a function of ``tensors_of``, with an optional ``out``."""
    if problem.op in INTEGER:
        return torch._int_mm
    if problem.op not in SCALED:
        return getattr(torch, problem.op)  # type: ignore[no-any-return]
    scaling = Scaling.of(problem.variant)
    return partial(torch._scaled_mm, out_dtype=TORCH_DTYPES[scaling.result], use_fast_accum=scaling.fast)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Let CollectError say that tensors do not fit in memory. A decorator, too."""
    try:
        yield
    except RuntimeError as error:
        raise CollectError(f"no operands of this size: {str(error).splitlines()[0]}") from error


@enough_memory()
def make_operands(problem: Problem, device: str) -> tuple[torch.Tensor, ...]:
    """Return random tensors as in ``tensors_of``, A and B with exactly the problem's layout and alignment.

    Numbers are normally distributed, but uniformly over all 8-bit integers for int_mm, and from 0.5 to 1.5 for scales.
    The bias of a row is as in ``nn.Linear``. CollectError if they do not fit in memory.
    """
    return tuple(_tensor(problem, part, device) for part in tensors_of(problem, *problem.sizes))


def _tensor(problem: Problem, part: Part, device: str) -> torch.Tensor:
    """Return a tensor of random numbers. Lines of A and B have the problem's alignment, with the least padding."""
    if part.role == "scale":
        return torch.rand(part.size, device=device) + 0.5
    if part.role == "bias":
        return torch.randn(part.size, dtype=part.dtype, device=device)
    *batch, rows, columns = part.size
    lines, length = (rows, columns) if part.letter == "n" else (columns, rows)
    if problem.align == contiguous_align(problem.dtype, problem.layout, problem.m, problem.n, problem.k, problem.b):
        pitch = length
    elif problem.align == 2:
        pitch = length + 1
    else:
        unit = problem.align // ITEMSIZES[problem.dtype]
        pitch = -(-length // unit) * unit
    if problem.dtype == INT8:
        stored = torch.randint(-128, 128, (*batch, lines, pitch), dtype=part.dtype, device=device)
    else:
        drawn = torch.bfloat16 if problem.dtype in FLOAT8 else part.dtype  # there are no random numbers in float8
        stored = torch.randn((*batch, lines, pitch), dtype=drawn, device=device).to(part.dtype)
    matrix = stored[..., :length]
    return matrix if part.letter == "n" else matrix.transpose(-2, -1)


def make_result(problem: Problem, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return memory for the result of ``make_operands`` and the problem's epilogue."""
    roles = [part.role for part in tensors_of(problem, *problem.sizes)]
    a = operands[roles.index("a")]
    scaled = problem.op in INTEGER and problem.epilogue != NO_EPILOGUE
    dtype = SCALED_TO if scaled else TORCH_DTYPES[problem.result_dtype]
    return torch.empty((*a.shape[:-1], problem.n), dtype=dtype, device=a.device)


class Gemm(NamedTuple):
    """A function to compile and its arguments. A ``frozen`` function is a module with constant parameters."""

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    frozen: bool


def make_gemm(problem: Problem, device: str) -> Gemm:
    """Return the problem with random operands that have exactly its layout and alignment.

    On a CPU, B of ``mm`` and the bias and B of ``addmm`` are frozen parameters, as in a model for inference: otherwise
    Inductor has no C++ template. Raises CollectError like make_operands, and for ops that are no GEMMs.
    """
    if problem.op not in MATMULS:
        raise CollectError(f"{problem.op} needs --method sweep")
    operands = make_operands(problem, device)
    if device == "cpu" and problem.op in ("mm", "addmm"):
        *bias, a, b = operands
        return Gemm(_Linear(b, *bias).eval(), (a,), frozen=True)
    return Gemm(function_of(problem), operands, frozen=False)


class _Linear(torch.nn.Module):
    """``mm`` or ``addmm`` with everything but A as parameters."""

    def __init__(self, b: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.b = torch.nn.Parameter(b, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, self.b) if self.bias is None else torch.addmm(self.bias, a, self.b)


class Epilogue(NamedTuple):
    """The epilogue that stands for a class: a function of the GEMM's result and of ``tensors`` more of its shape.

    Its best config is on average within 0.8 % of the best for the other epilogues of the class, measured on an H200
    with 13 epilogues after 26 GEMMs. Errors of the result grow at most ``factor`` times.
    """

    function: Callable[..., torch.Tensor]
    tensors: int
    factor: float


EPILOGUES = {
    "light": Epilogue(torch.relu, 0, 1.0),
    "medium": Epilogue(lambda c, scale, residual: c * scale + residual, 2, 8.0),
    "heavy": Epilogue(lambda c, x: torch.ops.aten.gelu_backward(c, x), 1, 2.0),
}
"""The measured epilogue of each class. Integers are scaled before, and then have type SCALED_TO."""

SCALED_TO = torch.bfloat16

_SCALE = 1 / 74
"""Scales are about the inverse of the standard deviation of an int8, so that products of two are about 1."""


def with_epilogue(problem: Problem) -> Callable[..., torch.Tensor]:
    """Return the problem as a function of its operands and of ``make_tensors``."""
    gemm = function_of(problem)
    if problem.epilogue == NO_EPILOGUE:
        return gemm
    epilogue = _epilogue_of(problem)
    more = EPILOGUES[problem.epilogue].tensors + 2 * (problem.op in INTEGER)

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        operands = len(tensors) - more
        return epilogue(gemm(*tensors[:operands]), *tensors[operands:])

    return function


def _epilogue_of(problem: Problem) -> Callable[..., torch.Tensor]:
    """Return the epilogue of a problem as a function of the result of its GEMM and of ``make_tensors``."""
    if problem.epilogue == NO_EPILOGUE:
        return lambda c: c
    function = EPILOGUES[problem.epilogue].function
    if problem.op not in INTEGER:
        return function

    def scaled(c: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        result = c * rows * columns
        return function(result if c.is_floating_point() else result.to(SCALED_TO), *more)

    return scaled


def make_tensors(problem: Problem, device: str) -> tuple[torch.Tensor, ...]:
    """Return the epilogue's tensors besides the result: scales for int_mm, and random ones of the result's shape."""
    if problem.epilogue == NO_EPILOGUE:
        return ()
    shape = (*((problem.b,) if problem.op in BATCHED else ()), problem.m, problem.n)
    integers = problem.op in INTEGER
    dtype = SCALED_TO if integers else TORCH_DTYPES[problem.dtype]
    sizes = ((problem.m, 1), (problem.n,)) if integers else ()
    scales = [(torch.rand(size, device=device) + 0.5) * _SCALE for size in sizes]
    count = EPILOGUES[problem.epilogue].tensors
    return (*scales, *(torch.randn(shape, dtype=dtype, device=device) for _ in range(count)))


def exact_result(
    problem: Problem, operands: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """Return the result in float64, given the tensors of ``make_operands`` and of ``make_tensors``."""
    doubles, more = ([each.double() for each in some] for some in (operands, tensors))
    if problem.op in INTEGER:
        a, b = doubles
        return _epilogue_of(problem)(a @ b, *more)
    if problem.op not in SCALED:
        return with_epilogue(problem)(*doubles, *more)
    a, b, scale_a, scale_b, *bias = doubles
    result = (a * scale_a) @ (b * scale_b)
    return result + bias[0] if bias else result


_TOLERANCE = {
    "float16": 0.02,
    "bfloat16": 0.12,
    "tf32": 0.02,
    "float32": 1e-4,
    **dict.fromkeys(FLOAT8, 0.25),
    INT8: 0.12,
}
"""By dtype: largest error of an element over the square root of K, for normally distributed matrices.

Tensor cores add products of float8 with some 14 bits, and cut off the rest. For int8 it is the error of the scaled
result in bfloat16. Without an epilogue there is no error.
"""

_REFERENCE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.int32: torch.int32,
}


class GemmCheck:
    """Compares each element of ``out``, or ``padded`` if the operands are padded, with float64."""

    def __init__(
        self, problem: Problem, operands: tuple[torch.Tensor, ...], tensors: tuple[torch.Tensor, ...] = ()
    ) -> None:
        self.out = self.padded = make_result(problem, operands)
        growth = 1.0 if problem.epilogue == NO_EPILOGUE else EPILOGUES[problem.epilogue].factor
        self._exact = not self.out.is_floating_point()
        self._never = -(2**31) if self._exact else torch.nan
        self._limit = growth * _TOLERANCE[problem.dtype] * math.sqrt(problem.k)
        self._reference = exact_result(problem, operands, tensors).to(_REFERENCE[self.out.dtype])

    def passes(self, launch: Callable[[], object]) -> bool:
        """Return whether a launch computes the right result: integers are equal, and no element stays unwritten."""
        torch.full_like(self.out, self._never)  # the allocator hands out this memory next
        for out in (self.out, self.padded):
            out.fill_(self._never)
        launched = launch()
        result = launched if isinstance(launched, torch.Tensor) else self.out
        if self._exact:
            return torch.equal(result, self._reference)
        error = result - self._reference
        return bool(error.abs_().max() <= self._limit)


@contextmanager
def matmul_precision(dtype: str) -> Iterator[None]:
    """Let float32 GEMMs use TF32 within the block if ``dtype`` is ``tf32``, and only then. None adds up in float16."""
    matmul = torch.backends.cuda.matmul
    before, in_float16 = torch.get_float32_matmul_precision(), matmul.allow_fp16_accumulation
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    matmul.allow_fp16_accumulation = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        matmul.allow_fp16_accumulation = in_float16


def grouped_mm(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the grouped matmul of A and B. ``ends`` are the ends of the groups."""
    return torch._grouped_mm(a, b, ends)


@enough_memory()
def make_grouped(problem: Problem, device: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Return the problem's function, and normally distributed operands. CollectError if they do not fit in memory."""
    _, letter_b = letters(problem.layout)
    b, m, n, k = problem.sizes
    options: dict[str, Any] = {"dtype": TORCH_DTYPES[problem.dtype], "device": device}
    a = torch.randn(m, k, **options)
    experts = torch.randn(b, *((k, n) if letter_b == "n" else (n, k)), **options)
    # Groups have from 0.5 to 1.5 times the average number of rows.
    shares = [0.5 + number * _STEP % 1 for number in range(b)]
    scale = m / sum(shares)
    ends = [round(scale * sum(shares[: number + 1])) for number in range(b)]
    columns = experts if letter_b == "n" else experts.transpose(1, 2)
    return grouped_mm, (a, columns, torch.tensor(ends, dtype=torch.int32, device=device))


_STEP = (math.sqrt(5) - 1) / 2  # the fractional parts of its multiples are spread evenly, whatever their number


def columns_of(problem: Problem) -> list[int]:
    """Return the columns of each B of joined matmuls, shared out evenly. CollectError for an odd number if gated."""
    count = PRODUCTS[problem.variant]
    each = problem.n // count
    if problem.variant in GATED and problem.n % count:
        raise CollectError(f"{problem}: a gate and what it multiplies have as many columns")
    if problem.variant not in GATED and each > _VECTOR:
        each = each // _VECTOR * _VECTOR
    return [problem.n - (count - 1) * each, *[each] * (count - 1)]


_VECTOR = 16  # columns of most linear layers are multiples of this


def joined_mm(variant: str, a: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the matmuls of A with each B, or the activation of the first times the second.

    ``others`` are these B, and in float8 the scales of A and of each B.
    """
    bs, scales = others[: PRODUCTS[variant]], others[PRODUCTS[variant] :]
    if scales:
        multiply = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
        products = tuple(multiply(a, b, scales[0], scale) for b, scale in zip(bs, scales[1:], strict=True))
    else:
        products = tuple(a @ b for b in bs)
    if variant not in GATED:
        return products
    gate, up = products
    activated = functional.silu(gate) if variant == "swiglu" else functional.gelu(gate, approximate="tanh")
    return (activated * up,)


def fused_mm(variant: str, a: torch.Tensor, b: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the matmul of A and B with the work after it. ``other`` is the bias of an activation, or what is read."""
    return (apart(a, b, None, other, variant) if reads_another(variant) else apart(a, b, other, None, variant),)


def reads_another(variant: str) -> bool:
    """Return whether the work after a matmul reads another M x N tensor. If not, the matmul is measured with a bias."""
    return variant in ("add", *GATED)


@enough_memory()
def make_together(problem: Problem, device: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Return the function of matmuls in one kernel, and packed operands with products of about 1, or CollectError."""
    letter_a, letter_b = letters(problem.layout)
    scaled = problem.dtype in FLOAT8
    if scaled and (problem.layout != "nt" or any(each % FLOAT8_UNIT for each in (problem.k, *columns_of(problem)))):
        raise CollectError(f"{problem}: PyTorch multiplies float8 only as nt, and by multiples of {FLOAT8_UNIT}")
    options: dict[str, Any] = {"dtype": TORCH_DTYPES[problem.result_dtype], "device": device}

    def drawn(rows: int, columns: int, letter: str) -> torch.Tensor:
        return torch.randn(rows, columns, **options) if letter == "n" else torch.randn(columns, rows, **options).t()

    a = drawn(problem.m, problem.k, letter_a)
    columns = [problem.n] if problem.op in FUSED else columns_of(problem)
    bs = [drawn(problem.k, each, letter_b).mul_(problem.k**-0.5) for each in columns]
    rows = problem.m if reads_another(problem.variant) else 1
    others = [drawn(rows, problem.n, "n").squeeze(0)] if problem.op in FUSED else []
    if scaled:
        a, *bs = (each.to(TORCH_DTYPES[problem.dtype]) for each in (a, *bs))
        sizes = [(problem.m, 1), *((1, each) for each in columns)]
        others = [torch.rand(size, dtype=torch.float32, device=device) + 0.5 for size in sizes]
    return partial(fused_mm if problem.op in FUSED else joined_mm, problem.variant), (a, *bs, *others)


class TogetherCheck:
    """Compares each element of the results of joined matmuls, or of one with the work after it, with float64."""

    def __init__(self, problem: Problem, operands: Sequence[torch.Tensor]) -> None:
        function = fused_mm if problem.op in FUSED else joined_mm
        operands = tuple(each.double() for each in operands)
        if problem.dtype in FLOAT8:
            half = len(operands) // 2  # as many scales as matrices
            operands = tuple(each * scale for each, scale in zip(operands[:half], operands[half:], strict=True))
        exact = function(problem.variant, *operands)
        self._expected = [each.to(torch.float32) for each in exact]
        self._dtype = TORCH_DTYPES[problem.result_dtype]
        self._limit = _TOLERANCE[problem.dtype] * (_OF_GATED if problem.variant in GATED else 1.0)

    def passes(self, launch: Callable[[], Sequence[torch.Tensor]]) -> bool:
        """Return whether all elements of a launch's results are right. NaN never is."""
        for each in self._expected:
            torch.full_like(each, torch.nan, dtype=self._dtype)  # the allocator hands out this memory next
        both = zip(launch(), self._expected, strict=True)
        return all(bool((result - expected).abs_().max() <= self._limit) for result, expected in both)


_OF_GATED = 8.0
"""How much larger the errors of a gated product are, both of whose factors are at most about 8 and have errors."""


class GroupedMmCheck(TogetherCheck):
    """Compares each element of a grouped matmul's result with float64."""

    def __init__(self, problem: Problem, operands: Sequence[torch.Tensor]) -> None:
        a, b, ends = operands
        parts = zip([0, *ends.tolist()], ends.tolist(), b, strict=False)
        self._expected = [torch.cat([(a[start:end].double() @ each.double()).float() for start, end, each in parts])]
        self._dtype = torch.bfloat16
        self._limit = _TOLERANCE["bfloat16"] * math.sqrt(problem.k)
