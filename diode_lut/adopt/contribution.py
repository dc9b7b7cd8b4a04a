"""The rest of a contribution: the model if there is enough for one, the report page, and a README with the figures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from diode_lut.adopt.adopt import Adopted, Folder
from diode_lut.adopt.verify import Report
from diode_lut.dataset import read_dataset
from diode_lut.distill import TrainingPlan, distill
from diode_lut.distill.validation import as_text
from diode_lut.domain.errors import ModelError, install_command
from diode_lut.evaluate import Evaluation, evaluate
from diode_lut.evaluate.evaluation import geometric_mean
from diode_lut.evaluate.formats import AsText
from diode_lut.io.files import write_atomically
from diode_lut.model.header import SUFFIX
from diode_lut.model.training_set import Split
from diode_lut.model.weights import write_model
from diode_lut.selection.catalog import open_table
from diode_lut.selection.tables import TableSource
from diode_lut.table.read import read_bytes

_WIDTH = 120
"""Width of the figures in columns."""


def complete(adopted: Adopted, folder: Folder, report: Report = lambda _: None) -> list[str]:
    """Write model, page and README beside the table and the dataset; returns the README's figures as lines."""
    model, figures = _distilled(adopted, report)
    file = read_bytes(adopted.table)
    table = open_table(adopted.table, file)
    evaluation = evaluate(TableSource(table), read_dataset(adopted.dataset))
    lines = [*_summary(adopted, evaluation, model), "", *_evaluated(evaluation), "", *figures]
    _write_page(adopted, evaluation, folder.contribution / "report.html", file, report)
    text = _README.format(
        hardware=adopted.hardware,
        table=adopted.table.relative_to(folder.contribution).as_posix(),
        figures="\n".join(lines),
    )
    write_atomically(folder.contribution / "README.md", text.encode())
    return lines


_README = """# {hardware}

Measured and built by `diode-lut adopt`. To use the table at once: `export DIODE_LUT_TABLES="$PWD/{table}"`.

To contribute it, let `diode-lut check --contribution .` pass in this directory, copy `tables/` into a clone of
diode_lut, and open a pull request with the figures below. docs/contributing-tables.md has the details. The check builds
the table from the dataset once more, and compares the two byte for byte.

## Figures

```
{figures}
```
"""


def _summary(adopted: Adopted, evaluation: Evaluation, model: Path | None) -> list[str]:
    drift, summary = adopted.drift, evaluation.summary
    noise = "not known, because too few kernels beat aten" if drift.noise is None else f"{drift.noise:.1%}"
    rows = len(adopted.built.table.entries)
    lines = [
        f"{adopted.hardware}: {summary.problems} problems, {rows} rows; problems not measured: {adopted.left}",
        f"gain over aten of all answers: {summary.gain or 1:.3f} (best possible: {summary.best_gain or 1:.3f})",
        f"answers other than aten that were measured again: {len(drift.rows)}",
        f"difference between two measurements of a gain: {noise}",
    ]
    again = geometric_mean(row.measured[0] for row in drift.rows if row.measured[0] > 0)
    recorded = geometric_mean(row.recorded for row in drift.rows if row.measured[0] > 0)
    if again and recorded:
        lines.append(
            f"gain of these answers: {recorded:.3f}, measured again {again:.3f}; drifted: {len(drift.drifted)}"
        )
    lines.append(f"clocks while measuring: {adopted.clocks}")
    return [*lines, f"model: {model.name}" if model else "model: none"]


def _evaluated(evaluation: Evaluation) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=_WIDTH, highlight=False).print(AsText(evaluation))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _distilled(adopted: Adopted, report: Report) -> tuple[Path | None, Sequence[str]]:
    """The model, if there is one that helps, and its figures or why there is none."""
    path = adopted.table.with_name(adopted.table.stem + ".mlp" + SUFFIX)
    path.unlink(missing_ok=True)  # an older run's, from other timings
    try:
        distilled = distill([read_dataset(adopted.dataset)], Split(0, 0.2), TrainingPlan(), report)
    except ModelError as error:
        return None, [f"no model: {error}"]
    figures = [line for name, each in distilled.validations.items() for line in as_text(name, each).splitlines()]
    answered = [each.answered() for each in distilled.validations.values()]
    gains = [1 / choice.time for validation in answered for choice in validation.choices]
    if (geometric_mean(gains) or 0.0) <= 1:
        return None, ["no model: on the problems kept for testing its answers are no faster than aten", *figures]
    write_model(distilled.model, path)
    return path, figures


def _write_page(adopted: Adopted, evaluation: Evaluation, path: Path, file: bytes, report: Report) -> None:
    if find_spec("vl_convert") is None:
        report(f"no report page: {install_command('report')}, then run again or use `diode-lut report`")
        return
    from diode_lut.report import Side, as_data, as_page

    link = adopted.table.relative_to(path.parent).as_posix()
    table = open_table(adopted.table, file)
    data = as_data(Side(table, evaluation, link, file), datasets=[adopted.dataset.name])
    write_atomically(path, as_page(data).encode())
