"""What is known of a problem when a kernel is compiled that takes sizes as arguments, once for many problems."""

from __future__ import annotations

import math
from typing import NamedTuple

from diode_lut.domain.ops import ITEMSIZES, NO_VARIANT, letters
from diode_lut.domain.problem import Problem, contiguous_align
from diode_lut.kernels.config import Config

MAX_BATCH = 65535
"""The largest batch that a kernel for many problems serves: more takes another launch grid."""

_MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of a tensor, so that kernels made for small hints, with 32-bit indices, reach all."""


class Specialization(NamedTuple):
    """What a compiler must know of a problem whose operands are packed; problems that agree in it share kernels.

    ``units`` are divisors of M, N and K that the compiler knows: powers of two, up to the number of elements in 16
    bytes, which is what a thread reads at once. ``even_k`` is the block size along K if that divides K, else 0.
    ``one_step`` is K if a block is at least as long, so that there is no loop to be pipelined, else 0.
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
        """How ``config``, of a Triton template, is compiled for ``problem``, which must be able to share kernels."""
        vector = 16 // ITEMSIZES[problem.dtype]
        m, n, k = (math.gcd(size, vector) for size in (problem.m, problem.n, problem.k))
        block_k = config.tiles.block_k
        of_a, _ = letters(problem.layout)
        units = (m if of_a == "t" else 1, n, k)  # a row-major A is not read along M
        even_k, one_step = (problem.k % block_k == 0) * block_k, (problem.k <= block_k) * problem.k
        return cls(problem.op, problem.dtype, problem.layout, units, even_k, one_step, problem.variant)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """What B, M, N and K are multiples of."""
        m, n, k = self.units
        return 1, m, n, max(k, self.even_k)


def shares_kernels(problem: Problem) -> bool:
    """Whether kernels with sizes as arguments can compute it: its operands are packed, neither many nor large."""
    b, m, n, k = problem.sizes
    packed = problem.align == contiguous_align(problem.dtype, problem.layout, m, n, k, b)
    return packed and b <= MAX_BATCH and b * max(m * k, k * n, m * n) <= _MAX_ELEMENTS
