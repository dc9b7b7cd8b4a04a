"""An evaluation as text, as JSON or as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from diode_lut.errors import as_lines, printable
from diode_lut.evaluate.evaluation import SLOWER, Case, Evaluation, Summary
from diode_lut.files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = (
    "problems",
    "covered",
    "gain",
    "of best",
    "regret",
    "worst",
    "<= 2 %",
    "<= 5 %",
    "slower",
    "failed",
    "not measured",
)


_LEAST_WIDTH = 6
"""Columns that each figure has at least: as many as 100.0% takes."""


class AsText:
    """Prints the evaluation with rich."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        evaluation = self.evaluation
        table = Table(box=None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for name in _COLUMNS:
            table.add_column(name, justify="right", min_width=_LEAST_WIDTH)
        table.add_row("all", *_cells(evaluation.summary))
        for name, summaries in evaluation.groups.items():
            if summaries:
                table.add_row(f"by {name}")
            for label, summary in _labelled(name, summaries):
                table.add_row(Text(printable(label)), *(_cells(summary) if summary else ()))
        yield table
        yield Text(_legend(evaluation))
        counts = (f"{name}: {count}" for name, count in evaluation.classes.items() if count)
        yield Text(f"problems by regret: {', '.join(counts)}")
        yield Text(as_lines(["worst:", *(f"  {_case_text(case)}" for case in evaluation.worst)]))


def _labelled(name: str, summaries: Mapping[str, Summary]) -> Iterator[tuple[str, Summary | None]]:
    """The labels of a group's lines; variants stand below a line for their op."""
    last = ""
    for key, summary in summaries.items():
        op, _, variant = key.partition(" ") if name == "variant" else ("", "", "")
        if op != last:
            last = op
            yield f"  {op}", None
        yield f"    {variant}" if variant else f"  {key}", summary


def _cells(summary: Summary) -> list[str]:
    return [
        str(summary.problems),
        _percent(summary.coverage),
        _factor(summary.gain),
        _factor(summary.best_gain),
        _percent(summary.regret, 2),
        _percent(summary.worst_regret, 2),
        _percent(summary.within_2),
        _percent(summary.within_5),
        str(summary.slower),
        str(summary.failed),
        str(summary.not_measured),
    ]


def _percent(fraction: float | None, digits: int = 1) -> str:
    return "-" if fraction is None else f"{fraction:.{digits}%}"


def _factor(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.3f}"


def _legend(evaluation: Evaluation) -> str:
    unsolved = f" Left out: {evaluation.unsolved} problems on which nothing succeeded." if evaluation.unsolved else ""
    against = evaluation.against
    return (
        f"gain: of the choices over {against}; of best: gain of the best configs measured; regret: against the best; "
        f"slower: than {against} by over {SLOWER:.0%}. A miss counts as {evaluation.usual}.{unsolved}"
    )


def _case_text(case: Case) -> str:
    return f"{case.regret:.2%} on {case.problem}: {case.choice} ({case.origin}), best {case.best}"


_DIGITS = 6
"""Digits after the point of fractions and factors."""


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """All figures and the worst problems. Fractions and factors have six digits, times are in nanoseconds."""
    return {
        "against": evaluation.against,
        "unsolved": evaluation.unsolved,
        "all": _figures(evaluation.summary),
        "by": {
            name: {key: _figures(summary) for key, summary in summaries.items()}
            for name, summaries in evaluation.groups.items()
        },
        "regret_classes": evaluation.classes,
        "worst": [_worst(case) for case in evaluation.worst],
    }


def _figures(summary: Summary) -> dict[str, float | None]:
    return {name: None if value is None else round(value, _DIGITS) for name, value in summary._asdict().items()}


def _worst(case: Case) -> dict[str, Any]:
    return {
        "problem": case.problem._asdict(),
        "source": case.origin,
        "choice": case.choice.to_json(),
        "ns": case.ns,
        "best": case.best.to_json(),
        "best_ns": case.best_ns,
        "baseline_ns": case.baseline_ns,
        "regret": round(case.regret, _DIGITS),
    }


_COLOURS = ("#0072b2", "#e69f00", "#999999", "#cc79a7")
"""Colours of the origins, which colour-blind people can tell apart."""


def save_picture(evaluation: Evaluation, path: Path, title: str) -> None:
    """Draw two panels, regret and gain by size. The file's suffix is the format, such as ``.png``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    figure.suptitle(title)
    regret, gain = figure.subplots(1, 2)
    measured = [case for case in evaluation.cases if case.ns is not None]
    _draw_regret(regret, measured)
    _draw_gain(gain, measured, evaluation.against)
    write_figure(figure, path)


def _draw_regret(axes: Axes, cases: list[Case]) -> None:
    """Draw the share of problems with at most a given regret, a line per origin."""
    from matplotlib.ticker import PercentFormatter

    for (source, chosen), colour in zip(_by_source(cases).items(), _COLOURS, strict=False):
        regrets = np.sort([case.regret for case in chosen])
        shares = np.arange(1, len(regrets) + 1) / len(regrets)
        axes.step([0, *regrets], [0, *shares], where="post", color=colour, label=f"{source} ({len(chosen)})")
    axes.set(
        xlabel="regret against the best config measured",
        ylabel="share of problems with at most that regret",
        ylim=(0, 1),
    )
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(axes)


def _draw_gain(axes: Axes, cases: list[Case], against: str) -> None:
    """Draw a point per problem: the gain over the baseline by the size of the problem."""
    from matplotlib.ticker import ScalarFormatter

    for (source, chosen), colour in zip(_by_source(cases).items(), _COLOURS, strict=False):
        points = [(case.problem.operations, case.gain) for case in chosen if case.gain is not None]
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
    sources = sorted({case.origin for case in cases})
    return {source: [case for case in cases if case.origin == source] for source in sources}
