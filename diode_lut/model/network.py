"""The network: two hidden layers of rectifiers over the features, as arrays.

What depends only on the candidates is computed once, what depends only on the problem once for all candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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

MOST_HIDDEN = 256
"""The most neurons of one layer that a weights file may have."""

MOST_WEIGHT = 1000
"""The largest weight that it may have: with such, nothing overflows."""


class Weights(NamedTuple):
    """Matrices with a row for each output and a column for each input, and biases as columns.

    The first layer is cut by what its inputs depend on. Scaling of the features is part of the weights. ``learned`` has
    a row for each feature of configs that was learned, after CONFIG_FEATURES, and a column for each candidate. ``last``
    makes scores of the second layer, ``doubt`` makes doubts of both.
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
        """What the shapes must be, by name, given the sizes of the hidden layers and what was learned of candidates."""
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
    """The network for a fixed list of candidates, computed in single precision, or in another."""

    def __init__(
        self, weights: Weights, candidates: Candidates, precision: type[np.floating[Any]] = np.float32
    ) -> None:
        self._weights = Weights(*(tensor.astype(precision) for tensor in weights))
        self._tiling = candidates.tiling
        fixed = np.vstack((config_features(candidates.configs), weights.learned[:, candidates.numbers]))
        self._of_configs = self._weights.config @ fixed.astype(precision)
        self._inputs = np.zeros((len(JOINT_FEATURES) + 1, fixed.shape[1]), precision)
        self._inputs[-1] = 1  # for what is the same for all of them
        self._inputs.setflags(write=False)  # many threads may ask at the same time
        self._zeros = np.zeros_like(self._inputs[:1])  # a maximum with an array is faster than with a number

    def scores(self, problem: Problem, sm_count: int) -> tuple[Floats, Floats]:
        """Of each candidate the score, and the doubt whether it is a good choice, should it be the first.

        The difference of two scores is that of the logarithms of their times. Doubts are logarithms of odds.
        """
        weights, inputs = self._weights, self._inputs.copy()
        self._tiling.fill(inputs[:-1], problem, sm_count)
        of_problem = weights.problem @ problem_features(problem, sm_count) + weights.first_bias
        first = np.hstack((weights.joint, of_problem)) @ inputs
        first += self._of_configs
        np.maximum(first, self._zeros, out=first)
        second = weights.second @ first
        second += weights.second_bias
        np.maximum(second, self._zeros, out=second)
        scores = weights.last @ second + weights.last_bias
        doubts = weights.doubt @ np.vstack((first, second)) + weights.doubt_bias
        return scores[0], doubts[0]
