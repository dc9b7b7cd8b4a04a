"""What the sources say of a problem whose sizes may change, at sizes all over their range.

They are asked where rows begin and end, and at powers of two between. A config's time at a size is that over aten's: as
the row says that answers there, else as a model expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise, product
from math import log2
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
