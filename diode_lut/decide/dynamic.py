"""What the sources say of a problem whose sizes may change, at sizes all over their range.

They are asked where rows begin and end, and at powers of two between. A config's time at a size is that over aten's: as
the row says that answers there, else as a model expects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, combinations, pairwise, product
from math import inf, isqrt, log, log2
from typing import Any, NamedTuple

from diode_lut.decide.selector import Decision, Selector
from diode_lut.decide.sources import Threshold
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

MAX_SIZE_SAMPLED = 1 << 16
"""The largest size at which the sources are asked, unless a bound or a row has a larger one."""

MAX_SAMPLES = 256
"""Maximum number of combinations of sizes at which the sources are asked, where several sizes may change.

Estimating what no source has a time for takes the square of that.
"""

MAX_BORDERS = 64
"""Maximum number of sizes at which rows begin or end that are taken along one axis."""

PER_OCTAVE = 1.1
"""Factor by which a config is taken to fall behind the fastest, per factor of two away from sizes with a known time."""

_NEAR = 2.0
"""A size at which nothing answers counts only if the sizes that are answered are further than this in log2."""

_FASTEST = 8
"""Number of the fastest configs at each size that are considered for all sizes."""


class Axis(NamedTuple):
    """Sizes of a problem that are always equal and may change: their fields, and the range; ``high`` None: no bound."""

    fields: tuple[str, ...]
    low: int
    high: int | None

    def nearest(self, size: int) -> int:
        """The size in the range that is nearest to this one."""
        return max(self.low, size if self.high is None else min(size, self.high))

    def __str__(self) -> str:
        names = " = ".join(self.fields)
        return f"{names} from {self.low}" if self.high is None else f"{names} from {self.low} to {self.high}"


class Sample(NamedTuple):
    """What is known at one combination of sizes: the decision there, and times over aten's of the configs."""

    sizes: tuple[int, ...]
    decision: Decision
    times: Mapping[Config, float]
    weight: float

    @property
    def size(self) -> int:
        """The size, where there is a single axis."""
        (size,) = self.sizes
        return size

    @property
    def answered(self) -> bool:
        """Whether a source says anything."""
        return bool(self.decision.configs) or len(self.times) > 1

    def distance(self, other: Sample) -> float:
        """How far apart the sizes are, in log2, summed over the axes; rounded, to be the same on every machine."""
        return round(sum(abs(log2(one / two)) for one, two in zip(self.sizes, other.sizes, strict=True)), 9)


def samples_over(
    selector: Selector, problem: Problem, axes: Sequence[Axis], threshold: Threshold, *, padding: bool
) -> list[Sample]:
    """The samples in the axes' ranges, in order of sizes, that have something to say; none if no source answers any.

    Without an upper bound, the range ends where the sources do.
    """
    alone = len(axes) == 1
    along = [_sizes(selector, problem, axis, 1 if alone else 2) for axis in axes]
    if not alone:
        along = [_thinned(sizes, int(MAX_SAMPLES ** (1 / len(axes)))) for sizes in along]
    weights = [_weights(sizes) for sizes in along]
    samples = []
    for places in product(*(range(len(sizes)) for sizes in along)):
        sizes = tuple(each[place] for each, place in zip(along, places, strict=True))
        weight = min(each[place] for each, place in zip(weights, places, strict=True))
        changed: dict[str, Any] = {name: size for axis, size in zip(axes, sizes, strict=True) for name in axis.fields}
        there = problem._replace(**changed)
        decision, times = selector.times(there, threshold, padding=padding)
        samples.append(Sample(sizes, decision, times, weight))
    return _completed(_that_count(samples, axes))


def _completed(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with times of all configs that are among the fastest at some sizes, by estimates where unknown.

    Only what an answer at some size names is taken: where tables answer, no config of a model. A config without a time
    is taken to be further behind the fastest than at the nearest sizes for which it has one: tiles that are far larger
    than a matrix have none, for example.
    """
    named = {config for sample in samples for config in sample.decision.configs}
    fastest = (
        sorted(filter(named.__contains__, sample.times), key=sample.times.__getitem__)[:_FASTEST] for sample in samples
    )
    configs = dict.fromkeys((*chain(*fastest), ATEN))
    least = {sample.sizes: min(sample.times.values()) for sample in samples}
    completed = []
    for sample in samples:
        complete = configs.keys() <= sample.times.keys()
        nearest = [sample] if complete else sorted(samples, key=sample.distance)
        times = {}
        for config in configs:
            known = next(each for each in nearest if config in each.times)
            slower = PER_OCTAVE ** sample.distance(known) * least[sample.sizes] / least[known.sizes]
            times[config] = known.times[config] * slower
        completed.append(sample._replace(times=times))
    return completed


def _that_count(samples: list[Sample], axes: Sequence[Axis]) -> list[Sample]:
    """Without the samples that say nothing and lie between others, or beyond them where there is no bound."""
    answered = [sample for sample in samples if sample.answered]
    if not answered:
        return []
    if len(axes) > 1:
        return samples if all(axis.high is not None for axis in axes) else answered
    (axis,) = axes
    largest = answered[-1].size
    return [
        sample
        for sample in samples
        if sample.answered
        or not ((axis.high is None and sample.size > largest) or min(map(sample.distance, answered)) <= _NEAR)
    ]


def _sizes(selector: Selector, problem: Problem, axis: Axis, step: int) -> list[int]:
    """The sizes along an axis at which the sources are asked, upwards; between rows, powers of ``2**step``."""
    borders = sorted(selector.borders(problem, axis.fields))
    borders = borders[:: len(borders) // MAX_BORDERS + 1]
    high = max([axis.low, MAX_SIZE_SAMPLED, *borders]) if axis.high is None else axis.high
    powers = [1 << exponent for exponent in range(0, high.bit_length(), step)]
    ends = [axis.low] if axis.high is None else [axis.low, high]
    return sorted({*ends, *(size for size in (*powers, *borders) if axis.low <= size <= high)})


def _thinned(sizes: list[int], most: int) -> list[int]:
    """At most this many of the sizes, with the first and the last one, and in even steps between them."""
    if len(sizes) <= most:
        return sizes
    return [sizes[round(place * (len(sizes) - 1) / (most - 1))] for place in range(most)]


def _weights(sizes: Sequence[int]) -> list[float]:
    """The part of the range, in log2, that is nearest to each size."""
    places = list(map(log2, sizes))
    edges = [places[0], *((a + b) / 2 for a, b in pairwise(places)), places[-1]]
    widths = [after - before for before, after in pairwise(edges)]
    return widths if any(widths) else [1.0]


SAFE_TIME = 1.01
"""Maximum time over aten's, as expected at any size in its part of the range, of a config that is taken."""

WORTH_A_KERNEL = 0.005
"""Minimum gain, on average over the range, for which another kernel is compiled."""

_UNIT = 1e-9
"""Unit of regrets. Sums of whole numbers are exact, so configs that are equally good are so on every machine."""

_MAX_CONFIGS = 5
"""Maximum number of configs in a decision; the others are for where the first cannot run."""


def decide_over(
    selector: Selector, problem: Problem, axes: Sequence[Axis], threshold: Threshold, *, padding: bool
) -> Decision:
    """The decision for all sizes in the axes' ranges: the config with the least summed regret over them.

    A config is safe if it is nowhere expected to need more than SAFE_TIME; aten is always safe. The problem's own sizes
    along the axes count only in the decision that leaves everything to Inductor, where no source says anything about
    any size. Where most of what is measured was not measured with padding, what a model expects of padding at other
    sizes does not count.
    """
    samples = samples_over(selector, problem, axes, threshold, padding=padding)
    if padding and sum(map(_compared, samples)) < 0:
        samples = samples_over(selector, problem, axes, threshold, padding=False)
    over = ", ".join(map(str, axes))
    if not samples:
        inside: dict[str, Any] = {name: axis.nearest(getattr(problem, name)) for axis in axes for name in axis.fields}
        return selector.select(problem._replace(**inside), threshold, padding=padding).left_to_inductor(over)
    first = dict.fromkeys(sample.decision.configs[0] for sample in samples if sample.decision.configs)
    left_out = tuple(config for config in first if _loses_constants(config, problem, axes))
    samples = _only(samples, lambda config: not _loses_constants(config, problem, axes))
    return best_over(samples, over)._replace(left_out=left_out)


def _loses_constants(config: Config, problem: Problem, axes: Sequence[Axis]) -> bool:
    """Whether a size that may change is a constant in the kernel that was timed, so that another is compiled."""
    constants = config.kernel.constants(problem.layout)
    return any(name in constants for axis in axes for name in axis.fields)


def _only(samples: Sequence[Sample], keeps: Callable[[Config], bool]) -> list[Sample]:
    """The samples with the times of those configs that can be taken."""
    configs = dict.fromkeys(config for sample in samples for config in sample.times)
    kept = set(filter(keeps, configs))
    return [
        sample._replace(times={config: time for config, time in sample.times.items() if config in kept})
        for sample in samples
    ]


def _compared(sample: Sample) -> float:
    """The sample's weight, negative if what answers has not compared padding; 0 if a model answers, or nothing."""
    answer = sample.decision.answer
    if answer is None or answer.ranking is not None:
        return 0.0
    return sample.weight if any(config.pad > 1 for config in answer.configs) else -sample.weight


def best_over(samples: Sequence[Sample], over: str) -> Decision:
    """The decision for all of these samples, as that of a sample at which its first config answers, if there is one."""
    configs = sorted(_safe(samples), key=lambda config: (_cost(config, samples), config != ATEN))[:_MAX_CONFIGS]
    configs = configs[: configs.index(ATEN) + 1] if ATEN in configs else configs
    by_weight = sorted(samples, key=lambda sample: -sample.weight)
    answering = [each.decision for each in by_weight if each.decision.configs]
    if not answering:  # all sources abstain everywhere
        return by_weight[0].decision._replace(over=over)
    agreeing = (each for each in answering if each.configs[0] == configs[0])
    return next(agreeing, answering[0])._replace(configs=tuple(configs), over=over)


class Piece(NamedTuple):
    """A part of the range along one axis: the largest size in it, None for no end, and what is decided for it."""

    high: int | None
    decision: Decision
    config: Config


def pieces_over(
    selector: Selector, problem: Problem, axis: Axis, threshold: Threshold, most: int, *, library: bool
) -> tuple[Piece, ...]:
    """At most ``most`` pieces with the least summed regret, each with its config; none if one config is as good.

    Configs whose kernels a dispatch cannot run are left out, and aten too, unless ``library``.
    """
    samples = samples_over(selector, problem, (axis,), threshold, padding=False)
    samples = _only(samples, lambda config: library if config == ATEN else _dispatches(config, problem, axis))
    ends = _partition(samples, most)
    if len(ends) < 2:
        return ()
    pieces: list[Piece] = []
    low = axis.low
    for start, end in zip((0, *ends), ends, strict=False):
        part = samples[start:end]
        high = None if end == len(samples) else _border(part[-1].size, samples[end].size)
        over = str(axis._replace(low=low, high=high or axis.high))
        low = (high or 0) + 1
        decision = best_over(part, over)
        if not decision.configs and not library:
            return ()
        pieces.append(Piece(high, decision, decision.configs[0] if decision.configs else ATEN))
    return tuple(pieces) if len({piece.config for piece in pieces}) > 1 else ()


def _dispatches(config: Config, problem: Problem, axis: Axis) -> bool:
    """Whether a dispatch can run the kernel of a config, and it is the one that was timed."""
    return config.kernel.tiled and not config.kernel.tma and not _loses_constants(config, problem, (axis,))


def _border(below: int, above: int) -> int:
    """The largest size that is treated as ``below``: sizes up to the next power of two take as many tiles as that."""
    return below if above <= 2 * below else isqrt(below * above)


def _partition(samples: Sequence[Sample], most: int) -> tuple[int, ...]:
    """Where at most ``most`` pieces of the samples end that have the least cost; none if no config is safe somewhere.

    Each piece but the first must be worth a kernel.
    """
    count, price = len(samples), round(WORTH_A_KERNEL * sum(sample.weight for sample in samples) / _UNIT)
    costs = _costs(samples)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(most):
        longer = [
            (before + costs[start, end] + price, end, (*ends, end))
            for start, (before, ends) in best.items()
            for end in range(start + 1, count + 1)
        ]
        for cost, end, ends in longer:
            if cost < best.get(end, (inf, ()))[0]:
                best = {**best, end: (cost, ends)}
    return best.get(count, (inf, ()))[1]


def _costs(samples: Sequence[Sample]) -> dict[tuple[int, int], float]:
    """The least cost of a config that is safe from one sample to before another, for all pairs; inf if none is safe."""
    places, costs = range(len(samples) + 1), defaultdict[tuple[int, int], float](lambda: inf)
    for config in dict.fromkeys(config for sample in samples for config in sample.times):
        before = list(accumulate((_loss(config, sample) for sample in samples), initial=0))
        unsafe = list(accumulate((sample.times[config] > SAFE_TIME for sample in samples), initial=0))
        for start, end in combinations(places, 2):
            if unsafe[start] == unsafe[end]:
                costs[start, end] = min(costs[start, end], before[end] - before[start])
    return costs


def _safe(samples: Sequence[Sample]) -> list[Config]:
    configs = dict.fromkeys(config for sample in samples for config in sample.times)
    return [config for config in configs if all(sample.times[config] <= SAFE_TIME for sample in samples)]


def _cost(config: Config, samples: Sequence[Sample]) -> int:
    """The summed logarithms of its times: the regret, up to what is the same for all configs."""
    return sum(_loss(config, sample) for sample in samples)


def _loss(config: Config, sample: Sample) -> int:
    """The logarithm of its time in multiples of _UNIT."""
    return round(sample.weight * log(sample.times[config]) / _UNIT)
