"""The network in NumPy: two hidden ReLU layers over the features.

The part of the first layer that depends only on the candidates is computed once. The part that depends only on the
problem is computed once per problem.
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

MAX_NEURONS = 256
"""Maximum neurons of a hidden layer in a weights file."""

MAX_WEIGHT = 1000
"""Maximum magnitude of a weight in a weights file. Up to this magnitude nothing overflows."""


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
    """The network for a fixed list of candidates, computed in ``precision``."""

    def __init__(
        self, weights: Weights, candidates: Candidates, precision: type[np.floating[Any]] = np.float32
    ) -> None:
        self._weights = Weights(*(tensor.astype(precision) for tensor in weights))
        self._tiling = candidates.tiling
        fixed = np.vstack((config_features(candidates.configs), weights.learned[:, candidates.numbers]))
        self._of_configs = self._weights.config @ fixed.astype(precision)
        self._inputs = np.zeros((len(JOINT_FEATURES) + 1, fixed.shape[1]), precision)
        self._inputs[-1] = 1  # times the part that is the same for all candidates
        self._inputs.setflags(write=False)  # many threads may ask at the same time
        self._zeros = np.zeros_like(self._inputs[:1])  # a maximum with an array is faster than with a number

    def scores(self, problem: Problem, sm_count: int) -> tuple[Floats, Floats]:
        """Scores and doubts, one per candidate.

        The difference of two scores is the difference of the logarithms of the two expected times. A doubt is the
        logarithm of the odds that the candidate is not a good choice if it is ranked first.
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
