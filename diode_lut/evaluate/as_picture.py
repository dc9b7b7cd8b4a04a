"""An evaluation as a picture; matplotlib is needed, the optional extra ``report``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from diode_lut.evaluate.evaluation import Case, Evaluation
from diode_lut.picture import write_figure
from diode_lut.problem import Problem

_COLOURS = ("#0072b2", "#e69f00", "#999999", "#cc79a7")
"""Of the sources: told apart by colour-blind people, too."""


def save_picture(evaluation: Evaluation, path: Path, title: str) -> None:
    """Two panels, regret and gain by size, in a file whose name says the format, for example ``.png``."""
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    figure.suptitle(title)
    regret, gain = figure.subplots(1, 2)
    measured = [case for case in evaluation.cases if case.ns is not None]
    _draw_regret(regret, measured)
    _draw_gain(gain, measured, str(evaluation.against))
    write_figure(figure, path)


def _draw_regret(axes: Axes, cases: list[Case]) -> None:
    """The share of problems with at most a regret, one line for each who answered."""
    for (source, chosen), colour in zip(_by_source(cases).items(), _COLOURS, strict=False):
        regrets = np.sort([case.regret for case in chosen])
        shares = np.arange(1, len(regrets) + 1) / len(regrets)
        axes.step([0, *regrets], [0, *shares], where="post", color=colour, label=f"{source} ({len(chosen)})")
    axes.set(
        xlabel="regret against the best config measured", ylabel="share of problems with at most that", ylim=(0, 1)
    )
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(axes)


def _draw_gain(axes: Axes, cases: list[Case], against: str) -> None:
    """A point for each problem: its size, and how many times as fast as the baseline the choice is."""
    for (source, chosen), colour in zip(_by_source(cases).items(), _COLOURS, strict=False):
        points = [(_operations(case.problem), case.gain) for case in chosen if case.gain is not None]
        if points:
            axes.plot(*zip(*points, strict=True), ".", markersize=4, color=colour, alpha=0.6, label=source)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations", ylabel=f"gain over {against}")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _by_source(cases: list[Case]) -> dict[str, list[Case]]:
    sources = sorted({case.source for case in cases})
    return {source: [case for case in cases if case.source == source] for source in sources}


def _operations(problem: Problem) -> int:
    return 2 * problem.b * problem.m * problem.n * problem.k
