"""What a problem gets whose sizes may change: the config that is best over the range of the sizes, not at one of them.

The sizes that a compile happens to see first play no part, so compiles of one graph decide alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, combinations
from math import inf, isqrt, log
from typing import Any, NamedTuple

from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.samples import Axis, Sample, samples_over
from diode_lut.selection.selector import Decision, Selector
from diode_lut.selection.sources import Threshold

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
