"""Validation of a model on measured problems, as figures, as text, and as a picture of its training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from diode_lut.decide.sources import THRESHOLD, Threshold
from diode_lut.distill.examples import Target
from diode_lut.distill.training import Epoch
from diode_lut.errors import as_lines
from diode_lut.evaluate import geometric_mean
from diode_lut.files import write_figure
from diode_lut.model.ranking import GOOD, Model
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

TOPS = (1, 2, 3, 5, 10)
"""Numbers of first configs whose best is compared with the best measured config."""

SLOW = 1.1
"""First choices are slow if they take more than this many times as long as aten."""

_WORST_COUNT = 10
"""Number of choices in the list of the worst."""

UNTIMED = math.log(1.5)
"""log(time / time of aten) assumed for a choice that was not timed or failed."""


class Choice(NamedTuple):
    """The first choice on a problem, with its confidence.

    ``time``, ``expected`` and ``best`` are times over aten's: of the choice as measured and as expected, and of the
    best config. If the choice ``failed`` when it was measured, its time follows from UNTIMED. If it was not ``timed``,
    ``time`` is the target's estimate, or UNTIMED. ``tops`` has for each of TOPS the best time among so many first
    configs over the best time. ``errors`` are log(expected time / measured time) of the first configs.
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
        """Whether the choice is within GOOD of the best, which the confidence is about."""
        return self.tops[0] <= 1 + GOOD

    def replaced_by_aten(self) -> Choice:
        """Return aten instead, unless this is aten, perhaps with padded operands."""
        if self.config.template == ATEN.template:
            return self
        regret = 1 / self.best
        tops = (regret, *(min(regret, top) for top in self.tops[1:]))
        return self._replace(config=ATEN, time=1.0, expected=1.0, tops=tops, failed=False, timed=True)


class Validation(NamedTuple):
    """The choices on the problems known to the model, worst first. ``unknown`` is the number of other problems."""

    choices: tuple[Choice, ...]
    unknown: int

    @property
    def rmse(self) -> float:
        """Root mean squared error of the logarithms of times over aten's, of the first configs of each ranking."""
        errors = [error for choice in self.choices for error in choice.errors]
        return math.sqrt(fmean(error * error for error in errors)) if errors else math.nan

    @property
    def tops(self) -> dict[int, float]:
        """For each of TOPS: geometric mean of the best time among so many first configs over the best time."""
        return {top: _mean(choice.tops[index] for choice in self.choices) for index, top in enumerate(TOPS)}

    @property
    def gain(self) -> float:
        """Geometric mean of aten's times over the choices' times."""
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
        """The failed choices, then those with the largest regret."""
        return self.choices[:_WORST_COUNT]

    def sure(self, confidence: float = THRESHOLD.confidence) -> Validation:
        """Return the validation of the choices with at least this confidence."""
        return Validation(tuple(choice for choice in self.choices if choice.confidence >= confidence), self.unknown)

    def answered(self, threshold: Threshold = THRESHOLD) -> Validation:
        """Return the validation of the choices that reach the threshold, with aten where the hook takes it."""
        met = (choice for choice in self.choices if threshold.reached(choice.confidence, choice.expected))
        used = (choice if threshold.is_clear(choice.expected) else choice.replaced_by_aten() for choice in met)
        return Validation(tuple(used), self.unknown)


def validate(model: Model, targets: Sequence[Target], *, padding: bool = False) -> Validation:
    """Validate the model on the problems it knows, and count the others.

    With ``padding`` it chooses among configs with a ``pad`` as well, of which the targets need times.
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


def as_text(name: str, validation: Validation) -> str:
    """Return all figures of a group of problems, and its worst, slow and failed choices."""
    return as_lines(_lines(name, validation))


def _lines(name: str, validation: Validation) -> Iterator[str]:
    count = len(validation.choices)
    yield f"{name}: {count} problems" + (
        f", and {validation.unknown} that the model does not know" if validation.unknown else ""
    )
    if not count:
        return
    yield f"  RMSE of log time: {validation.rmse:.3f}"
    tops = ", ".join(f"top {top}: {factor:.4f}" for top, factor in validation.tops.items())
    yield f"  time over the best measured: {tops}"
    yield f"  first choice: {_figures(validation)}"
    parts = {
        f"with confidence {THRESHOLD.confidence}": validation.sure(),
        f"or where a gain of {THRESHOLD.gain:.0%} is expected": validation.answered(),
    }
    for which, part in parts.items():
        if part.choices:
            yield f"  {which}: {len(part.choices) / count:.1%} answered, {_figures(part)}"
    yield "  worst:"
    yield from (f"    {_choice_text(choice)}" for choice in validation.worst)
    if validation.slow:
        yield f"  more than {SLOW} times as long as aten: {len(validation.slow)}, of which answered:"
        yield from (f"    {_choice_text(choice)}" for choice in validation.answered().slow)
    if validation.failed:
        yield f"  failed: {len(validation.failed)}, of which answered: {len(validation.answered().failed)}"
        yield from (f"    {_choice_text(choice)}" for choice in validation.failed)


def _figures(validation: Validation) -> str:
    good = sum(choice.good for choice in validation.choices) / len(validation.choices)
    untimed = sum(not choice.timed for choice in validation.choices)
    worst = max((choice.time for choice in validation.choices if not choice.failed), default=math.nan)
    return (
        f"{good:.1%} within {GOOD:.0%} of the best, gain over aten {validation.gain:.3f}, "
        f"of the best {validation.best_gain:.3f}, worst {worst:.2f} times as long as aten"
        f"{f', {untimed} without a time of their own' if untimed else ''}"
    )


def _choice_text(choice: Choice) -> str:
    regret, time = f"{choice.tops[0] - 1:.1%}", f"{choice.time:.3f} of aten's time"
    return (
        f"{'failed' if choice.failed else regret} on {choice.problem}: {choice.config}, "
        f"{'no time' if choice.failed else time} (expected {choice.expected:.3f}, confidence {choice.confidence:.3f}), "
        f"best {choice.best_config}, {choice.best:.3f}"
    )


_PANELS = (("loss", "mean loss in training"), ("regret", "mean regret on the test problems"))
"""Fields of Epoch with the labels of their axes."""


def save_history(histories: Mapping[str, list[Epoch]], path: Path, title: str) -> None:
    """Draw the loss and, if there is a test, the regret by epoch. The suffix is the format, such as ``.png``."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, ScalarFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    tested = not all(math.isnan(epoch.regret) for history in histories.values() for epoch in history)
    panels = [_PANELS[0], *([_PANELS[1]] if tested else [])]
    for axes, (field, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, history in histories.items():
            values = [getattr(epoch, field) for epoch in history]
            axes.plot(range(1, len(history) + 1), values, marker=".", label=name)
        axes.set(xlabel="epoch", ylabel=label, yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(PercentFormatter(1) if field == "regret" else ScalarFormatter())
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    write_figure(figure, path)
