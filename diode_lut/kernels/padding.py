"""What padding the operands of a GEMM makes of it, as Inductor pads: with zeros at the end, up to aligned sizes."""

from __future__ import annotations

from diode_lut.domain.ops import ITEMSIZES, ROW_BYTES
from diode_lut.domain.problem import Problem, contiguous_align

PADDED_OPS = ("mm", "addmm", "bmm")
"""The ops that Inductor pads."""


def pad_multiple(dtype: str) -> int:
    """Number of elements that Inductor pads M, N and K to multiples of: those of 16 bytes."""
    return ROW_BYTES // ITEMSIZES[dtype]


def is_copied(problem: Problem, multiple: int) -> tuple[bool, bool]:
    """Whether A has to be copied to make M and K multiples of ``multiple``, and whether B has to be for K and N."""
    m, n, k = (padded_size(size, multiple) != size for size in (problem.m, problem.n, problem.k))
    return m or k, n or k


def copied_bytes(problem: Problem, multiple: int) -> int:
    """The bytes that copying operands to padded places reads and writes."""
    larger = padded(problem, multiple)
    a, b = is_copied(problem, multiple)
    elements = a * (problem.m * problem.k + larger.m * larger.k) + b * (problem.k * problem.n + larger.k * larger.n)
    return ITEMSIZES[problem.dtype] * problem.b * elements


def needed_pad(problem: Problem, pad: int) -> int:
    """``pad``, or 1 where the problem's sizes are multiples of it already, so that nothing is padded."""
    return pad if pad > 1 and any(is_copied(problem, pad)) else 1


def padded(problem: Problem, multiple: int) -> Problem:
    """The problem that is left where M, N and K are padded to multiples of ``multiple``.

    Copies are packed and row-major, whatever the operand was; an operand that is not copied counts as packed. Sizes of
    1 stay, as Inductor leaves them.
    """
    copied = is_copied(problem, multiple)
    layout = "".join("n" if copy else letter for copy, letter in zip(copied, problem.layout, strict=True))
    m, n, k = (padded_size(size, multiple) for size in (problem.m, problem.n, problem.k))
    align = contiguous_align(problem.dtype, layout, m, n, k, problem.b) if any(copied) else problem.align
    return problem._replace(layout=layout, align=align, m=m, n=n, k=k)


def padded_size(size: int, multiple: int) -> int:
    """The size that is left where M, N or K is padded to a multiple; 1 stays, as Inductor leaves it."""
    return size if size == 1 else -(-size // multiple) * multiple
