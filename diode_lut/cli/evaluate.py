"""The command ``evaluate``: a table's, a model's or a function's choices against the best on measured problems."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from diode_lut.cli.arguments import FIGURES, FILE, PAGE_OUTPUT, PICTURE_OUTPUT, RECEIPT, TABLE, Output, Typed
from diode_lut.cli.output import STANDARD, is_standard, progress_bars, say, write
from diode_lut.errors import ProblemError, SettingError, as_command, install_command, printable
from diode_lut.files import require_writable
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.build.measurements import Measurements
    from diode_lut.dataset import Dataset, Record
    from diode_lut.decide.sources import Source
    from diode_lut.evaluate import Evaluation
    from diode_lut.evaluate.evaluation import ReferenceKernels
    from diode_lut.hardware import Hardware
    from diode_lut.model.ranking import Model
    from diode_lut.report import Asked, Side
    from diode_lut.table import Table


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

    from diode_lut.cli.arguments import end_with_losses
    from diode_lut.decide.sources import Threshold
    from diode_lut.evaluate import evaluate
    from diode_lut.evaluate.formats import AsText
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
    from diode_lut.evaluate.evaluation import read_solution

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
    from diode_lut.cli.arguments import read_datasets_alike, read_datasets_answered_by
    from diode_lut.decide.catalog import is_model, open_model, open_table
    from diode_lut.decide.choosers import Chooser, ChooserSource, load_function
    from diode_lut.decide.sources import source_of

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
    from diode_lut.dataset.write import combined
    from diode_lut.decide.sources import ModelSource, TableSource

    if isinstance(source, TableSource):
        return records
    if isinstance(source, ModelSource) and not everything:
        records = _unseen(source.model, records)
    return combined(records)


def _unseen(model: Model, records: Iterable[Record]) -> Iterator[Record]:
    """The records of problems that the model was not trained on; the number of other problems is printed.

    DatasetError is raised at the end if there are only other problems.
    """
    from diode_lut.errors import DatasetError
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


@click.command("report")
@click.argument("table_file", metavar="TABLE", type=TABLE)
@click.argument("inputs", metavar="[DATASET]...", nargs=-1, type=FILE)
@click.option("-o", "--output", metavar="OUT", required=True, type=PAGE_OUTPUT, help="The page to write: NAME.html.")
@click.option(
    "--beside",
    metavar="FILE",
    type=TABLE,
    help="Another table for the same device, or a model: the page shows both side by side.",
)
@click.option(
    "--receipt",
    "receipts",
    metavar="FILE",
    multiple=True,
    type=FILE,
    help="Show on the map what programs asked for, by this receipt. Can be given several times.",
)
@click.option(
    "--link-base",
    metavar="URL",
    help="URL of the table's directory, for links to the table's lines: "
    "https://github.com/OWNER/NAME/blob/main/tables.  [default: relative to OUT]",
)
def report_command(
    table_file: Typed,
    inputs: tuple[Typed, ...],
    output: Path,
    beside: Typed | None,
    receipts: tuple[Typed, ...],
    link_base: str | None,
) -> None:
    """Write an HTML page that shows what a table covers and gains.

    The page shows which sizes each row covers, which template wins, and the gain over aten. With datasets it also shows
    each measured problem and the regret of its answer. The page needs no network.
    """
    from diode_lut.cli.arguments import end_with_losses, read_datasets_for, require_same_device
    from diode_lut.decide.catalog import open_table
    from diode_lut.table.read import read_bytes

    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the page to")
    file = table_file.read(read_bytes)
    table = open_table(table_file.path, file)
    datasets = read_datasets_for(table, inputs)
    try:
        from diode_lut.report import Side, as_data, as_page
    except ModuleNotFoundError as error:
        raise SettingError(f"report needs {error.name}: {install_command('report')}") from error
    measurements = _measurements(datasets)
    sides = [Side(table, _evaluation(table, measurements), _link(table_file.path, output, link_base), file)]
    if beside is not None:
        sides.append(_beside(beside, measurements, _link(beside.path, output, link_base)))
        require_same_device(datasets, sides[1].chooser)
    with progress_bars() as progress:
        data = as_data(
            sides[0],
            beside=sides[1] if sides[1:] else None,
            datasets=[dataset.path.name for dataset in datasets],
            asked=_asked(receipts, table.hardware) if receipts else (),
            track=lambda problems: progress.track(problems, "model", len(problems)),
        )
    page = as_page(data)
    write(output, page.encode())
    problems = f", {len(sides[0].cases)} problems" if datasets else ""
    say(
        printable(f"{output}: {len(table.entries)} rows{problems}, {len(page.encode())} bytes"), err=is_standard(output)
    )
    end_with_losses(datasets)


def _measurements(datasets: list[Dataset]) -> Measurements | None:
    """The timings of all datasets, combined; None without any."""
    from diode_lut.build.measurements import measurements_of

    if not datasets:
        return None
    with progress_bars() as progress:
        return measurements_of(record for each in datasets for record in progress.track(each, each.path.name))


def _evaluation(chooser: Table | Model, measurements: Measurements | None) -> Evaluation | None:
    """The evaluation on all measured problems; None without any."""
    from diode_lut.decide.sources import Threshold, source_of
    from diode_lut.evaluate import evaluate_on
    from diode_lut.settings import config

    if measurements is None:
        return None
    return evaluate_on(source_of(chooser), measurements, threshold=Threshold.of(config))


def _beside(typed: Typed, measurements: Measurements | None, link: str) -> Side:
    from diode_lut.decide.catalog import is_model, open_model, open_table
    from diode_lut.report import Side
    from diode_lut.table.read import read_bytes

    if is_model(typed.path):
        model = open_model(typed.file)
        return Side(model, _evaluation(model, measurements))
    file = typed.read(read_bytes)
    table = open_table(typed.path, file)
    return Side(table, _evaluation(table, measurements), link, file)


def _asked(receipts: tuple[Typed, ...], hardware: Hardware) -> list[Asked]:
    """What programs asked for on devices of this architecture, the most frequent first; ReceiptError if nothing."""
    from diode_lut.errors import ReceiptError
    from diode_lut.receipts.read import read_receipt
    from diode_lut.receipts.receipt import merge_receipts
    from diode_lut.report import Asked

    merged = merge_receipts(read_receipt(*each[:2]) for each in receipts)
    devices = [device for found, device in merged.devices.items() if found.same_arch(hardware)]
    hits = [Asked(hit.problem, calls, hit.tier) for each in devices for hit, calls in each.hits.items()]
    misses = [Asked(miss.problem, calls, "") for each in devices for miss, calls in each.misses.items()]
    if not hits and not misses:
        found = ", ".join(map(str, merged.devices)) or "no device"
        raise ReceiptError(f"{receipts[0].path}: nothing was asked on {hardware} (the receipt is of: {found})")
    return sorted([*hits, *misses], key=lambda asked: (-asked.calls, asked))


def _link(table_file: Path, output: Path, base: str | None) -> str:
    """The URL of the table's file, for links on the page."""
    if base is not None:
        return f"{base.rstrip('/')}/{quote(table_file.name)}"
    return quote(Path(os.path.relpath(table_file.resolve(), output.resolve().parent)).as_posix())


_FORMATS = {"text": "diode_lut.receipts.summary:as_text", "json": "diode_lut.receipts.summary:as_json"}


@click.command("receipt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--output", "-o", type=Output(RECEIPT), help="Write the sum as one receipt to this file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="A report for people, or JSON with the figures and all misses.",
)
def receipt_command(files: tuple[Typed, ...], output: Path | None, form: str) -> None:
    """Sum up what programs asked, what was answered, and what was missed.

    A program writes a receipt if it runs with DIODE_LUT_RECEIPT=FILE, or under `run`. For each device the report shows
    how many calls each table and model answered, and the misses, by the time that they may have cost: an estimate from
    a roofline and from what the model expects to save. `collect --problems` takes receipts.
    """
    from diode_lut.receipts.read import read_receipt
    from diode_lut.receipts.receipt import merge_receipts, receipt_bytes

    merged = merge_receipts(read_receipt(*each[:2]) for each in files)
    if output is not None:
        write(output, receipt_bytes(merged))
    say(resolve_name(_FORMATS[form])(merged), err=output is not None and is_standard(output))
