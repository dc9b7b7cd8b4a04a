"""Grouped matmuls as tensors, as a function of them, and their results in float64.

How many rows each group has is data, which no table knows. Here the largest groups have about three times as many as
the smallest: that is between an even spread, which training aims at, and the spread of a batch that is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from diode_lut.domain.errors import CollectError
from diode_lut.domain.ops import letters
from diode_lut.domain.problem import Problem
from diode_lut.inductor.problems import TORCH_DTYPES

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
