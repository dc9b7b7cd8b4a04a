"""The problem that matrices make: sizes, layout and alignment from shapes, strides and offsets."""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.ops import BATCHED, GROUPED, ITEMSIZES, NO_VARIANT, ROW_BYTES, letters
from diode_lut.domain.problem import Problem


class Operand(NamedTuple):
    """A matrix, or a batch of them: sizes, strides and offset count elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def letter(self) -> str | None:
        """``n`` for a row-major matrix, ``t`` for a column-major one, None where no dimension has unit stride."""
        return "n" if self.strides[-1] == 1 else "t" if self.strides[-2] == 1 else None

    def is_aligned(self, itemsize: int) -> bool:
        """Whether every row (column, where column-major) of every matrix starts on a 16-byte boundary.

        ``itemsize`` is the bytes of an element. The memory that the offset counts from starts on such a boundary.
        """
        matrix = len(self.sizes) - 2
        for axis, (size, step) in enumerate(zip(self.sizes, self.strides, strict=True)):
            if size != 1 and (step != 1 or axis < matrix) and step * itemsize % ROW_BYTES:
                return False
        return self.offset * itemsize % ROW_BYTES == 0


def problem_of(op: str, dtype: str, a: Operand, b: Operand, variant: str = NO_VARIANT) -> Problem:
    """The problem of multiplying two matrices or batches, or for grouped_mm a matrix A and a batch B.

    ProblemError if it is none that tables know.
    """
    dimensions = (3 if op in BATCHED and op not in GROUPED else 2), (3 if op in BATCHED else 2)
    if not (len(a.sizes), len(b.sizes)) == (len(a.strides), len(b.strides)) == dimensions:
        raise ProblemError(f"{op} of operands with {len(a.sizes)} and {len(b.sizes)} dimensions")
    if a.sizes[-1] != b.sizes[-2]:
        raise ProblemError("operands whose sizes do not match")
    m, k, n = a.sizes[-2], a.sizes[-1], b.sizes[-1]
    if a.letter is None or b.letter is None:
        raise ProblemError("a matrix in which neither rows nor columns are without gaps")
    batch = b.sizes[0] if op in BATCHED else 1
    problem = Problem.checked(op, dtype, a.letter + b.letter, 16, batch, m, n, k, variant=variant)
    itemsize = ITEMSIZES[dtype]
    return problem if a.is_aligned(itemsize) and b.is_aligned(itemsize) else problem._replace(align=2)


def packed_operands(problem: Problem) -> tuple[Operand, Operand]:
    """A and B without gaps; ProblemError if such matrices would be another problem, because of layout or ``align``.

    A single row or column is row-major, whatever the layout says: both describe the same memory.
    """
    b, m, n, k = problem.sizes
    batch = b if problem.op in BATCHED else None
    letter_a, letter_b = letters(problem.layout)
    operands = _packed(letter_a, m, k, None if problem.op in GROUPED else batch), _packed(letter_b, k, n, batch)
    if problem_of(problem.op, problem.dtype, *operands, problem.variant) != problem:
        raise ProblemError(f"{problem.layout} align {problem.align}, which packed matrices of these sizes are not")
    return operands


def _packed(letter: str, rows: int, columns: int, batch: int | None) -> Operand:
    strides = (columns, 1) if letter == "n" else (1, rows)
    if batch is None:
        return Operand((rows, columns), strides)
    return Operand((batch, rows, columns), (rows * columns, *strides))
