"""A problem as tensors, and functions that multiply them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from diode_lut.errors import CollectError
from diode_lut.hook.problems import TORCH_DTYPES
from diode_lut.measure.standalone import Part, function_of, tensors_of
from diode_lut.problem import (
    BATCHED,
    FLOAT8,
    INT8,
    INTEGER,
    ITEMSIZES,
    MATMULS,
    NO_EPILOGUE,
    SCALED,
    Problem,
    contiguous_align,
    letters,
)


class Gemm(NamedTuple):
    """A function to compile and its arguments; ``frozen`` if it is a module whose parameters are to be constants."""

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    frozen: bool


def make_gemm(problem: Problem, device: str) -> Gemm:
    """The problem with random operands that have exactly its layout and alignment.

    On a CPU, B of ``mm`` and the bias and B of ``addmm`` are frozen parameters, as in a model for inference: only then
    does Inductor have a C++ template. Raises CollectError like make_operands, and for ops that are no GEMMs.
    """
    if problem.op not in MATMULS:
        raise CollectError(f"{problem.op} needs --method sweep")
    operands = make_operands(problem, device)
    if device == "cpu" and problem.op in ("mm", "addmm"):
        *bias, a, b = operands
        return Gemm(_Linear(b, *bias).eval(), (a,), frozen=True)
    return Gemm(function_of(problem), operands, frozen=False)


def matrices(problem: Problem, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of the tensors of ``make_operands``."""
    roles = [part.role for part in tensors_of(problem, *problem.sizes)]
    return operands[roles.index("a")], operands[roles.index("b")]


def make_result(problem: Problem, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Memory for the result of the tensors of ``make_operands``, and of the problem's epilogue, if it has one."""
    a, _ = matrices(problem, operands)
    scaled = problem.op in INTEGER and problem.epilogue != NO_EPILOGUE
    dtype = SCALED_TO if scaled else TORCH_DTYPES[problem.result_dtype]
    return torch.empty((*a.shape[:-1], problem.n), dtype=dtype, device=a.device)


def exact_result(
    problem: Problem, operands: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """The result in float64, given the tensors of ``make_operands`` and of ``make_tensors``."""
    doubles = [each.double() for each in operands]
    if problem.op in INTEGER:
        a, b = doubles
        return _epilogue_of(problem)(a @ b, *(each.double() for each in tensors))
    if problem.op not in SCALED:
        return with_epilogue(problem)(*doubles, *(each.double() for each in tensors))
    a, b, scale_a, scale_b, *bias = doubles
    result = (a * scale_a) @ (b * scale_b)
    return result + bias[0] if bias else result


class Epilogue(NamedTuple):
    """The epilogue that stands for a class: ``function`` of the GEMM's result and of ``tensors`` more of its shape.

    The best config for it is, for the other epilogues of the class, on average within 0.8 % of the best; measured on an
    H200 with 13 epilogues behind 26 GEMMs. Errors of the result grow at most ``factor`` times.
    """

    function: Callable[..., torch.Tensor]
    tensors: int
    factor: float


def _scaled_sum(c: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return c * scale + residual


def _gelu_derivative(c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(c, x)  # type: ignore[no-any-return]


EPILOGUES = {
    "light": Epilogue(torch.relu, 0, 1.0),
    "medium": Epilogue(_scaled_sum, 2, 8.0),
    "heavy": Epilogue(_gelu_derivative, 1, 2.0),
}
"""What is measured for each class of epilogues. Integers are scaled before, and then are of type SCALED_TO."""

SCALED_TO = torch.bfloat16

_SCALE = 1 / 74
"""Scales are about this: the inverse of the standard deviation of an int8, so that products of two are about 1."""


def with_epilogue(problem: Problem) -> Callable[..., torch.Tensor]:
    """The problem as a function of its operands and of ``make_tensors``."""
    gemm = function_of(problem)
    if problem.epilogue == NO_EPILOGUE:
        return gemm
    epilogue, more = _epilogue_of(problem), _count_of_tensors(problem)

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        operands = len(tensors) - more
        return epilogue(gemm(*tensors[:operands]), *tensors[operands:])

    return function


def _epilogue_of(problem: Problem) -> Callable[..., torch.Tensor]:
    """The epilogue of a problem as a function of the result of its GEMM and of ``make_tensors``."""
    if problem.epilogue == NO_EPILOGUE:
        return lambda c: c
    function = EPILOGUES[problem.epilogue].function
    return partial(_scaled, function) if problem.op in INTEGER else function


def _scaled(
    function: Callable[..., torch.Tensor], c: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *more: Any
) -> torch.Tensor:
    """Of integers, scaled by one number a row and one a column; in float64 if that is the type of C."""
    scaled = c * rows * columns
    return function(scaled if c.is_floating_point() else scaled.to(SCALED_TO), *more)


def _count_of_tensors(problem: Problem) -> int:
    return EPILOGUES[problem.epilogue].tensors + 2 * (problem.op in INTEGER)


def make_tensors(problem: Problem, device: str) -> tuple[torch.Tensor, ...]:
    """What the problem's epilogue reads besides the result: normally distributed tensors of its shape.

    Before them, for int_mm, the scales of rows and columns.
    """
    if problem.epilogue == NO_EPILOGUE:
        return ()
    shape = (*((problem.b,) if problem.op in BATCHED else ()), problem.m, problem.n)
    integers = problem.op in INTEGER
    dtype = SCALED_TO if integers else TORCH_DTYPES[problem.dtype]
    sizes = ((problem.m, 1), (problem.n,)) if integers else ()
    scales = [(torch.rand(size, device=device) + 0.5) * _SCALE for size in sizes]
    count = EPILOGUES[problem.epilogue].tensors
    return (*scales, *(torch.randn(shape, dtype=dtype, device=device) for _ in range(count)))


def make_operands(problem: Problem, device: str) -> tuple[torch.Tensor, ...]:
    """The tensors of ``tensors_of`` with random numbers, A and B with exactly the problem's layout and alignment.

    They are normally distributed, those of int_mm evenly over all numbers of 8 bits, scales evenly from 0.5 to 1.5. A
    bias of a row is as ``nn.Linear`` has it. CollectError if they do not fit in memory.
    """
    try:
        return tuple(_tensor(problem, part, device) for part in tensors_of(problem, *problem.sizes))
    except RuntimeError as error:
        raise CollectError(f"no operands of this size: {str(error).splitlines()[0]}") from error


@contextmanager
def matmul_precision(dtype: str) -> Iterator[None]:
    """Float32 GEMMs may use TF32 within the block if ``dtype`` is ``tf32``, and only then; none adds up in float16."""
    matmul = torch.backends.cuda.matmul
    before, in_float16 = torch.get_float32_matmul_precision(), matmul.allow_fp16_accumulation
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    matmul.allow_fp16_accumulation = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        matmul.allow_fp16_accumulation = in_float16


class _Linear(torch.nn.Module):
    """``mm`` or ``addmm`` with everything but A as parameters."""

    def __init__(self, b: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.b = torch.nn.Parameter(b, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, self.b) if self.bias is None else torch.addmm(self.bias, a, self.b)


def _tensor(problem: Problem, part: Part, device: str) -> torch.Tensor:
    """A tensor of random numbers. Lines of A and B have the problem's pitch; ``t`` is stored transposed."""
    if part.role == "scale":
        return torch.rand(part.size, device=device) + 0.5
    if part.role == "bias":
        return torch.randn(part.size, dtype=part.dtype, device=device)
    *batch, rows, columns = part.size
    lines, length = (rows, columns) if part.letter == "n" else (columns, rows)
    shape = (*batch, lines, _pitch(problem, length))
    if problem.dtype == INT8:
        stored = torch.randint(-128, 128, shape, dtype=part.dtype, device=device)
    else:
        drawn = torch.bfloat16 if problem.dtype in FLOAT8 else part.dtype  # there are no random numbers in float8
        stored = torch.randn(shape, dtype=drawn, device=device).to(part.dtype)
    matrix = stored[..., :length]
    return matrix if part.letter == "n" else matrix.transpose(-2, -1)


def _pitch(problem: Problem, length: int) -> int:
    """Elements from one stored line to the next: those that give the problem's alignment with the least padding."""
    if problem.align == contiguous_align(problem.dtype, problem.layout, problem.m, problem.n, problem.k, problem.b):
        return length
    if problem.align == 2:
        return length + 1
    unit = problem.align // ITEMSIZES[problem.dtype]
    return -(-length // unit) * unit


_TOLERANCE = 0.12
"""Largest error of an element over the square root of K, for normally distributed matrices in bfloat16."""

_STEP = (math.sqrt(5) - 1) / 2
"""The fractional parts of its multiples are spread evenly, whatever their number."""


class CompiledGroupedMm(NamedTuple):
    """What is compiled. The operands are A, B, and the ends of the groups."""

    problem: Problem

    def compute(self, *operands: torch.Tensor) -> torch.Tensor:
        """The result."""
        a, b, ends = operands
        return torch._grouped_mm(a, b, ends)


def make_grouped(problem: Problem, device: str) -> tuple[CompiledGroupedMm, tuple[torch.Tensor, ...]]:
    """The problem's function, and normally distributed operands; CollectError if they do not fit in memory."""
    _, letter_b = letters(problem.layout)
    b, m, n, k = problem.sizes
    dtype = TORCH_DTYPES[problem.dtype]
    try:
        a = torch.randn(m, k, dtype=dtype, device=device)
        if letter_b == "n":
            experts = torch.randn(b, k, n, dtype=dtype, device=device)
        else:
            experts = torch.randn(b, n, k, dtype=dtype, device=device).transpose(1, 2)
    except RuntimeError as error:
        raise CollectError(f"no operands of this size: {str(error).splitlines()[0]}") from error
    return CompiledGroupedMm(problem), (
        a,
        experts,
        torch.tensor(ends_of_groups(m, b), dtype=torch.int32, device=device),
    )


def ends_of_groups(rows: int, groups: int) -> list[int]:
    """Where each group of rows ends; the groups have from half to one and a half times as many rows as on average."""
    shares = [0.5 + number * _STEP % 1 for number in range(groups)]
    scale = rows / sum(shares)
    return [round(scale * sum(shares[: number + 1])) for number in range(groups)]


class GroupedMmCheck:
    """Compares each element of a result with that of float64."""

    def __init__(self, problem: Problem, operands: Sequence[torch.Tensor]) -> None:
        a, b, ends = operands
        starts = [0, *ends.tolist()]
        parts = [
            (a[start:end].double() @ each.double()).float()
            for start, end, each in zip(starts, starts[1:], b, strict=False)
        ]
        self._expected = torch.cat(parts)
        self._limit = _TOLERANCE * math.sqrt(problem.k)

    def passes(self, launch: Callable[[], Sequence[torch.Tensor]]) -> bool:
        """Whether all elements of one launch's result are right; one that is NaN never is."""
        torch.full_like(self._expected, torch.nan, dtype=torch.bfloat16)  # the allocator hands out this memory next
        result, *_ = launch()
        return bool((result - self._expected).abs_().max() <= self._limit)
