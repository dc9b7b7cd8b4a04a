"""A product as other tools write it, by the shapes and strides of its matrices, and as a Problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diode_lut.errors import ProblemError
from diode_lut.problem import BATCHED, ITEMSIZES, Problem


class Operand(NamedTuple):
    """A matrix, or a batch of them: sizes, strides and offset count elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def problem_of(op: str, dtype: str, a: Operand, b: Operand) -> Problem:
    """The problem of multiplying two matrices, or batches; ProblemError if it is none that tables know."""
    if not len(a.sizes) == len(b.sizes) == len(a.strides) == len(b.strides) == (3 if op in BATCHED else 2):
        raise ProblemError(f"{op} of operands with {len(a.sizes)} and {len(b.sizes)} dimensions")
    if a.sizes[-1] != b.sizes[-2]:
        raise ProblemError("operands whose sizes do not match")
    m, k, n = a.sizes[-2], a.sizes[-1], b.sizes[-1]
    layout = _letter(a.strides) + _letter(b.strides)
    problem = Problem.checked(op, dtype, layout, 16, a.sizes[0] if op in BATCHED else 1, m, n, k)
    aligned = all(_aligned(operand, ITEMSIZES[dtype]) for operand in (a, b))
    return problem._replace(align=16 if aligned else 2)


def packed_operands(problem: Problem) -> tuple[Operand, Operand]:
    """A and B without gaps; ProblemError if such matrices would be another problem, because of layout or ``align``.

    A single row or column is row-major, whatever the layout says: nobody can see the difference.
    """
    b, m, n, k = problem.sizes
    batch = b if problem.op in BATCHED else None
    operands = _packed(problem.layout[0], m, k, batch), _packed(problem.layout[1], k, n, batch)
    if problem_of(problem.op, problem.dtype, *operands) != problem:
        raise ProblemError(f"{problem.layout} align {problem.align}, which packed matrices of these sizes are not")
    return operands


def _packed(letter: str, rows: int, columns: int, batch: int | None) -> Operand:
    strides = (columns, 1) if letter == "n" else (1, rows)
    if batch is None:
        return Operand((rows, columns), strides)
    return Operand((batch, rows, columns), (rows * columns, *strides))


def _letter(strides: Sequence[int]) -> str:
    if strides[-1] == 1:
        return "n"
    if strides[-2] == 1:
        return "t"
    raise ProblemError("a matrix in which neither rows nor columns are without gaps")


def _aligned(operand: Operand, itemsize: int) -> bool:
    """Whether every row (column, where column-major) of every matrix starts on a 16-byte boundary."""
    dimensions = list(zip(operand.sizes, operand.strides, strict=True))
    batch, matrix = dimensions[:-2], dimensions[-2:]
    steps = [step for size, step in matrix if size != 1 and step != 1] + [step for size, step in batch if size != 1]
    return all(step * itemsize % 16 == 0 for step in (*steps, operand.offset))
