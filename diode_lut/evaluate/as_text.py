"""An evaluation as a table for people."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from diode_lut.evaluate.evaluation import SLOWER, Case, Evaluation, Summary
from diode_lut.printable import as_lines, printable

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


class AsText:
    """Prints the evaluation with rich."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        evaluation = self.evaluation
        table = Table(box=None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for name in _COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row("all", *_cells(evaluation.summary))
        for name, summaries in evaluation.groups.items():
            table.add_row(f"by {name}")
            for key, summary in summaries.items():
                table.add_row(Text(printable(f"  {key}")), *_cells(summary))
        yield table
        yield Text(_legend(evaluation))
        yield Text(as_lines(["worst:", *(f"  {_in_words(case)}" for case in evaluation.worst)]))


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
    unsolved = f" Problems on which nothing succeeded, left out: {evaluation.unsolved}." if evaluation.unsolved else ""
    return (
        f"gain: of the choices over {evaluation.against}; of best: the same of the best configs measured; regret: "
        f"against those; slower: by over {SLOWER:.0%} than {evaluation.against}. A miss counts as aten.{unsolved}"
    )


def _in_words(case: Case) -> str:
    return f"{case.regret:.2%} on {case.problem}: {case.choice} ({case.source}), best {case.best}"
