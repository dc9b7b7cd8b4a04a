"""The command ``evaluate``: a table's, a model's or a function's choices against the best on measured problems."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from diode_lut.cli.output import STANDARD, is_standard, progress_bars, say, write
from diode_lut.cli.typed import FIGURES, FILE, PICTURE_OUTPUT, TABLE, Output, Typed
from diode_lut.domain.errors import ProblemError, SettingError, install_command
from diode_lut.domain.printable import as_command
from diode_lut.io.files import require_writable
from diode_lut.kernels.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset, Record
    from diode_lut.domain.hardware import Hardware
    from diode_lut.evaluate import Evaluation
    from diode_lut.evaluate.evaluation import ReferenceKernels
    from diode_lut.model.ranking import Model
    from diode_lut.selection.sources import Source

_WIDTH = 120
"""Width of the output in columns if it is not a terminal."""


@click.command("evaluate")
@click.argument("files", metavar="[TABLE] DATASET...", nargs=-1, required=True, type=TABLE)
@click.option(
    "--model",
    "model_file",
    metavar="FILE",
    type=TABLE,
    help="Evaluate this model instead of a table, on the problems that it was not trained on.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="With --model: use all problems, for datasets that the model was not trained on at all.",
)
@click.option(
    "--chooser",
    "function",
    metavar="MODULE:FUNCTION",
    help="Evaluate this function, as register_chooser takes it, instead of a table.",
)
@click.option(
    "--against",
    metavar="CONFIG|FILE",
    default=str(ATEN),
    show_default=True,
    help="The baseline of gains: a config, written as explain writes it; or a max-autotune solution file of "
    "torch-diode, of whose kernels the fastest counts.",
)
@click.option(
    "--json", "json_file", metavar="FILE", type=Output(FIGURES), help="Write the figures to this file as well."
)
@click.option(
    "--picture", metavar="FILE", type=PICTURE_OUTPUT, help="Draw regrets and gains in this .png, .svg or .pdf file."
)
def evaluate_command(
    files: tuple[Typed, ...],
    model_file: Typed | None,
    everything: bool,
    function: str | None,
    against: str,
    json_file: Path | None,
    picture: Path | None,
) -> None:
    """Compare a table's choices with the best measured kernels.

    It shows the gain over aten and the regret of the first choice for each problem in the datasets. A miss counts as
    aten. For attention, default stands for aten. With --model or --chooser it evaluates a model or a function instead.
    A model misses a problem if its answer is below both DIODE_LUT_CONFIDENCE_THRESHOLD and DIODE_LUT_GAIN_THRESHOLD.
    """
    from rich.console import Console

    from diode_lut.cli.inputs import end_with_losses
    from diode_lut.evaluate import evaluate
    from diode_lut.evaluate.formats import AsText
    from diode_lut.selection.sources import Threshold
    from diode_lut.settings import config

    if everything and model_file is None:
        raise click.UsageError("--all needs --model: tables and functions are always evaluated on all problems.")
    if model_file is not None and function is not None:
        raise click.UsageError("--model and --chooser exclude each other.")
    subject, datasets = _subject(files, model_file, function)
    baseline = _baseline(against)
    if picture is not None:
        check_picture(picture)
    if json_file is not None and not json_file.parent.is_dir():
        raise click.UsageError(f"{json_file.parent}: no such directory to write the figures to")
    with progress_bars() as progress:
        records = (record for each in datasets for record in progress.track(each, each.path.name))
        measured = _measured(subject.source, everything, records)
        evaluation = evaluate(subject.source, measured, baseline, Threshold.of(config))
    on_stderr = json_file is not None and is_standard(json_file)
    width = None if sys.stdout.isatty() else _WIDTH
    Console(width=width, highlight=False, stderr=on_stderr).print(AsText(evaluation))
    if json_file is not None:
        _write_json(json_file, evaluation, subject, datasets)
    if picture is not None:
        from diode_lut.evaluate.formats import save_picture

        save_picture(evaluation, picture, f"{subject.name} on {', '.join(each.path.name for each in datasets)}")
    end_with_losses(datasets)


def _baseline(against: str) -> ReferenceKernels | str:
    """The solution file of this name; else the config, as it was typed; ProblemError if it is neither."""
    from diode_lut.evaluate.solutions import read_solution

    if against == STANDARD or Path(against).is_file():
        typed = FILE.convert(against, None, click.get_current_context())
        return read_solution(typed.path, typed.contents)
    try:
        Config.parse(against)
    except ProblemError as error:
        raise ProblemError(f"--against {against}: no such file, and no config: {error}") from error
    return against


class _Subject(NamedTuple):
    """What is evaluated, which is a ``kind`` of source, and for which hardware."""

    kind: str
    name: str
    source: Source
    hardware: Hardware


def _subject(
    files: tuple[Typed, ...], model_file: Typed | None, function: str | None
) -> tuple[_Subject, Sequence[Dataset]]:
    """What to evaluate, and on which datasets."""
    from diode_lut.cli.inputs import read_datasets_alike, read_datasets_answered_by
    from diode_lut.selection.catalog import is_model, open_model, open_table
    from diode_lut.selection.chooser import Chooser, ChooserSource, load_function
    from diode_lut.selection.tiers import source_of

    named = next((each.shipped_as for each in files if each.shipped_as), "")
    if named and (function is not None or model_file is not None):
        raise click.UsageError(f"{named}: a table; with --model or --chooser only datasets are given")
    if function is not None:
        chooser = Chooser(load_function(function), function)
        datasets, device = read_datasets_alike(files)
        return _Subject("chooser", function, ChooserSource(chooser, device), device), datasets
    if model_file is not None:
        model = open_model(model_file.file)
        datasets = read_datasets_answered_by(model, files)
        return _Subject("model", model_file.path.name, source_of(model), model.hardware), datasets
    table_file, *inputs = files
    if is_model(table_file.path):
        raise click.UsageError(f"{table_file.path}: a model is evaluated by {as_command('--model', table_file.path)}")
    if not inputs:
        raise click.UsageError("Missing argument 'DATASET...'.")
    table = open_table(table_file.path, table_file.contents)
    datasets = read_datasets_answered_by(table, inputs)
    return _Subject("table", table_file.path.name, source_of(table), table.hardware), datasets


def _measured(source: Source, everything: bool, records: Iterable[Record]) -> Iterable[Record]:
    """The records to evaluate on.

    A model or a function can choose any config, so the times of both stages count. For a model these are only the
    unseen problems.
    """
    from diode_lut.dataset.pack import combined
    from diode_lut.selection.models import ModelSource
    from diode_lut.selection.tables import TableSource

    if isinstance(source, TableSource):
        return records
    if isinstance(source, ModelSource) and not everything:
        records = _unseen(source.model, records)
    return combined(records)


def _unseen(model: Model, records: Iterable[Record]) -> Iterator[Record]:
    """The records of problems that the model was not trained on; the number of other problems is printed.

    DatasetError is raised at the end if there are only other problems.
    """
    from diode_lut.domain.errors import DatasetError
    from diode_lut.model.training_set import TRAIN

    left_out, unseen = set(), 0
    for record in records:
        if model.split.group(record.problem) == TRAIN:
            left_out.add(record.problem)
        else:
            unseen += 1
            yield record
    if left_out and not unseen:
        raise DatasetError("the model may have been trained on all of these problems: --all includes them")
    if left_out:
        say(
            f"left out: {len(left_out)} problems that the model may have been trained on (--all includes them)",
            err=True,
        )


def check_picture(path: Path) -> None:
    """Check before any work that a picture can be drawn and written; SettingError, UsageError or OSError if not."""
    if not path.parent.is_dir():
        raise click.UsageError(f"{path.parent}: no such directory to write the picture to")
    require_writable(path)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise SettingError(f"--picture needs matplotlib: {install_command('report')}") from error
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise SettingError(f"--picture: {path.name}: the name must end with one of .{', .'.join(sorted(formats))}")


def _write_json(path: Path, evaluation: Evaluation, subject: _Subject, datasets: Sequence[Dataset]) -> None:
    import orjson

    from diode_lut.evaluate.formats import as_json

    source = subject.source
    origin: dict[str, Any] = {
        subject.kind: subject.name if subject.kind == "chooser" else f"sha256:{source.digest}",
        "datasets": [f"sha256:{dataset.digest}" for dataset in datasets],
        "hardware": str(subject.hardware),
        **({"rows": source.rows} if subject.kind == "table" else {}),
    }
    write(path, orjson.dumps({**origin, **as_json(evaluation)}, option=orjson.OPT_INDENT_2) + b"\n")
