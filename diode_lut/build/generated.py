"""Rows for the kernels that Inductor generates: ranges of sizes in which one config loses least.

Models seldom share such kernels, so rows are made for ranges of sizes. The problems of a variant are divided at a power
of two, where this saves most time, again and again until no division saves enough. The ranges of the parts cover all
sizes, so there is no miss. A single problem on which another config is clearly faster has a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.problem import MAX_SIZE, OP_SIZES, Problem
from diode_lut.table import Candidate, Entry, Range
from diode_lut.templates.config import DEFAULT, Config

Losses = npt.NDArray[np.float64]
"""By problem and config: the logarithm of time over the best time, NaN if it was not measured."""

LEAST_PROBLEMS = 4
"""Minimum number of problems of a part."""

LEAST_SAVING = 0.05
"""Minimum loss, summed over its problems, that a division of a part saves. Lower, rows follow noise."""

WORST_LOSS = 1.0
"""Larger losses count as this: such a config is out of the question, by however much."""

LEAST_SHARE = 0.6
"""Minimum share of a part's problems that were measured with its config."""

OTHER_FORM = 0.01
"""Minimum mean loss that the other form of a reduction must save where both were measured."""

CLEARLY_FASTER = 0.03
"""Minimum mean loss that a row for a single problem saves."""

LEAST_BOTH = 3
"""Minimum number of problems with both forms, to compare them."""


class _Area(NamedTuple):
    """Problems of a variant, by number, and the ranges of sizes that are theirs."""

    numbers: npt.NDArray[np.intp]
    ranges: Mapping[str, Range]


class _Kernels(NamedTuple):
    """The problems of an op and a variant, by number, and the losses of configs."""

    sizes: Mapping[str, npt.NDArray[np.int64]]
    configs: Sequence[Config]
    losses: Losses

    def bests(self, numbers: npt.NDArray[np.intp]) -> list[tuple[int, float]]:
        """Return the best config of each template, by number, and its summed loss.

        The template of most problems comes first. The next counts only for problems that were not measured with it.
        """
        found = []
        losses = self.losses[numbers]
        left = np.ones(len(numbers), np.bool_)
        by_template: dict[str, list[int]] = {}
        for place, config in enumerate(self.configs):
            by_template.setdefault(config.template, []).append(place)
        having = {name: ~np.isnan(losses[:, places]).all(axis=1) for name, places in by_template.items()}
        for name in sorted(having, key=lambda name: -int(having[name].sum())):
            own = left & having[name]
            if own.any():
                means = _means(losses[own][:, by_template[name]])
                best = int(means.argmin())
                found.append((by_template[name][best], float(means[best]) * int(own.sum())))
            left &= ~having[name]
        return found

    def loss(self, numbers: npt.NDArray[np.intp]) -> float:
        """Return the summed loss of the best configs."""
        return sum(loss for _, loss in self.bests(numbers))


def _means(losses: Losses, share: float = LEAST_SHARE) -> Losses:
    """Return each config's mean loss, infinite for a config that was measured on less than a share of the problems."""
    known = ~np.isnan(losses)
    counts = known.sum(axis=0)
    means = np.where(known, losses, 0).sum(axis=0) / np.maximum(counts, 1)
    found: Losses = np.where(counts >= max(share * len(losses), 1), means, np.inf)
    return found if np.isfinite(found).any() else np.where(counts == counts.max(), means, np.inf)


def kernel_rows(problems: Sequence[Problem], times: Sequence[Mapping[Config, float]]) -> list[Entry]:
    """Return the rows for the problems of one op and variant. ``times`` has each config's time on each problem."""
    configs = sorted({config for each in times for config in each if config != DEFAULT})
    losses = np.full((len(problems), len(configs)), np.nan)
    gains = losses.copy()
    for number, of_problem in enumerate(times):
        best = min(of_problem.values())
        for place, config in enumerate(configs):
            if config in of_problem:
                losses[number, place] = min(np.log(of_problem[config] / best), WORST_LOSS)
                gains[number, place] = np.log(of_problem.get(DEFAULT, np.nan) / of_problem[config])
    first = problems[0]
    sizes = {name: np.array([getattr(each, name) for each in problems], np.int64) for name in OP_SIZES[first.op]}
    measured = _Kernels(sizes, configs, losses)
    rows: list[Entry] = []
    for part in _divided(measured, _Area(np.arange(len(problems)), dict.fromkeys(sizes, (1, MAX_SIZE)))):
        chosen = list(_chosen(measured, part.numbers))
        candidates = tuple(Candidate(configs[place], _gain(gains[part.numbers, place])) for place in chosen)
        ranges: dict[str, Any] = {name: each for name, each in part.ranges.items() if each != (1, MAX_SIZE)}
        rows.append(_row(first, candidates, len(part.numbers))._replace(**ranges))
        rows += _exact(problems, measured, gains, part.numbers, chosen[0])
    return rows


def _row(problem: Problem, candidates: tuple[Candidate, ...], problems: int) -> Entry:
    """Return a row for all sizes of a problem's kind."""
    nothing = dict.fromkeys(("dtype", "layout", "align", "b", "m", "n", "k"))
    return Entry(problem.op, **nothing, candidates=candidates, problems=problems, variant=problem.variant)


def _exact(
    problems: Sequence[Problem], measured: _Kernels, gains: Losses, numbers: npt.NDArray[np.intp], chosen: int
) -> Iterator[Entry]:
    """Yield rows for single problems of a part on which another config is clearly faster than the part's config."""
    by_problem: dict[Problem, list[int]] = {}
    for number in numbers.tolist():
        by_problem.setdefault(problems[number], []).append(number)
    for problem, own in by_problem.items():
        means = _means(measured.losses[own], share=0)
        if means[chosen] - means.min() > CLEARLY_FASTER:
            sizes: dict[str, Any] = {name: (getattr(problem, name),) * 2 for name in measured.sizes}
            by_template: dict[str, int] = {}  # the best of each: a kernel with several reductions keeps its form
            for place in np.argsort(means, kind="stable")[: int(np.isfinite(means).sum())].tolist():
                by_template.setdefault(measured.configs[place].template, place)
            candidates = [
                Candidate(measured.configs[place], _gain(gains[own, place])) for place in by_template.values()
            ]
            yield _row(problem, tuple(candidates), len(own))._replace(**sizes)


def _divided(measured: _Kernels, part: _Area) -> Iterator[_Area]:
    """Yield the part, or the parts of its best division into two, which are divided again."""
    whole = measured.loss(part.numbers)
    best: tuple[float, str, int] = (whole - LEAST_SAVING, "", 0)
    for name, sizes in measured.sizes.items():
        own = sizes[part.numbers]
        for power in range(int(own.min()).bit_length() - 1, int(own.max() - 1).bit_length()):
            below = own <= 1 << power
            if min(below.sum(), (~below).sum()) >= LEAST_PROBLEMS:
                loss = measured.loss(part.numbers[below]) + measured.loss(part.numbers[~below])
                best = min(best, (loss, name, 1 << power))
    _, name, border = best
    if not name:
        yield part
        return
    below = measured.sizes[name][part.numbers] <= border
    low, high = part.ranges[name]
    yield from _divided(measured, _Area(part.numbers[below], {**part.ranges, name: (low, border)}))
    yield from _divided(measured, _Area(part.numbers[~below], {**part.ranges, name: (border + 1, high)}))


def _chosen(measured: _Kernels, numbers: npt.NDArray[np.intp]) -> Iterator[int]:
    """Yield the configs of a part's row, by number: the best, the best of the other form, and one with smaller blocks.

    The other form goes first if it is faster on the problems with both. The last config can run where the others
    cannot, such as in a kernel that needs more elements for each thread, or a persistent reduction of a longer r.
    """
    losses = measured.losses[numbers]
    (best, _), *more = measured.bests(numbers)
    template = measured.configs[best].template
    others = np.array([config.template != template for config in measured.configs])
    both = np.flatnonzero(~np.isnan(losses[:, others]).all(axis=1) & ~np.isnan(losses[:, best]))
    order = [best, *(place for place, _ in more)]
    if len(both) >= LEAST_BOTH:
        of_both = np.where(others, _means(losses[both]), np.inf)
        other = int(of_both.argmin())
        faster = float(losses[both, best].mean() - of_both[other]) > OTHER_FORM
        order = [other, best] if faster else [best, other]
    yield from order
    last = measured.configs[order[-1]]
    means = _means(losses)
    smaller = [
        place
        for place, config in enumerate(measured.configs)
        if config.template == last.template and _elements(config) < _elements(last) and np.isfinite(means[place])
    ]
    if smaller:
        yield min(smaller, key=lambda place: (means[place], place))


def _elements(config: Config) -> int:
    values = config.kernel.values(config.params)
    return int(np.prod([max(value, 1) for name, value in values.items() if name.startswith("block_")]))


def _gain(logarithms: Losses) -> int | None:
    """Return the geometric mean of gains in permille, or None if none was measured."""
    known = logarithms[~np.isnan(logarithms)]
    return round(1000 * float(np.exp(known.mean()))) if len(known) else None
