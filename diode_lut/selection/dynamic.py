"""What a problem gets whose sizes may change: the config that is best over the range of the sizes, not at one of them.

The sources are asked at sizes all over the range: where rows begin and end, and at powers of two between. A config's
time at a size is that over aten's: as the row says that answers there, else as a model expects. The sizes that a
compile happens to see first play no part, so compiles of one graph decide alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, combinations, pairwise, product
from math import inf, isqrt, log, log2
from typing import Any, NamedTuple

from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.selector import Decision, Selector
from diode_lut.selection.sources import Threshold

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

SAFE_TIME = 1.01
"""Maximum time over aten's, as expected at any size in its part of the range, of a config that is taken."""

_NEAR = 2.0
"""A size at which nothing answers counts only if the sizes that are answered are further than this in log2."""

WORTH_A_KERNEL = 0.005
"""Minimum gain, on average over the range, for which another kernel is compiled."""

_FASTEST = 8
"""Number of the fastest configs at each size that are considered for all sizes."""

_MAX_CONFIGS = 5
"""Maximum number of configs in a decision; the others are for where the first cannot run."""


class Axis(NamedTuple):
    """Sizes of a problem that are always equal and may change: their fields, and the range; ``high`` None: no bound."""

    fields: tuple[str, ...]
    low: int
    high: int | None

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
    def answered(self) -> bool:
        """Whether a source says anything."""
        return bool(self.decision.configs) or len(self.times) > 1

    def distance(self, other: Sample) -> float:
        """How far apart the sizes are, in log2, summed over the axes."""
        return sum(abs(log2(one / two)) for one, two in zip(self.sizes, other.sizes, strict=True))


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
        return selector.select(problem, threshold, padding=padding).left_to_inductor(over)
    return best_over(samples, over)


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
    samples = [_only_for_dispatch(sample, library=library) for sample in samples]
    ends = _partition(samples, most)
    if len(ends) < 2:
        return ()
    pieces: list[Piece] = []
    low = axis.low
    for start, end in zip((0, *ends), ends, strict=False):
        part = samples[start:end]
        high = None if end == len(samples) else _border(part[-1].sizes[0], samples[end].sizes[0])
        over = str(axis._replace(low=low, high=high or axis.high))
        low = (high or 0) + 1
        decision = best_over(part, over)
        if not decision.configs and not library:
            return ()
        pieces.append(Piece(high, decision, decision.configs[0] if decision.configs else ATEN))
    return tuple(pieces) if len({piece.config for piece in pieces}) > 1 else ()


def _only_for_dispatch(sample: Sample, *, library: bool) -> Sample:
    times = {
        config: time
        for config, time in sample.times.items()
        if (library if config == ATEN else config.kernel.tiled and not config.kernel.tma)
    }
    return sample._replace(times=times)


def _border(below: int, above: int) -> int:
    """The largest size that is treated as ``below``: sizes up to the next power of two take as many tiles as that."""
    return below if above <= 2 * below else isqrt(below * above)


def _partition(samples: Sequence[Sample], most: int) -> tuple[int, ...]:
    """Where at most ``most`` pieces of the samples end that have the least cost; none if no config is safe somewhere.

    Each piece but the first must be worth a kernel.
    """
    count, price = len(samples), WORTH_A_KERNEL * sum(sample.weight for sample in samples)
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
        times = [sample.times[config] for sample in samples]
        before = list(
            accumulate((each.weight * log(time) for each, time in zip(samples, times, strict=True)), initial=0.0)
        )
        unsafe = list(accumulate((time > SAFE_TIME for time in times), initial=0))
        for start, end in combinations(places, 2):
            if unsafe[start] == unsafe[end]:
                costs[start, end] = min(costs[start, end], before[end] - before[start])
    return costs


def _safe(samples: Sequence[Sample]) -> list[Config]:
    configs = dict.fromkeys(config for sample in samples for config in sample.times)
    return [config for config in configs if all(sample.times[config] <= SAFE_TIME for sample in samples)]


def _cost(config: Config, samples: Sequence[Sample]) -> float:
    """The summed logarithms of its times: the regret, up to what is the same for all configs."""
    return sum(sample.weight * log(sample.times[config]) for sample in samples)


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
    known = {
        config: [each for each in samples if config in each.times] for config in dict.fromkeys((*chain(*fastest), ATEN))
    }
    return [
        sample._replace(times={config: _estimate(config, sample, known[config]) for config in known})
        for sample in samples
    ]


def _estimate(config: Config, sample: Sample, known: Sequence[Sample]) -> float:
    if config in sample.times:
        return sample.times[config]
    nearest = min(known, key=sample.distance)
    behind = nearest.times[config] / min(nearest.times.values())
    slower: float = behind * PER_OCTAVE ** sample.distance(nearest)
    return slower * min(sample.times.values())


def _that_count(samples: list[Sample], axes: Sequence[Axis]) -> list[Sample]:
    """Without the samples that say nothing and lie between others, or beyond them where there is no bound."""
    answered = [sample for sample in samples if sample.answered]
    if not answered:
        return []
    if len(axes) > 1:
        return samples if all(axis.high is not None for axis in axes) else answered
    (axis,) = axes
    largest = answered[-1].sizes[0]
    return [
        sample
        for sample in samples
        if sample.answered
        or not ((axis.high is None and sample.sizes[0] > largest) or min(map(sample.distance, answered)) <= _NEAR)
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
