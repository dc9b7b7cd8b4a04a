"""A problem as real tensors and the function that multiplies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from diode_lut.errors import CollectError
from diode_lut.inductor.problems import TORCH_DTYPES
from diode_lut.problem import BATCHED, ITEMSIZES, Problem, contiguous_align


class Product(NamedTuple):
    """What to compile and what to call it with; ``frozen`` if it is a module whose parameters are constants."""

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    frozen: bool


def make_product(problem: Problem, device: str) -> Product:
    """The problem with random operands that have exactly its layout and alignment.

    On a CPU, B of ``mm`` and the bias and B of ``addmm`` are frozen parameters, as in a model for inference: only then
    does Inductor offer its C++ template. CollectError as of make_operands.
    """
    operands = make_operands(problem, device)
    if device == "cpu" and problem.op in ("mm", "addmm"):
        *bias, a, b = operands
        return Product(_Linear(b, *bias).eval(), (a,), frozen=True)
    return Product(getattr(torch, problem.op), operands, frozen=False)


def make_operands(problem: Problem, device: str) -> tuple[torch.Tensor, ...]:
    """Normally distributed operands of exactly the problem's layout and alignment: the bias, if any, then A and B.

    CollectError if they do not fit in memory.
    """
    try:
        return (*_bias(problem, device), *_operands(problem, device))
    except RuntimeError as error:
        raise CollectError(f"no operands of this size: {str(error).splitlines()[0]}") from error


@contextmanager
def matmul_precision(dtype: str) -> Iterator[None]:
    """TF32 allowed in products of float32 for ``tf32``, forbidden for every other dtype."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Linear(torch.nn.Module):
    """``mm`` or ``addmm`` with everything but A as parameters."""

    def __init__(self, b: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.b = torch.nn.Parameter(b, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, self.b) if self.bias is None else torch.addmm(self.bias, a, self.b)


def _operands(problem: Problem, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    a = _matrix(problem, problem.m, problem.k, problem.layout[0], device)
    b = _matrix(problem, problem.k, problem.n, problem.layout[1], device)
    return a, b


def _bias(problem: Problem, device: str) -> tuple[torch.Tensor, ...]:
    """The third input: one row for ``addmm``, as ``nn.Linear`` has it; as large as the result for ``baddbmm``."""
    shapes = {"addmm": (problem.n,), "baddbmm": (problem.b, problem.m, problem.n)}
    shape = shapes.get(problem.op)
    return () if shape is None else (torch.randn(shape, dtype=TORCH_DTYPES[problem.dtype], device=device),)


def _matrix(problem: Problem, rows: int, columns: int, letter: str, device: str) -> torch.Tensor:
    """A batch of matrices, without the batch dimension for the ops that have none; ``t`` is stored transposed."""
    lines, length = (rows, columns) if letter == "n" else (columns, rows)
    batch = (problem.b,) if problem.op in BATCHED else ()
    stored = torch.randn((*batch, lines, _pitch(problem, length)), dtype=TORCH_DTYPES[problem.dtype], device=device)
    matrix = stored[..., :length]
    return matrix if letter == "n" else matrix.transpose(-2, -1)


def _pitch(problem: Problem, length: int) -> int:
    """Elements from one stored line to the next, which gives the problem's alignment with the least padding."""
    if problem.align == contiguous_align(problem.dtype, problem.layout, problem.m, problem.n, problem.k, problem.b):
        return length
    if problem.align == 2:
        return length + 1
    unit = problem.align // ITEMSIZES[problem.dtype]
    return -(-length // unit) * unit
