"""The network in NumPy: two hidden ReLU layers over the features, with the same scores on every machine.

The order in which BLAS adds products depends on the processor and the number of threads. So the factors of a product
are rounded, the matrix to 26 bits and its inputs to 26, such that no sum of products needs more than the 53 bits of a
float64. Nothing is rounded while they are added, and every order gives the same sum. Everything else is arithmetic on
single elements, which IEEE 754 defines to the last bit.

The part of the first layer that depends only on the candidates is computed once. The part that depends only on the
problem is computed once per problem.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from diode_lut.domain.problem import Problem
from diode_lut.model.candidates import Candidates
from diode_lut.model.features import (
    CONFIG_FEATURES,
    JOINT_FEATURES,
    PROBLEM_FEATURES,
    Floats,
    config_features,
    problem_features,
)

MAX_NEURONS = 256
"""Maximum neurons of a hidden layer in a weights file."""

MAX_WEIGHT = 1000
"""Maximum magnitude of a weight in a weights file. Up to this magnitude nothing overflows."""

_BITS = 26
"""Bits of a row's sum of magnitudes in a rounded matrix, and of the largest input. The 53rd bit is for rounding up."""


class Weights(NamedTuple):
    """The weights: matrices have a row per output and a column per input, biases are columns.

    The first layer is split into ``problem``, ``config`` and ``joint``, by what its inputs depend on. Scaling of the
    features is part of the weights. ``learned`` are the learned features of configs: a row per feature, a column per
    candidate. They follow CONFIG_FEATURES in the inputs of ``config``. ``last`` maps the second layer to scores,
    ``doubt`` maps both layers to doubts.
    """

    learned: Floats
    problem: Floats
    config: Floats
    joint: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    last: Floats
    last_bias: Floats
    doubt: Floats
    doubt_bias: Floats

    def shapes(self, candidates: int) -> dict[str, tuple[int, int]]:
        """The required shapes by name, given the number of candidates, of neurons and of learned features."""
        first, second, learned = self.second.shape[1], self.second.shape[0], self.learned.shape[0]
        return {
            "learned": (learned, candidates),
            "problem": (first, len(PROBLEM_FEATURES)),
            "config": (first, len(CONFIG_FEATURES) + learned),
            "joint": (first, len(JOINT_FEATURES)),
            "first_bias": (first, 1),
            "second": (second, first),
            "second_bias": (second, 1),
            "last": (1, second),
            "last_bias": (1, 1),
            "doubt": (1, first + second),
            "doubt_bias": (1, 1),
        }


class Scorer:
    """The network for a fixed list of candidates."""

    def __init__(self, weights: Weights, candidates: Candidates) -> None:
        self._tiling = candidates.tiling
        self._problem, self._joint = _rounded(weights.problem), _rounded(weights.joint)
        fixed = np.vstack((config_features(candidates.configs), weights.learned[:, candidates.numbers]))
        self._of_configs = _product(_rounded(weights.config), fixed) + weights.first_bias
        # Doubts are sums over both layers: the last row of both matrices.
        of_first, of_second = np.split(weights.doubt, [weights.second.shape[1]], axis=1)
        self._second, self._second_bias = _rounded(np.vstack((weights.second, of_first))), weights.second_bias
        self._last = _rounded(np.vstack((weights.last, of_second)))
        self._last_bias = np.vstack((weights.last_bias, weights.doubt_bias))

    def scores(self, problem: Problem, sm_count: int) -> tuple[Floats, Floats]:
        """Scores and doubts, one per candidate.

        The difference of two scores is the difference of the logarithms of the two expected times. A doubt is the
        logarithm of the odds that the candidate is not a good choice if it is ranked first.
        """
        first = _product(self._joint, self._tiling.features(problem, sm_count))
        first += _product(self._problem, problem_features(problem, sm_count))
        first += self._of_configs
        np.maximum(first, 0.0, out=first)
        second = _product(self._second, first)
        second, of_first = second[:-1], second[-1]
        second += self._second_bias
        np.maximum(second, 0.0, out=second)
        scores, doubts = _product(self._last, second) + self._last_bias
        return scores, doubts + of_first


def _rounded(matrix: Floats) -> Floats:
    """The matrix in float64, in which each row has a unit such that the row's magnitudes add up to _BITS bits of it."""
    sums = np.array([[math.fsum(row)] for row in np.abs(matrix).tolist()])
    units = np.ldexp(1.0, np.frexp(sums)[1] - _BITS)
    return np.asarray(np.rint(matrix / units) * units)


def _product(rounded: Floats, inputs: Floats) -> Floats:
    """The exact product of a rounded matrix and the inputs, these rounded to _BITS bits of the largest one.

    Inputs in float64 are overwritten: so large arrays would take longer to allocate than to fill.
    """
    _, exponent = math.frexp(max(inputs.max(), -inputs.min()))
    whole = inputs if inputs.dtype == np.float64 else inputs.astype(np.float64)
    whole *= math.ldexp(1.0, _BITS - exponent)
    product: Floats = rounded @ np.rint(whole, out=whole)
    product *= math.ldexp(1.0, exponent - _BITS)
    return product
