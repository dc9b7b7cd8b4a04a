"""The part of a model for generated kernels: regressions of what a config costs, for sizes without a row.

Without an answer, Inductor benchmarks its configs at the first launch of a kernel, and takes one that may need several
times as long as the best. The regressions tell configs apart by what their blocks make of a kernel: elements and steps
of a program, programs in the grid, and elements that are computed in vain. There is one for each template and way of
reading, and one for each way of reading that compares the two forms of a reduction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from math import sqrt
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.errors import ProblemError
from diode_lut.hardware import Hardware, architecture
from diode_lut.problem import SPLIT, VARIANTS, Problem, rounded_up
from diode_lut.templates.config import DEFAULT, Config

Doubles = npt.NDArray[np.float64]

FEATURES = 2  # Version of the features. The regressions in a file have to be for this version

MAX_LOSS = 0.5
"""Larger losses count as this: such a config is out of the question, by however much.

With 1, held-out kernels of models took 1.041 times as long as with the best config, with 0.5 1.038, with 0.3 1.039.
"""

LEAST_PROBLEMS = 30  # minimum number of kernels that a regression is fitted to
_L2_WEIGHT = 1.0  # weight of the squared coefficients in the sum of squared errors
_OF_GOOD_CONFIGS = 2.0  # how much more the errors of good configs count: by the power of e for each unit of loss
_RESIDENT_WARPS = 64  # warps that an SM of recent NVIDIA GPUs runs at the same time

OVER_ROWS = ("flat", "inner")
"""Ways of reading whose best config depends little enough on x for a config for all x in a range.

Held-out reductions of rows with such configs took 1.05 (persistent) and 1.09 (looped) times as long as with the best,
and 1.43 and 1.18 with Inductor's first. For those of columns, a config for all x is worse than Inductor's first.
"""

LONGEST_OVER_ROWS = 1 << 14  # Maximum r of such reductions. Of longer ones, too few were measured
_LEAST_ROWS, _MOST_ROWS = 1 << 4, 1 << 16  # of the range for such a config. Fewer rows take as long with any config
_DIGITS = 5  # digits after the point of rounded losses, and significant digits of a regression's numbers
_REMEMBERED = 1024  # number of remembered answers
Times = Sequence[tuple[Problem, Mapping[Config, float]]]  # kernels, each with the times of configs


class KernelRegression(NamedTuple):
    """A ridge regression of losses, the logarithms of a time over another.

    ``spans`` has the least, greatest, mean and deviation of each feature, ``coefficients`` a number for each term, and
    ``tried`` the configs that were measured, by r rounded up to a power of two. ``template`` is empty, and nothing
    ``tried``, in a regression of a looped reduction's loss to one that keeps all of r.
    """

    template: str
    reading: str
    spans: Doubles
    coefficients: Doubles
    tried: Mapping[int, tuple[Config, ...]]

    def losses(self, features: Doubles) -> list[float]:
        """Return the expected loss for each row of features."""
        least, most, mean, deviation = self.spans
        terms = _terms((features.clip(least, most) - mean) / deviation)
        return [round(loss, _DIGITS) for loss in (terms @ self.coefficients).tolist()]


class KernelModel:
    """Ranks configs for generated kernels. It is read-only."""

    def __init__(self, hardware: Hardware, regressions: Sequence[KernelRegression]) -> None:
        self.regressions = tuple(regressions)
        self._sm_count, self._architecture = hardware.sm_count, architecture(hardware.arch)
        tried = [next(iter(part.tried.values())) for part in self.regressions if part.tried]
        self._loops = {configs[0].template: _loops(configs[0]) for configs in tried}
        self.ranked = lru_cache(_REMEMBERED)(self._ranked)
        self._runnable = lru_cache(_REMEMBERED)(self._find_runnable)

    def ranked_over(self, problem: Problem, low: int, high: int) -> tuple[Config, ...]:
        """Return the configs for a kernel whose x may change from ``low`` to ``high``, the least sum of losses first.

        There are none where the best config depends on x. No config is for a hint: it is the same in any process.
        """
        if reading_of(problem) not in OVER_ROWS or problem.r > LONGEST_OVER_ROWS:
            return ()
        most = min(high, max(_MOST_ROWS, low << 12))
        least = min(max(low, _LEAST_ROWS), most)
        powers = (1 << power for power in range(0, most.bit_length(), 2))
        sizes = sorted({least, most, *(size for size in powers if least < size < most)})
        return self.ranked(*(problem._replace(x=size) for size in sizes))

    def _ranked(self, *problems: Problem) -> tuple[Config, ...]:
        """Return the configs that were tried for kernels alike, the least expected loss first. None may be.

        Of several problems, which differ in x alone, all count. Of a reduction, all configs of the form that is
        expected to be faster come first.
        """
        losses, reading = self.losses(*problems), reading_of(problems[0])
        forms = [each for each in self.regressions if (each.template, each.reading) == ("", reading)]
        loops = bool(forms) and sum(forms[0].losses(np.stack([*map(_of_problem, problems)]))) < 0
        late = {template: loop != loops for template, loop in self._loops.items()}
        return tuple(sorted(losses, key=lambda config: (late[config.template], losses[config], config)))

    def losses(self, *problems: Problem) -> dict[Config, float]:
        """Return the expected loss of each config, tried for kernels alike, to the best of its template.

        Of several problems, it is the sum. The largest counts once, and smaller ones less, because they take less time:
        by the square root of x, or the fourth root for loops. Held-out kernels with a config for all x then take 1.119
        (looped), 1.042 (persistent) and 1.024 (pointwise) times as long in sum as with the best. With equal weights
        they take 1.132, 1.058 and 1.043, and with the square root for loops, those of few rows lose twice as much.
        """
        found: dict[Config, float] = {}
        largest = max(problems, key=lambda problem: problem.x)
        x, y = rounded_up(largest.x), rounded_up(largest.y)
        weights = [sqrt(problem.x / largest.x) for problem in problems]
        for number, part in enumerate(self.regressions):
            if part.template and part.reading == reading_of(largest):
                configs, blocks = self._runnable(number, rounded_up(largest.r))
                fits = np.flatnonzero((blocks[:, 0] <= x) & (blocks[:, 1] <= y))
                if len(fits):
                    each = [part.losses(features_of(problem, blocks[fits], self._sm_count)) for problem in problems]
                    of_part = [*map(sqrt, weights)] if self._loops.get(part.template) else weights
                    losses = [sum(map(mul, of_config, of_part)) for of_config in zip(*each, strict=True)]
                    least = min(losses)
                    found |= {configs[place]: loss - least for place, loss in zip(fits.tolist(), losses, strict=True)}
        return found

    def _find_runnable(self, number: int, r: int) -> tuple[tuple[Config, ...], Doubles]:
        """Return the configs of a regression that run with an r, rounded, and their blocks, none longer than r."""
        tried, reading = self.regressions[number].tried, self.regressions[number].reading
        nearest = min(tried, key=lambda each: (abs(each.bit_length() - r.bit_length()), each))
        alike = Problem.generated("reduction", "inner" if reading == "inner" else "outer", x=1, r=r)
        configs = tuple(each for each in tried[nearest] if each.kernel.suits(each.params, alike, self._architecture))
        blocks = blocks_of(configs, r)
        return tuple(compress(configs, (blocks[:, 2] <= r).tolist())), blocks[blocks[:, 2] <= r]

    def to_json(self) -> dict[str, Any]:
        """Return the fields that ``from_json`` takes."""
        configs = sorted({config for part in self.regressions for tried in part.tried.values() for config in tried})
        numbers = {config: number for number, config in enumerate(configs)}
        regressions = [
            {
                "template": part.template,
                "reading": part.reading,
                "spans": part.spans.tolist(),
                "coefficients": part.coefficients.tolist(),
                "tried": {str(r): [numbers[config] for config in tried] for r, tried in part.tried.items()},
            }
            for part in self.regressions
        ]
        return {"features": FEATURES, "configs": [each.to_json() for each in configs], "regressions": regressions}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], hardware: Hardware) -> KernelModel:
        """Return the model of ``to_json``. Anything else raises ProblemError, KeyError, TypeError or ValueError."""
        if fields["features"] != FEATURES:
            raise ProblemError("kernels: other features; distill the model again with this diode_lut")
        configs = [Config.from_json(each) for each in fields["configs"]]
        regressions = []
        for each in fields["regressions"]:
            spans, coefficients = (np.array(each[name], np.float64) for name in ("spans", "coefficients"))
            count = spans.shape[-1]
            if spans.shape != (4, count) or coefficients.shape != (1 + count + count * (count + 1) // 2,):
                raise ProblemError("kernels: not four numbers for each feature, and a coefficient for each term")
            if not (np.isfinite(spans).all() and np.isfinite(coefficients).all() and (spans[3] > 0).all()):
                raise ProblemError("kernels: NaN, an infinite number, or a deviation that is not positive")
            tried = {int(r): tuple(configs[number] for number in numbers) for r, numbers in each["tried"].items()}
            regressions.append(
                KernelRegression(str(each["template"]), str(each["reading"]), spans, coefficients, tried)
            )
        return cls(hardware, regressions)


def fit_kernels(measured: Times, hardware: Hardware) -> KernelModel:
    """Fit the regressions to the times of kernels, each of which counts alike. There may be too few for any."""
    losses: defaultdict[tuple[str, str], list[tuple[Doubles, Doubles]]] = defaultdict(list)
    tried: defaultdict[tuple[str, str], defaultdict[int, set[Config]]] = defaultdict(lambda: defaultdict(set))
    for problem, times in measured:
        if problem.op == SPLIT:
            continue
        reading, bests = reading_of(problem), dict[bool, float]()
        # A software pipeline changes no time by more than measuring does: its configs are more to choose wrongly from.
        plain = [config for config in times if config != DEFAULT and "num_stages" not in config.tunables]
        for template in {config.template for config in plain}:
            configs = [config for config in plain if config.template == template]
            taken = np.array([times[config] for config in configs])
            features = features_of(problem, blocks_of(configs, rounded_up(problem.r)), hardware.sm_count)
            losses[template, reading].append((features, np.log(taken / taken.min()).clip(max=MAX_LOSS)))
            tried[template, reading][rounded_up(problem.r)].update(configs)
            bests[_loops(configs[0])] = float(taken.min())
        if len(bests) > 1:
            losses["", reading].append((_of_problem(problem)[None], np.log([bests[True] / bests[False]])))
    regressions = []
    for (template, reading), each in sorted(losses.items(), key=lambda pair: pair[0]):
        if len(each) >= LEAST_PROBLEMS:
            sets = {r: tuple(sorted(configs)) for r, configs in sorted(tried[template, reading].items())}
            regressions.append(KernelRegression(template, reading, *_fitted(each), sets))
    return KernelModel(hardware, regressions)


def blocks_of(configs: Sequence[Config], r: int) -> Doubles:
    """Return elements along x, y and r, and warps, a row for each config. All of a kept r is a step."""
    values = [config.kernel.values(config.params) for config in configs]
    blocks = [(each["block_x"], each.get("block_y") or 1, each.get("block_r", r), each["num_warps"]) for each in values]
    return np.array(blocks, np.float64).reshape(-1, 4)


def features_of(problem: Problem, blocks: Doubles, sm_count: int) -> Doubles:
    """Return the features of a kernel with each config, a row each. Sizes and counts are logarithms to base 2."""
    x, y, step, warps = blocks.T
    columns, steps = np.ceil(problem.x / x), np.ceil(problem.r / step)
    resident = np.log2(columns * np.ceil(problem.y / y) * warps / (_RESIDENT_WARPS * sm_count))
    of_thread = np.log2(x * y * step / warps / 32)
    sizes = np.log2((x, y, step, warps, x * y * step, np.minimum(x, y)))
    bends = np.maximum((resident, resident + 3, of_thread - 2, of_thread - 4, np.log2(steps) - 0.5), 0)
    in_vain = np.log2((columns * x / problem.x, steps * step / problem.r))
    of_configs = np.stack([*sizes, of_thread, resident, np.log2(steps), *bends, *in_vain], 1)
    return np.concatenate([of_configs, np.tile(_of_problem(problem), (len(blocks), 1))], 1)


def _of_problem(problem: Problem) -> Doubles:
    sizes = np.log2((problem.x, problem.y, problem.r, problem.loads, rounded_up(problem.r) / problem.r))
    return np.array([*sizes, *(problem.variant == each for each in VARIANTS[problem.op])], np.float64)


def reading_of(problem: Problem) -> str:
    """Return the group of a kernel's variant: the same configs were tried for all variants of a group.

    Reductions that may be split have a group of their own, about which no model knows anything.
    """
    if problem.op == SPLIT:
        return SPLIT
    group = problem.variant.partition("-")[0]
    return group if group in ("flat", "tiled", "inner") else "outer"


def _loops(config: Config) -> bool:
    """Return whether a reduction with the config loops over r."""
    return "block_r" in config.tunables


def _terms(features: Doubles) -> Doubles:
    """Return 1, the features, and the products of two."""
    first, second = _pairs(features.shape[1])
    ones = np.ones((len(features), 1))
    return np.concatenate([ones, features, features[:, first] * features[:, second]], 1)


_pairs = lru_cache(np.triu_indices)


def _fitted(kernels: Sequence[tuple[Doubles, Doubles]]) -> tuple[Doubles, Doubles]:
    """Fit a regression to the features and losses of kernels, and return the spans and the coefficients."""
    features = np.concatenate([each for each, _ in kernels])
    losses = np.concatenate([each for _, each in kernels])
    shares = np.concatenate([np.full(len(each), 1 / len(each)) for _, each in kernels])
    deviation = features.std(0)
    deviation[deviation < 1e-9] = 1e9  # a feature that is always the same has no part
    spans = _rounded(np.stack([features.min(0), features.max(0), features.mean(0), deviation]))
    terms = _terms((features - spans[2]) / spans[3])
    weights = (shares * np.exp(-_OF_GOOD_CONFIGS * np.abs(losses)))[:, None]
    penalty = _L2_WEIGHT * np.eye(terms.shape[1])
    penalty[0, 0] = 0
    coefficients = np.linalg.solve(terms.T @ (terms * weights) + penalty, terms.T @ (losses * weights[:, 0]))
    return spans, _rounded(coefficients)


def _rounded(numbers: Doubles) -> Doubles:
    """Return numbers with as many significant digits on any machine."""
    return np.array([float(f"{number:.{_DIGITS}g}") for number in numbers.ravel()]).reshape(numbers.shape)
