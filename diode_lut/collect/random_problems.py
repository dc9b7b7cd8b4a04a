"""Problems drawn at random, to train models on, or to try what nobody measured."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from diode_lut.domain.ops import BATCHED, ITEMSIZES
from diode_lut.domain.problem import Problem

LOG_NORMAL = {"m": (6.5725, 2.5562), "n": (5.9139, 1.6697), "k": (6.2049, 2.1647)}
"""Mean and standard deviation of the natural logarithm of each size, as GEMMs of real models have them."""

LARGEST_UNIFORM = 16384
"""Sizes that are not drawn log-normally are from 1 to this, with uniformly distributed logarithms."""

LARGEST_BATCH = 512
"""Batches of bmm and baddbmm are from 1 to this, with uniformly distributed logarithms."""

ROUNDED = 0.75
"""Share of problems whose sizes of at least UNIT are rounded down to multiples of UNIT, as most in real models are."""

UNIT = 8

MAX_BYTES = 2**31
"""Most memory, in bytes, for A, B, bias and result of one problem. It is the same on every machine, so that a seed
draws the same problems everywhere."""


def random_problems(
    count: int, *, seed: int, log_normal: bool, ops: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]
) -> list[Problem]:
    """``count`` different problems with packed operands, the same for the same arguments on every machine.

    Op, dtype and layout are drawn evenly from those given. Sizes are integers, at least 1, and the largest of M, N and
    K is halved until everything fits in MAX_BYTES; then those of ROUNDED problems are rounded.
    """
    source = random.Random(seed)  # noqa: S311 - no secret depends on it
    problems: dict[Problem, None] = {}
    while len(problems) < count:
        op, dtype, layout = source.choice(ops), source.choice(dtypes), source.choice(layouts)
        batch = _log_uniform(source, LARGEST_BATCH) if op in BATCHED else 1
        sizes = [_log_normal(source, name) if log_normal else _log_uniform(source, LARGEST_UNIFORM) for name in "mnk"]
        m, n, k = _fitting(batch, sizes, ITEMSIZES[dtype])
        if source.random() < ROUNDED:
            m, n, k = (size if size < UNIT else size // UNIT * UNIT for size in (m, n, k))
        problems[Problem.of(op, m, n, k, dtype=dtype, layout=layout, b=batch)] = None
    return list(problems)


def _log_normal(source: random.Random, name: str) -> int:
    return max(1, round(source.lognormvariate(*LOG_NORMAL[name])))


def _log_uniform(source: random.Random, largest: int) -> int:
    return round(math.exp(source.uniform(0, math.log(largest))))


def _fitting(batch: int, sizes: list[int], itemsize: int) -> list[int]:
    def size_in_bytes() -> int:
        m, n, k = sizes
        return batch * (m * k + k * n + 2 * m * n) * itemsize

    sizes = list(sizes)
    while size_in_bytes() > MAX_BYTES:
        largest = sizes.index(max(sizes))
        sizes[largest] //= 2
    return sizes
