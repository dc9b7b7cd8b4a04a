"""Expected times of generated kernels: a regression of their sizes and blocks, for sizes that were not measured.

Without a row Inductor benchmarks its configs at the first launch of a kernel, which may take several times as long as
the best. The regression tells configs apart by what their blocks make of a kernel: elements and loops of a program, the
programs in a grid, what is computed in vain. It is fitted for each form of kernel and way of reading by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.hardware import Hardware, architecture
from diode_lut.problem import VARIANTS, Problem
from diode_lut.templates.config import DEFAULT, Config
from diode_lut.templates.generated import LOOPED_REDUCTION, PERSISTENT_REDUCTION, POINTWISE, rounded_up

Floats = npt.NDArray[np.float64]

MAX_LOSS = 1.0
"""Larger losses count as this: such a config is out of the question, by however much."""

LEAST_PROBLEMS = 30
"""Minimum number of problems of a regression."""

_L2_WEIGHT = 1.0
"""Weight of the squared coefficients in the sum of squared errors."""

_OF_GOOD_CONFIGS = 2.0
"""How much more the errors of good configs count: by the power of e for each unit of loss."""

_RESIDENT_WARPS = 64
"""Warps of an SM of recent NVIDIA GPUs that run at the same time."""

FORMS = {"pointwise": (POINTWISE.name,), "reduction": (LOOPED_REDUCTION.name, PERSISTENT_REDUCTION.name)}
"""The templates of each op."""

LOOPED, PERSISTENT = LOOPED_REDUCTION.name, PERSISTENT_REDUCTION.name

Times = Sequence[tuple[Problem, Mapping[Config, float]]]
"""Problems, each with the times of configs."""


class _Fit(NamedTuple):
    """A regression: least, greatest, mean and deviation of each feature, and a coefficient for each term."""

    least: Floats
    most: Floats
    mean: Floats
    deviation: Floats
    coefficients: Floats

    def losses(self, features: Floats) -> Floats:
        """Return the expected logarithm of time over the best time, for each row. It is only good to compare rows."""
        found: Floats = _terms((features.clip(self.least, self.most) - self.mean) / self.deviation) @ self.coefficients
        return found


class Expected:
    """What is expected of configs by what was measured."""

    def __init__(self, measured: Times, hardware: Hardware) -> None:
        self._sm_count, self._arch = hardware.sm_count, architecture(hardware.arch)
        rows: defaultdict[tuple[str, str], list[tuple[Floats, Floats]]] = defaultdict(list)
        self._tried: defaultdict[tuple[str, str], defaultdict[int, set[Config]]]
        self._tried = defaultdict(lambda: defaultdict(set))
        both: defaultdict[str, list[tuple[Floats, Floats]]] = defaultdict(list)
        for problem, times in measured:
            bests: dict[str, float] = {}
            for template in {config.template for config in times} - {DEFAULT.template}:
                group, own = (template, _reading(problem)), [each for each in times if each.template == template]
                taken = np.array([times[config] for config in own])
                rows[group].append((self._features(problem, own), np.log(taken / taken.min()).clip(max=MAX_LOSS)))
                self._tried[group][rounded_up(problem.r)].update(own)
                bests[template] = taken.min()
            if bests.keys() == {LOOPED, PERSISTENT}:
                gain = np.log(bests[LOOPED] / bests[PERSISTENT])
                both[_reading(problem)].append((_of_problem(problem)[None], np.array([gain])))
        self._fits = {group: _fitted(each) for group, each in rows.items() if len(each) >= LEAST_PROBLEMS}
        self._forms = {reading: _fitted(each) for reading, each in both.items() if len(each) >= LEAST_PROBLEMS}

    def losses(self, problem: Problem) -> dict[Config, float]:
        """Return what each config that was tried for problems alike is expected to lose, to the best of its form.

        A loss is the logarithm of a time over another. There are none if too little was measured.
        """
        found: dict[Config, float] = {}
        for (template, reading), fit in self._fits.items():
            if template in FORMS[problem.op] and reading == _reading(problem):
                tried = self._tried[template, reading]
                r = rounded_up(problem.r).bit_length()
                nearest = min(tried, key=lambda each: (abs(each.bit_length() - r), each))
                configs = [
                    each for each in sorted(tried[nearest]) if each.kernel.suits(each.params, problem, self._arch)
                ]
                if configs:
                    losses = fit.losses(self._features(problem, configs))
                    found |= zip(configs, (losses - losses.min()).tolist(), strict=True)
        return found

    def loops(self, problem: Problem) -> bool:
        """Return whether a reduction that loops over r is expected to take less time than one that keeps all of it."""
        fit = self._forms.get(_reading(problem))
        return fit is not None and float(fit.losses(_of_problem(problem)[None])[0]) < 0

    def _features(self, problem: Problem, configs: Sequence[Config]) -> Floats:
        """Return the features of a problem with each config, a row each. Sizes and counts are logarithms to base 2."""
        values = [config.kernel.values(config.params) for config in configs]
        r, whole = problem.r, rounded_up(problem.r)
        x, y, step, warps = np.array(
            [
                (each["block_x"], each.get("block_y") or 1, each.get("block_r", whole), each["num_warps"])
                for each in values
            ],
            np.float64,
        ).T
        columns, loops = np.ceil(problem.x / x), np.ceil(r / step)
        resident = np.log2(columns * np.ceil(problem.y / y) * warps / (_RESIDENT_WARPS * self._sm_count))
        of_thread, in_vain = np.log2(x * y * step / warps / 32), np.log2((columns * x / problem.x, loops * step / r))
        blocks = np.log2((x, y, step, warps, x * y * step, np.minimum(x, y)))
        bends = np.maximum((resident, resident + 3, of_thread - 2, of_thread - 4, np.log2(loops) - 0.5), 0)
        stages = [float(each["num_stages"] > 1) for each in values]
        of_config = np.stack([*blocks, of_thread, resident, np.log2(loops), *bends, *in_vain, stages], 1)
        return np.concatenate([of_config, np.tile(_of_problem(problem), (len(configs), 1))], 1)


def _of_problem(problem: Problem) -> Floats:
    sizes = np.log2((problem.x, problem.y, problem.r, problem.loads, rounded_up(problem.r) / problem.r))
    return np.array([*sizes, *(problem.variant == each for each in VARIANTS[problem.op])], np.float64)


def _reading(problem: Problem) -> str:
    """Return what the variants have in common for which the same configs were tried."""
    kind = problem.variant.partition("-")[0]
    return kind if kind in ("flat", "tiled", "inner") else "outer"


def _terms(features: Floats) -> Floats:
    """Return 1, the features, and the products of two."""
    first, second = np.triu_indices(features.shape[1])
    ones = np.ones((len(features), 1))
    return np.concatenate([ones, features, features[:, first] * features[:, second]], 1)


def _fitted(problems: Sequence[tuple[Floats, Floats]]) -> _Fit:
    """Fit a ridge regression. Each problem has the features and the loss of each config, and all count alike."""
    features = np.concatenate([each for each, _ in problems])
    losses = np.concatenate([each for _, each in problems])
    shares = np.concatenate([np.full(len(each), 1 / len(each)) for _, each in problems])
    mean, deviation = features.mean(0), features.std(0)
    deviation[deviation < 1e-9] = np.inf
    terms = _terms((features - mean) / deviation)
    weights = (shares * np.exp(-_OF_GOOD_CONFIGS * np.abs(losses)))[:, None]
    penalty = _L2_WEIGHT * np.eye(terms.shape[1])
    penalty[0, 0] = 0
    coefficients = np.linalg.solve(terms.T @ (terms * weights) + penalty, terms.T @ (losses * weights[:, 0]))
    return _Fit(features.min(0), features.max(0), mean, deviation, coefficients)
