"""Rows for generated kernels and joined matmuls: ranges of sizes in which one config loses least.

Models seldom share such kernels, so rows are made for ranges of sizes. The problems of a variant are divided at a power
of two, where this saves most time, again and again until no division saves enough. A row covers the measured sizes of
its part, up to the next power of two: beyond, its config may take several times as long as Inductor's. Smaller flat
kernels are covered too, because they take little time whatever their config. A single problem on which another config
is clearly faster has a row of its own.

Joined matmuls were measured at sizes further apart: their rows go on to the next measured size. Between measured sizes
of more than 64 rows of A, the last tiles of a kernel may leave processors idle. So a row for a range joins them only if
the kernel was faster by more than that costs, at each measured size. A row for a single size may always join them.

A form of reduction that was not measured has the config that a regression expects to lose least, without a gain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.hardware import Hardware
from diode_lut.model.generated import KernelModel, Times, fit_kernels
from diode_lut.problem import JOINED, MAX_SIZE, OP_SIZES, SPLIT, TOGETHER, Problem
from diode_lut.table import Candidate, Entry, Range
from diode_lut.templates.config import DEFAULT, Config

Losses = npt.NDArray[np.float64]  # by problem and config: log of time over the best time, NaN if not measured
LEAST_PROBLEMS = 2  # minimum number of problems of a part
LEAST_SAVING = 0.12
"""Minimum loss, summed over its problems, that a division of a part saves. Lower, rows follow noise.

On programs that were held out, 0.08 to 0.14 are as good. With 0.2, 36 of 200 models had kernels over 0.5 % slower than
by Inductor's benchmarks, and with 0.12 30.
"""

LEAST_SAVING_ONCE = 0.2  # the same of SPLIT and TOGETHER, whose times are no means of two
WORST_LOSS = 1.0  # larger losses count as this: such a config is out of the question, by however much

LEAST_SHARE = 0.95
"""Minimum share of a part's problems that were measured with its config. Kernels differ more than their problems tell,
so a config that few were measured with may take several times as long with the others."""

LEAST_SHARE_TOGETHER = 0.8  # the same of TOGETHER, whose time follows from their sizes

OTHER_FORM = 0.02
"""Minimum mean loss that the other form of a reduction must save where both were measured: as much as two measurements
differ by. With 0.01, sums of one row, 1.7 % faster in a loop, made loops of norms of up to 64 rows, which took twice as
long."""

OF_FUSIONS = 0.1
"""Minimum mean loss that another split of a reduction saves than Inductor's, because a split also decides what is fused
with the reduction. With 0.03, a training step of a Llama took 0.7 % longer."""

OF_TOGETHER = 0.05  # the same of TOGETHER, into which nothing is fused, and of which few sizes were measured
MOST_ROWS = 64  # maximum M of joined matmuls whose tiles leave no processors idle between measured sizes
IDLE = 1.32  # greatest time of joined over apart, at 17 sizes between measured ones on an H200 (1.12 on average)
CLEARLY_FASTER = 0.02  # minimum mean loss that a row for a single problem saves


class _Area(NamedTuple):
    """Problems of a variant, by number, and the ranges of sizes that are theirs."""

    numbers: npt.NDArray[np.intp]
    ranges: Mapping[str, Range]


class _Kernels(NamedTuple):
    """The problems of an op and a variant, by number, and the losses of configs."""

    sizes: Mapping[str, npt.NDArray[np.int64]]
    configs: Sequence[Config]
    losses: Losses
    share: float
    saving: float

    def form(self, config: Config) -> str:
        """Return the config's template. All configs of a split have one form."""
        return "" if DEFAULT in self.configs else config.template

    def bests(self, numbers: npt.NDArray[np.intp]) -> list[tuple[int, float]]:
        """Return the best config of each form, by number, and its summed loss; the form of most problems first."""
        losses = self.losses[numbers]
        by_form: dict[str, list[int]] = {}
        for place, config in enumerate(self.configs):
            by_form.setdefault(self.form(config), []).append(place)
        found = []
        for places in by_form.values():
            own = losses[~np.isnan(losses[:, places]).all(axis=1)][:, places]
            if len(own):
                means = _means(own, self.share)
                best = int(means.argmin())
                found.append((len(own), places[best], float(means[best]) * len(own)))
        return [(place, loss) for _, place, loss in sorted(found, key=lambda each: -each[0])]

    def loss(self, numbers: npt.NDArray[np.intp]) -> float:
        """Return the summed loss of the best configs."""
        return sum(loss for _, loss in self.bests(numbers))


def _means(losses: Losses, share: float) -> Losses:
    """Return each config's mean loss, infinite for a config that was measured on less than a share of the problems."""
    known = ~np.isnan(losses)
    counts = known.sum(axis=0)
    means = np.where(known, losses, 0).sum(axis=0) / np.maximum(counts, 1)
    found: Losses = np.where(counts >= max(share * len(losses), 1), means, np.inf)
    return found if np.isfinite(found).any() else np.where(counts == counts.max(), means, np.inf)


def rows_of_kernels(measured: Times, hardware: Hardware) -> list[Entry]:
    """Return the rows for generated kernels and TOGETHER, by problems with each config's time. Kernels count singly."""
    by_kind: defaultdict[tuple[object, ...], list[tuple[Problem, Mapping[Config, float]]]] = defaultdict(list)
    for problem, times in sorted(measured, key=lambda each: (each[0], sorted(each[1].items()))):
        by_kind[problem.kind].append((problem, times))
    expected = fit_kernels([each for each in measured if each[0].op not in TOGETHER], hardware)
    rows: list[Entry] = []
    for (op, *_), of_kind in by_kind.items():
        model = None if op in TOGETHER else expected
        rows += kernel_rows([problem for problem, _ in of_kind], [times for _, times in of_kind], model)
    return rows


def kernel_rows(
    problems: Sequence[Problem], times: Sequence[Mapping[Config, float]], expected: KernelModel | None = None
) -> list[Entry]:
    """Return the rows of one kind, by each config's time on each problem; ``expected`` is for forms not measured."""
    op, dtype, layout, align, _, variant = problems[0].kind
    with_default, margin = op in (SPLIT, *TOGETHER), OF_TOGETHER if op in TOGETHER else OF_FUSIONS
    configs = sorted({config for each in times for config in each if config != DEFAULT or with_default})
    losses = np.full((len(problems), len(configs)), np.nan)
    gains = losses.copy()
    for number, of_problem in enumerate(times):
        best = min(of_problem.values())
        for place, config in enumerate(configs):
            if config in of_problem:
                losses[number, place] = min(np.log(of_problem[config] / best), WORST_LOSS)
                losses[number, place] -= margin if config == DEFAULT else 0
                gains[number, place] = np.log(of_problem.get(DEFAULT, np.nan) / of_problem[config])
    anything = Entry(op, None, None, None, None, None, None, None, candidates=(), variant=variant)
    if op in TOGETHER:
        anything = anything._replace(dtype=dtype, layout=layout, align=align)
    names = [name for name in OP_SIZES[op] if (name, variant) != ("y", "flat")]
    sizes = {name: np.array([getattr(each, name) for each in problems], np.int64) for name in names}
    share = LEAST_SHARE_TOGETHER if op in TOGETHER else LEAST_SHARE
    measured = _Kernels(sizes, configs, losses, share, LEAST_SAVING_ONCE if with_default else LEAST_SAVING)
    rows: list[Entry] = []
    for part in _divided(measured, _Area(np.arange(len(problems)), dict.fromkeys(sizes, (1, MAX_SIZE)))):
        chosen = list(_chosen(measured, part.numbers))
        if op in JOINED and int(sizes["m"][part.numbers].max()) > MOST_ROWS and DEFAULT in configs:
            least = np.nanmin(gains[part.numbers, chosen[0]])
            chosen = chosen if least > np.log(IDLE) else [configs.index(DEFAULT)]
        candidates = tuple(Candidate(configs[place], _gain(gains[part.numbers, place])) for place in chosen)
        ranges: dict[str, Any] = {}
        for name, (low, high) in part.ranges.items():
            powers = [(int(size) - 1).bit_length() for size in np.unique(sizes[name][part.numbers])]
            ends_before = (variant, name) == ("flat", "x") or (op in JOINED and (low > 1 or name == "m"))
            low = low if ends_before else max(low, (1 << powers[0]) // 2 + 1)
            ranges[name] = low, min(high, 1 << powers[-1])
        row = anything._replace(candidates=candidates, problems=len(part.numbers), **ranges)
        for each, own in ((row, part.numbers.tolist()), *_exact(problems, measured, gains, part.numbers, row)):
            # The last is expected to lose least on all problems in the form that no other config of the row has.
            lost = [expected.losses(problems[number]) for number in own] if expected is not None else [{}]
            forms = {config.template for config in each.configs}
            others = [config for config in set(lost[0]).intersection(*lost) if config.template not in forms]
            sums = {config: sum(of_problem[config] for of_problem in lost) for config in others}
            last = [Candidate(min((total, config) for config, total in sums.items())[1])] if sums else []
            rows.append(each._replace(candidates=(*each.candidates, *last)))
    return rows


def _exact(
    problems: Sequence[Problem], measured: _Kernels, gains: Losses, numbers: npt.NDArray[np.intp], of_part: Entry
) -> Iterator[tuple[Entry, list[int]]]:
    """Yield rows for single sizes of a part at which another config is clearly faster than the config of its row.

    Configs of each form are compared, because a kernel with several reductions keeps its form. The rows have the part's
    range of ``loads``. With each are the numbers of its problems.
    """
    usual = {measured.form(config): measured.configs.index(config) for config in reversed(of_part.configs)}
    by_problem: dict[Problem, list[int]] = {}
    for number in numbers.tolist():
        by_problem.setdefault(problems[number]._replace(loads=1), []).append(number)
    for problem, own in by_problem.items():
        means = _means(measured.losses[own], share=0)
        places = _forms(measured, np.array(own))
        pairs = [(place, usual.get(measured.form(measured.configs[place]))) for place in places]
        pairs.append((places[0], measured.configs.index(of_part.best.config)))
        if any(other is None or means[other] - means[place] > CLEARLY_FASTER for place, other in pairs):
            sizes: dict[str, Any] = {name: (getattr(problem, name),) * 2 for name in measured.sizes if name != "loads"}
            candidates = tuple(Candidate(measured.configs[place], _gain(gains[own, place])) for place in places)
            yield of_part._replace(candidates=candidates, problems=len(own), **sizes), own


def _divided(measured: _Kernels, part: _Area) -> Iterator[_Area]:
    """Yield the part, or the parts of its best division into two, which are divided again."""
    whole = measured.loss(part.numbers)
    best: tuple[float, str, int] = (whole - measured.saving, "", 0)
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


def _forms(measured: _Kernels, numbers: npt.NDArray[np.intp]) -> list[int]:
    """Return the best config of each form, by number: the form of most problems first, unless another is faster."""
    order = [place for place, _ in measured.bests(numbers)]
    both = measured.losses[numbers][:, order]
    both = both[~np.isnan(both).any(axis=1)]
    if len(both) and both[:, 0].mean() - both[:, -1].mean() > OTHER_FORM:
        order.reverse()
    return order


def _chosen(measured: _Kernels, numbers: npt.NDArray[np.intp]) -> Iterator[int]:
    """Yield the configs of a part's row, by number: the best of each form, and one with smaller blocks.

    The last config can run where the others cannot, such as in a kernel that needs more elements for each thread, or a
    persistent reduction of a longer r.
    """
    order = _forms(measured, numbers)
    yield from order
    last = measured.configs[order[-1]]
    means = _means(measured.losses[numbers], measured.share)
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
