"""What padding the operands of a GEMM costs or gains, for a model whose network knows no padding.

A regression predicts the time of ``aten`` on padded operands, copies included, over that of the best config on the
operands as they are. Its terms are 1, PADDING_FEATURES and their products. The time of ``aten`` without padding is no
measure: where rows are not aligned it may take five times as long as the best, and the network, which learns from
losses up to a cap, does not say how long. The network ranks the kernels for the padded GEMM. The
time of the copies does not depend on the kernel. It is estimated as a share of that of ``aten``, by the bytes moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from diode_lut.domain.ops import BATCHED, NO_EPILOGUE, letters
from diode_lut.domain.problem import Problem
from diode_lut.kernels.padding import PADDED_OPS, copied_bytes, needed_pad, pad_multiple, padded
from diode_lut.model.features import exp, log2, vectors

PADDING_FEATURES = (
    *("log_b", "log_m", "log_n", "log_k", "log_flops", "log_bytes", "log_copied_bytes"),
    *(f"log_{matrix}_vector" for matrix in "abc"),
    *("batched", "a_transposed", "b_transposed", "bfloat16"),
)

OVER = "the best without padding"
"""What the regression's times are relative to; in files, because there was another one."""

_MAX_DEVIATIONS = 3.0
"""Cap on the distance of a feature from its mean, in standard deviations."""

_DIGITS = 4
"""Digits after the point to which a probability is rounded, so that it is the same on every machine."""


class PaddingModel(NamedTuple):
    """The regression. ``mean`` and ``deviation`` scale the features, ``weights`` has a number per term.

    ``kinds`` are the pairs of op and dtype that it knows. ``error`` is the standard deviation of the logarithm of the
    measured over the expected time, on problems that it was not fitted to.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weights: tuple[float, ...]
    kinds: tuple[tuple[str, str], ...]
    error: float

    def knows(self, problem: Problem) -> bool:
        """Whether Inductor may pad the problem's operands, and the regression says something about it."""
        return can_be_padded(problem) and (problem.op, problem.dtype) in self.kinds

    def times(self, problem: Problem, times: Iterable[float], best: float) -> tuple[float, ...]:
        """Expected times with copies, over that of ``aten`` on the operands as they are, as is ``best``.

        ``best`` is the least time on the operands as they are. ``times`` are those on operands that are padded already,
        over that of ``aten`` on these.
        """
        terms = terms_of(scaled(padding_features(problem), self.mean, self.deviation))
        log_time = math.fsum(weight * term for weight, term in zip(self.weights, terms, strict=True))
        factor, copies = best * float(exp(log_time)), _share_of_copies(problem)
        return tuple(factor * (copies + (1 - copies) * time) for time in times)

    def chance(self, lead: float) -> float:
        """Probability that what is expected to be faster is faster; ``lead`` is the difference of log(time)."""
        return round(0.5 * (1 + math.erf(lead / (self.error * math.sqrt(2)))), _DIGITS)

    def to_json(self) -> dict[str, Any]:
        """The fields of the JSON object in a weights file."""
        return {"features": PADDING_FEATURES, "over": OVER, **self._asdict()}


def can_be_padded(problem: Problem) -> bool:
    """Whether Inductor may pad the problem's operands."""
    alone = problem.op in PADDED_OPS and problem.epilogue == NO_EPILOGUE
    return alone and needed_pad(problem, pad_multiple(problem.dtype)) > 1


def padding_features(problem: Problem) -> list[float]:
    """PADDING_FEATURES of a problem; sizes are logarithms to base 2."""
    copied = copied_bytes(problem, pad_multiple(problem.dtype))
    sizes = (*problem.sizes, problem.operations, problem.nbytes, copied, *vectors(problem))
    letter_a, letter_b = letters(problem.layout)
    flags = (problem.op in BATCHED, letter_a == "t", letter_b == "t", problem.dtype == "bfloat16")
    return [*log2(sizes).tolist(), *map(float, flags)]


def _share_of_copies(problem: Problem) -> float:
    """The bytes that the copies move, as a share of all with those of the padded GEMM."""
    multiple = pad_multiple(problem.dtype)
    copied = copied_bytes(problem, multiple)
    return copied / (copied + padded(problem, multiple).nbytes)


def scaled(features: Sequence[float], mean: Sequence[float], deviation: Sequence[float]) -> list[float]:
    """The features in standard deviations from their means."""
    distances = ((each - middle) / by for each, middle, by in zip(features, mean, deviation, strict=True))
    return [max(-_MAX_DEVIATIONS, min(_MAX_DEVIATIONS, distance)) for distance in distances]


def terms_of(features: Sequence[float]) -> list[float]:
    """The regression's terms: 1, the features, and the products of each two of them and of each with itself."""
    return [1.0, *features, *(one * other for one, other in combinations_with_replacement(features, 2))]
