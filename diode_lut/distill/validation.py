"""Validation of a model on measured problems: its errors, its first choices, and the best of its first few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from diode_lut.distill.targets import Target
from diode_lut.domain.problem import Problem
from diode_lut.evaluate.evaluation import geometric_mean
from diode_lut.kernels.config import ATEN, Config
from diode_lut.model.ranking import GOOD, Model
from diode_lut.selection.sources import THRESHOLD, Threshold

TOPS = (1, 2, 3, 5, 10)
"""Numbers of first configs whose best is compared with the best measured config."""

SLOW = 1.1
"""First choices are slow if they take more than this many times as long as aten."""

_WORST_COUNT = 10
"""Number of worst choices that are listed."""

UNTIMED = math.log(1.5)
"""log(time / time of aten) that counts for a choice without a time, which was not timed or failed."""


class Choice(NamedTuple):
    """The first choice on one problem, with its confidence.

    ``time``, ``expected`` and ``best`` are times over aten's: of the choice as measured and as expected, and of the
    best config. ``failed`` says that the choice failed when it was measured; then its time follows from UNTIMED.
    ``timed`` says that the choice has a time; if not, ``time`` is the target's estimate, or UNTIMED.
    ``tops`` has, per number of TOPS, the time of the best of that many first configs over the best time. ``errors``
    are log(expected time / measured time) of the first configs.
    """

    problem: Problem
    config: Config
    best_config: Config
    time: float
    expected: float
    best: float
    confidence: float
    tops: tuple[float, ...]
    errors: tuple[float, ...]
    failed: bool
    timed: bool

    @property
    def good(self) -> bool:
        """Whether the choice is as close to the best as the confidence is about."""
        return self.tops[0] <= 1 + GOOD

    def replaced_by_aten(self) -> Choice:
        """Aten instead, unless this is aten, maybe with padded operands."""
        if self.config.template == ATEN.template:
            return self
        regret = 1 / self.best
        tops = (regret, *(min(regret, top) for top in self.tops[1:]))
        return self._replace(config=ATEN, time=1.0, expected=1.0, tops=tops, failed=False, timed=True)


class Validation(NamedTuple):
    """The choices on the problems that the model knows, worst first; ``unknown`` is the number of other problems."""

    choices: tuple[Choice, ...]
    unknown: int

    @property
    def rmse(self) -> float:
        """Root mean squared error of the logarithms of times over aten's, of the first configs of each ranking."""
        errors = [error for choice in self.choices for error in choice.errors]
        return math.sqrt(fmean(error * error for error in errors)) if errors else math.nan

    @property
    def tops(self) -> dict[int, float]:
        """Per number of TOPS: geometric mean of the best time among that many first configs over the best time."""
        return {top: _mean(choice.tops[index] for choice in self.choices) for index, top in enumerate(TOPS)}

    @property
    def gain(self) -> float:
        """Geometric mean of aten's times over those of the choices."""
        return _mean(1 / choice.time for choice in self.choices)

    @property
    def best_gain(self) -> float:
        """Geometric mean of aten's times over the best times."""
        return _mean(1 / choice.best for choice in self.choices)

    @property
    def slow(self) -> list[Choice]:
        """The choices that work, but are much slower than aten."""
        return [choice for choice in self.choices if choice.time > SLOW and not choice.failed]

    @property
    def failed(self) -> list[Choice]:
        """The choices that failed: no kernel, or wrong results."""
        return [choice for choice in self.choices if choice.failed]

    @property
    def worst(self) -> tuple[Choice, ...]:
        """The choices that failed, then those with the largest regret."""
        return self.choices[:_WORST_COUNT]

    def sure(self, confidence: float = THRESHOLD.confidence) -> Validation:
        """The validation of those choices that have at least this confidence."""
        return Validation(tuple(choice for choice in self.choices if choice.confidence >= confidence), self.unknown)

    def answered(self, threshold: Threshold = THRESHOLD) -> Validation:
        """The validation of those choices that reach the threshold: of what the hook uses, aten where it takes that."""
        met = (choice for choice in self.choices if threshold.reached(choice.confidence, choice.expected))
        used = (choice if threshold.is_clear(choice.expected) else choice.replaced_by_aten() for choice in met)
        return Validation(tuple(used), self.unknown)


def validate(model: Model, targets: Sequence[Target], *, padding: bool = False) -> Validation:
    """The validation of the model on the problems that it knows; the others are counted.

    With ``padding`` it chooses among configs with a ``pad`` as well, which the targets need times of.
    """
    choices = [choice for target in targets if (choice := _choice(model, target, padding=padding)) is not None]
    choices.sort(key=lambda choice: (not choice.failed, -choice.tops[0], choice.problem))
    return Validation(tuple(choices), len(targets) - len(choices))


def _choice(model: Model, target: Target, *, padding: bool) -> Choice | None:
    ranking = model.rank(target.problem, padding=padding)
    if ranking is None:
        return None
    measured = {**target.times, **target.padded} if padding else target.times
    best = min(measured, key=measured.__getitem__)
    expected = {**target.estimated, **measured}
    times = [expected.get(config, UNTIMED) for config in ranking.configs]
    ranked = islice(zip(ranking.configs, ranking.times, strict=True), TOPS[-1])
    pairs = ((measured.get(config), time) for config, time in ranked)
    return Choice(
        problem=target.problem,
        config=ranking.configs[0],
        best_config=best,
        time=math.exp(times[0]),
        expected=ranking.times[0],
        best=math.exp(measured[best]),
        confidence=ranking.confidence,
        tops=tuple(math.exp(min(times[:top]) - measured[best]) for top in TOPS),
        errors=tuple(math.log(time) - log_time for log_time, time in pairs if log_time is not None),
        failed=ranking.configs[0] in target.failed,
        timed=ranking.configs[0] in measured,
    )


def _mean(factors: Iterable[float]) -> float:
    return geometric_mean(factors) or math.nan
