"""The part of a model for generated kernels: regressions of what a config costs, for sizes without a row.

Without an answer, Inductor benchmarks its configs at the first launch of a kernel, and takes one that may need several
times as long as the best. The regressions tell configs apart by what their blocks make of a kernel: elements and steps
of a program, programs in the grid, and elements that are computed in vain. There is one for each template and way of
reading, and one for each way of reading that compares the two forms of a reduction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from math import log2, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.errors import ProblemError
from diode_lut.hardware import Hardware, architecture
from diode_lut.problem import GENERATED, MAX_SIZE, SPLIT, VARIANTS, Problem, rounded_up
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
_LEAST_ROWS, _MOST_ROWS = 1 << 4, 1 << 16  # of the range for such a config. Alone, fewer rows take as long with any
_FILLING = 1 << 17  # elements that fill a GPU
_FEW_ELEMENTS = 8  # of a thread. Fewer make a kernel of few rows no faster
_DIGITS = 5  # digits after the point of rounded losses, and significant digits of a regression's numbers
_UNITS = 10.0**_DIGITS  # of a rounded loss, which is a whole number of them
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

    def for_columns(self, count: int) -> tuple[Doubles, Doubles]:
        """Return the spans of 1 and the features as ``count`` columns, and the coefficients as a matrix.

        Of a column of 1 and scaled features, the square by the matrix is the loss, in units of ``_UNITS``.
        """
        spans = np.concatenate([[[1.0], [1.0], [0.0], [1.0]], self.spans], 1)
        spans[0, _BENDS] = spans[0, _BENDS].clip(0)
        matrix = np.zeros((spans.shape[1],) * 2)
        matrix[np.triu_indices(len(matrix))] = self.coefficients
        return spans[:, :, None].repeat(count, 2), matrix.T.copy() * _UNITS


_OfTemplate = tuple[int, int, Doubles]
"""The first column of a template's configs, the first after them, and the matrix of the template's regression."""


class _Tried(NamedTuple):
    """The configs that are tried for a way of reading and an r, with all that a ranking needs but the kernel.

    Configs are sorted. ``known`` are features, of which the ``_OF_BLOCKS`` first are in the units of each config's
    regression, and ``spans`` are those of the others. If there is a regression of forms, it has a last column, which is
    no config's.
    """

    configs: tuple[Config, ...]
    known: Known
    spans: tuple[Doubles, ...]
    parts: tuple[_OfTemplate, ...]


class _Fitting(NamedTuple):
    """The configs of ``tried`` whose blocks are no longer than a kernel's x and y, rounded.

    Of each config there are its place among those tried, itself, and whether it loops.
    """

    tried: _Tried
    places: npt.NDArray[np.intp]
    configs: tuple[Config, ...]
    loops: tuple[bool, ...]


class KernelModel:
    """Ranks configs for generated kernels. It is read-only."""

    def __init__(self, hardware: Hardware, regressions: Sequence[KernelRegression]) -> None:
        self.regressions = tuple(regressions)
        self._sm_count, self._architecture = hardware.sm_count, architecture(hardware.arch)
        self.ranked = lru_cache(_REMEMBERED)(self._ranked)
        self._tried = lru_cache(_REMEMBERED)(self._find_tried)
        self._fitting = lru_cache(_REMEMBERED)(self._find_fitting)

    def ranked_over(self, problem: Problem, low: int, high: int) -> tuple[Config, ...]:
        """Return the configs for a kernel whose x may change from ``low`` to ``high``, the least sum of losses first.

        There are none where the best config depends on x. No config is for a hint: it is the same in any process.
        If there may be a single row, as where vLLM decodes, or so few elements that they do not fill a GPU, the configs
        with the fewest steps, then elements of a thread, come first: an empty GPU waits for them. Times with a cold L2
        cache show less of it. In CUDA graphs of vLLM on an H200, RMS norms of 1 to 32 rows of 3,072 took 2.5 to 3.3 us
        in three steps, and 1.9 to 2.1 us in one. Elsewhere, PyTorch assumes at least 2 rows, and many come.
        """
        if reading_of(problem) not in OVER_ROWS or problem.r > LONGEST_OVER_ROWS:
            return ()
        most = min(high, max(_MOST_ROWS, low << 12))
        least = min(max(low, _LEAST_ROWS), most)
        powers = (1 << power for power in range(0, most.bit_length(), 2))
        sizes = sorted({least, most, *(size for size in powers if least < size < most)})
        ranked = self.ranked(*(problem._replace(x=size) for size in sizes))
        if ranked and low < (_FILLING if problem.op == "pointwise" else 2):
            return tuple(sorted(ranked, key=partial(_waits, problem, _loops(ranked[0]))))
        return ranked

    def _ranked(self, *problems: Problem) -> tuple[Config, ...]:
        """Return the configs that were tried for kernels alike, the least expected loss first. None may be.

        Of several problems, which differ in x alone, all count. Of a reduction, all configs of the form that is
        expected to be faster come first.
        """
        fitting, losses, of_loops = self._losses(problems)
        order: list[int] = losses.argsort(kind="stable").tolist()
        order.sort(key=fitting.loops.__getitem__, reverse=of_loops < 0)  # which keeps the order of equal ones
        return tuple(map(fitting.configs.__getitem__, order))

    def losses(self, problem: Problem) -> dict[Config, float]:
        """Return the expected loss of each config, tried for kernels alike, to the best of its template."""
        fitting, losses, _ = self._losses((problem,))
        found = dict(zip(fitting.configs, losses.tolist(), strict=True))
        least = dict[str, float]()
        for config, loss in found.items():
            least[config.template] = min(loss, least.get(config.template, loss))
        return {config: loss - least[config.template] for config, loss in found.items()}

    def _losses(self, problems: Sequence[Problem]) -> tuple[_Fitting, Doubles, float]:
        """Return the configs whose blocks fit, their losses, which compare those of a template, and that of loops.

        Of several problems, a loss is the sum. The largest counts once, and smaller ones less, because they take less
        time: by the square root of x, or the fourth root for loops. Held-out kernels with a config for all x then take
        1.119 (looped), 1.042 (persistent) and 1.024 (pointwise) times as long in sum as with the best. With equal
        weights they take 1.132, 1.058 and 1.043, and with the square root for loops, those of few rows lose twice as
        much. The loss of loops is to the form that keeps all of r.
        """
        largest = problems[0] if len(problems) == 1 else max(problems, key=lambda problem: problem.x)
        sizes = map(rounded_up, (largest.r, largest.x, largest.y))
        fitting = self._fitting(reading_of(largest), *sizes)
        tried, places = fitting.tried, fitting.places
        losses, of_loops = list[Doubles](), 0.0
        for problem in problems if fitting.configs else ():
            features = features_of(problem, tried.known)
            _scale(features[_OF_BLOCKS:], tried.spans)
            of_problem = _rounded_losses(features, tried.parts)
            if len(of_problem) > len(tried.configs):
                of_loops += float(of_problem[-1])
            of_problem = of_problem[places]
            if problem is not largest:
                weight = sqrt(problem.x / largest.x)
                of_problem *= np.where(fitting.loops, sqrt(weight), weight)
            losses.append(of_problem)
        return fitting, sum(losses[1:], losses[0]) if losses else np.empty(0), of_loops

    def _find_fitting(self, reading: str, r: int, x: int, y: int) -> _Fitting:
        """Return the configs tried for an r that fit x and y, all rounded."""
        tried = self._tried(reading, r)
        blocks_x, blocks_y = tried.known.blocks
        places = ((blocks_x <= x) & (blocks_y <= y)).nonzero()[0]
        configs = tuple(tried.configs[place] for place in places)
        return _Fitting(tried, places, configs, tuple(map(_loops, configs)))

    def _find_tried(self, reading: str, r: int) -> _Tried:
        """Return the configs that run with an r, rounded, and with no block longer than it."""
        configs: list[Config] = []
        spans, parts, forms = [np.ones((4, 1, 0))], list[_OfTemplate](), None
        for part in sorted(self.regressions, key=lambda each: each.template):
            if part.reading != reading:
                continue
            if not part.template:
                forms = part
                continue
            alike = Problem.generated("reduction", "inner" if reading == "inner" else "outer", x=1, r=min(r, MAX_SIZE))
            nearest = min(part.tried, key=lambda each: (abs(each.bit_length() - r.bit_length()), each))
            runnable = [
                config
                for config in sorted(part.tried[nearest])
                if config.kernel.suits(config.params, alike, self._architecture)
                and config.tunables.get("block_r", r) <= r
            ]
            if not runnable:
                continue
            of_each, matrix = part.for_columns(len(runnable))
            spans = [*(spans if configs else ()), of_each]
            parts.append((len(configs), len(configs) + len(runnable), matrix))
            configs += runnable
        op = "pointwise" if reading in ("flat", "tiled") else "reduction"
        known, count = known_of(configs, op, r, self._sm_count), len(configs)
        if forms is not None and configs:
            of_forms, matrix = forms.for_columns(1)
            about = [0, *range(_OF_CONFIGS, spans[0].shape[1])]  # the rows that it is about; all others become 0
            widened, embedded = np.zeros((4, spans[0].shape[1], 1)), np.zeros((spans[0].shape[1],) * 2)
            widened[3], widened[:, about] = 1, of_forms
            embedded[np.ix_(about, about)] = matrix
            spans.append(widened)
            parts.append((count, count + 1, embedded))
            last = [*range(count), count - 1]  # of whose features the regression of forms leaves the kernel's
            known = known._replace(features=known.features.take(last, 1), places=known.places.take(last, 1))
        of_columns = np.concatenate(spans, 2)
        _scale(known.features[:_OF_BLOCKS], of_columns[:, :_OF_BLOCKS])
        return _Tried(tuple(configs), known, tuple(of_columns[:, _OF_BLOCKS:].copy()), tuple(parts))

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
            known = known_of(configs, problem.op, rounded_up(problem.r), hardware.sm_count)
            features = features_of(problem, known)
            np.maximum(features[_BENDS], 0, out=features[_BENDS])
            losses[template, reading].append((features[1:].T, np.log(taken / taken.min()).clip(max=MAX_LOSS)))
            tried[template, reading][rounded_up(problem.r)].update(configs)
            bests[_loops(configs[0])] = float(taken.min())
        if len(bests) > 1:
            losses["", reading].append((np.array([_of_problem(problem)]), np.log([bests[True] / bests[False]])))
    regressions = []
    for (template, reading), each in sorted(losses.items(), key=lambda pair: pair[0]):
        if len(each) >= LEAST_PROBLEMS:
            sets = {r: tuple(sorted(configs)) for r, configs in sorted(tried[template, reading].items())}
            regressions.append(KernelRegression(template, reading, *_fitted(each), sets))
    return KernelModel(hardware, regressions)


class Known(NamedTuple):
    """All about configs' features that does not depend on the kernel, a column for each config.

    ``blocks`` has elements along x and y. ``features`` has 1 and the features, without the kernel's part. That is one
    of the kernel's terms: first 0, then the kernel's own features, then one for each of ``terms``. ``places`` are the
    numbers of these.
    """

    blocks: Doubles
    features: Doubles
    terms: tuple[tuple[int, int, int, int], ...]
    places: npt.NDArray[np.intp]


def known_of(configs: Sequence[Config], op: str, r: int, sm_count: int) -> Known:
    """Return all about the features of configs that does not depend on an op's kernel. All of a kept r is a step."""
    values = [config.kernel.values(config.params) for config in configs]
    rows = [(each["block_x"], each.get("block_r", r), each.get("block_y") or 1, each["num_warps"]) for each in values]
    x, step, y, warps = np.array(rows, np.float64).reshape(-1, 4).T
    of_thread, at_a_time = np.log2(x * y * step / warps / 32), np.log2(warps / (_RESIDENT_WARPS * sm_count))
    own = 1 + np.arange(5 + len(VARIANTS[op]))
    features = np.zeros((_OF_CONFIGS + len(own), len(configs)))
    features[0] = 1
    features[1:8] = *np.log2((x, y, step, warps, x * y * step, np.minimum(x, y))), of_thread
    features[8], features[10], features[11] = at_a_time, at_a_time, at_a_time + 3
    features[12:15] = of_thread - 2, of_thread - 4, np.full_like(x, -0.5)
    features[15:17] = np.log2((x, step))
    terms, places = dict[tuple[int, int, int, int], int](), np.zeros(features.shape, np.intp)
    places[_OF_CONFIGS:] = own[:, None]
    for column, (block_x, block_r, block_y, _) in enumerate(rows):
        programs, steps = (block_x, _ALL, block_y, 0), (_ALL, block_r, _ALL, 0)
        of_rows = {**dict.fromkeys((8, 10, 11), programs), **dict.fromkeys((9, 14), steps)}
        of_rows |= {15: (block_x, _ALL, _ALL, 1), 16: (_ALL, block_r, _ALL, 2)}
        for row, term in of_rows.items():
            places[row, column] = len(own) + 1 + terms.setdefault(term, len(terms))
    return Known(np.stack((x, y)), features, tuple(terms), places)


_OF_BLOCKS = 8  # 1, and the number of features that depend on the config alone and are no bends
_OF_CONFIGS = 17  # 1, and the number of features that depend on the config
_BENDS = slice(10, 15)  # the features that are 0 up to a point, which is in their spans, and rise from there
_ALL = 1 << 31  # elements of a block that is as long as any size


def features_of(problem: Problem, known: Known) -> Doubles:
    """Return 1 and the features of a kernel with each config, a column each. Sizes and counts are logarithms to base 2.

    The features are: elements along x, along y, and of a step, warps, elements of a block, the lesser of x and y,
    elements of a thread, programs that an SM has at a time, steps, five bends of these, before they are bent, elements
    computed in vain along x and r, and those of the kernel.
    """
    x, y, r, terms = problem.x, problem.y, problem.r, [0.0, *_of_problem(problem)]
    for block_x, block_r, block_y, over in known.terms:
        terms.append(log2(-(-x // block_x) * -(-r // block_r) * -(-y // block_y) / (1, x, r)[over]))
    features: Doubles = known.features + np.array(terms)[known.places]
    return features


def _of_problem(problem: Problem) -> list[float]:
    x, y, r, loads = problem.x, problem.y, problem.r, problem.loads
    return [log2(x), log2(y), log2(r), log2(loads), log2(rounded_up(r) / r), *_IS_VARIANT[problem.op][problem.variant]]


_IS_VARIANT = {
    op: {variant: [float(variant == each) for each in VARIANTS[op]] for variant in VARIANTS[op]} for op in GENERATED
}
"""1 in the place of a variant among those of its op, and 0 in the others."""


def _scale(columns: Doubles, spans: Iterable[Doubles]) -> None:
    """Put columns of features in the units of a regression, within its spans."""
    least, most, mean, deviation = spans
    np.maximum(columns, least, out=columns)
    np.minimum(columns, most, out=columns)
    columns -= mean
    columns /= deviation


def _rounded_losses(scaled: Doubles, parts: Sequence[_OfTemplate]) -> Doubles:
    """Return the expected loss of each column, by the part it is in, rounded to be the same on any machine."""
    products = np.empty_like(scaled)
    for start, stop, matrix in parts:
        np.matmul(matrix, scaled[:, start:stop], out=products[:, start:stop])
    products *= scaled
    losses: Doubles = np.add.reduce(products, 0)
    np.rint(losses, out=losses)
    losses /= _UNITS
    return losses


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


def _waits(problem: Problem, loops: bool, config: Config) -> tuple[bool, int, int]:
    """Return whether a config has the other form, its steps, and a thread's elements in a step, from few on alike."""
    values = config.kernel.values(config.params)
    step = values.get("block_r") or rounded_up(problem.r)
    elements = values["block_x"] * step // (values["num_warps"] * 32)
    return _loops(config) != loops, -(-problem.r // step), max(elements, _FEW_ELEMENTS)


def _terms(features: Doubles) -> Doubles:
    """Return the products of two of 1 and the features, each pair once."""
    with_one = np.concatenate([np.ones((len(features), 1)), features], 1)
    first, second = np.triu_indices(with_one.shape[1])
    terms: Doubles = with_one[:, first] * with_one[:, second]
    return terms


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
