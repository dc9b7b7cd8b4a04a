"""An evaluation as text, as JSON or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from diode_lut.errors import as_lines, printable
from diode_lut.evaluate.evaluation import SLOWER, Evaluation, Summary
from diode_lut.files import write_figure

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
"""Least width of a figure, for ``100.0%``."""


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
            above = ""
            for key, summary in summaries.items():  # variants stand below a line for their op
                op, _, variant = key.partition(" ") if name == "variant" else ("", "", "")
                if op != above:
                    above = op
                    table.add_row(Text(printable(f"  {op}")))
                table.add_row(Text(printable(f"    {variant}" if variant else f"  {key}")), *_cells(summary))
        yield table
        against, unsolved = evaluation.against, evaluation.unsolved
        left_out = f" Left out: {unsolved} problems on which nothing succeeded." if unsolved else ""
        yield Text(
            f"gain: of the choices over {against}; of best: gain of the best configs measured; regret: how much longer "
            f"the choices take than the best, on average; worst: on the one problem where it is most; slower: than "
            f"{against} by over {SLOWER:.0%}. A miss counts as {evaluation.usual}.{left_out}"
        )
        counts = (f"{name}: {count}" for name, count in evaluation.classes.items() if count)
        yield Text(f"problems by regret: {', '.join(counts)}")
        lines = ["problems with the largest regret:"]
        for case in evaluation.worst:
            choice = f"{case.choice} ({case.origin}), best {case.best}"
            lines.append(f"  {case.regret:.2%} on {case.problem}: {choice}")
        yield Text(as_lines(lines))


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


_DIGITS = 6
"""Number of digits after the point of fractions and factors."""


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return all figures and the worst problems. Fractions and factors have six digits, times are in nanoseconds."""
    return {
        "against": evaluation.against,
        "unsolved": evaluation.unsolved,
        "all": _figures(evaluation.summary),
        "by": {
            name: {key: _figures(summary) for key, summary in summaries.items()}
            for name, summaries in evaluation.groups.items()
        },
        "regret_classes": evaluation.classes,
        "worst": [
            {
                "problem": case.problem._asdict(),
                "source": case.origin,
                "choice": case.choice.to_json(),
                "ns": case.ns,
                "best": case.best.to_json(),
                "best_ns": case.best_ns,
                "baseline_ns": case.baseline_ns,
                "regret": round(case.regret, _DIGITS),
            }
            for case in evaluation.worst
        ],
    }


def _figures(summary: Summary) -> dict[str, float | None]:
    return {name: None if value is None else round(value, _DIGITS) for name, value in summary._asdict().items()}


_COLOURS = ("#0072b2", "#e69f00", "#999999", "#cc79a7")
"""Colours of the origins, which colour-blind people can tell apart."""


def save_picture(evaluation: Evaluation, path: Path, title: str) -> None:
    """Draw two panels: shares of problems by regret, and gains by size. The suffix is the format, such as ``.png``."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter, ScalarFormatter

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    figure.suptitle(title)
    regret, gain = figure.subplots(1, 2)
    measured = [case for case in evaluation.cases if case.ns is not None]
    for origin, colour in zip(sorted({case.origin for case in measured}), _COLOURS, strict=False):
        cases = [case for case in measured if case.origin == origin]
        regrets = np.sort([case.regret for case in cases])
        shares = np.arange(1, len(regrets) + 1) / len(regrets)
        regret.step([0, *regrets], [0, *shares], where="post", color=colour, label=f"{origin} ({len(cases)})")
        points = [(case.problem.operations, case.gain) for case in cases if case.gain is not None]
        if points:
            gain.plot(*zip(*points, strict=True), ".", markersize=4, color=colour, alpha=0.6, label=origin)
    regret.set(
        xlabel="regret against the best config measured",
        ylabel="share of problems with at most that regret",
        ylim=(0, 1),
    )
    regret.xaxis.set_major_formatter(PercentFormatter(1))
    regret.yaxis.set_major_formatter(PercentFormatter(1))
    gain.axhline(1, color="black", linewidth=0.8)
    gain.set(xscale="log", yscale="log", xlabel="floating-point operations", ylabel=f"gain over {evaluation.against}")
    gain.yaxis.set_major_formatter(ScalarFormatter())
    gain.yaxis.set_minor_formatter(ScalarFormatter())
    for axes in (regret, gain):
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    write_figure(figure, path)
