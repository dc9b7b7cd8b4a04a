"""Validations as text, and training histories as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from diode_lut.distill.training import Epoch
from diode_lut.distill.validation import SLOW, Choice, Validation
from diode_lut.domain.printable import as_lines
from diode_lut.io.files import write_figure
from diode_lut.model.ranking import GOOD
from diode_lut.selection.sources import THRESHOLD


def as_text(name: str, validation: Validation) -> str:
    """All figures of one group of problems, and its worst, slow and failed choices."""
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
"""Fields of Epoch, each with the label of its axis."""


def save_history(histories: Mapping[str, list[Epoch]], path: Path, title: str) -> None:
    """Draw the loss and, if there is a test, the regret by epoch. The file's suffix is the format, such as ``.png``."""
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
