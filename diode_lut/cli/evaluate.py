"""``evaluate``, ``report`` and ``receipt``: the quality of choices, and the questions of programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from diode_lut.cli import arguments
from diode_lut.cli.output import (
    PAGE,
    PIPE_WIDTH,
    RECEIPT,
    STANDARD,
    TEXT_OR_JSON,
    Output,
    format_option,
    is_standard,
    output_option,
    progress_bars,
    say,
    write,
)
from diode_lut.errors import (
    DatasetError,
    ProblemError,
    ReceiptError,
    SettingError,
    as_command,
    counted,
    install_command,
    printable,
)
from diode_lut.settings import config
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset, Record
    from diode_lut.decide.sources import Source
    from diode_lut.evaluate import ReferenceKernels
    from diode_lut.hardware import Hardware
    from diode_lut.model.ranking import Model
    from diode_lut.report import AskedProblem, Side
    from diode_lut.table import Table


@click.command("evaluate")
@click.argument("files", metavar="[TABLE] DATASET...", nargs=-1, required=True, type=arguments.TABLE)
@arguments.table_option(
    "--model", "model_file", help="Evaluate this model instead of a table, on the problems that it was not trained on."
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
    help="The baseline of gains: a config, written as explain writes it; or a max-autotune solution file of "
    "torch-diode, of whose kernels the fastest counts.",
)
@TEXT_OR_JSON
def evaluate_command(
    files: tuple[arguments.Typed, ...],
    model_file: arguments.Typed | None,
    everything: bool,
    function: str | None,
    against: str,
    form: str,
) -> int:
    """Compare a table's choices with the best measured kernels.

    It shows the gain over aten and the regret of the first choice for each problem in the datasets. A miss counts as
    aten. For attention and generated kernels, default, which is what Inductor would try first, stands for aten. With
    --model or --chooser it evaluates a model or a function instead. A model misses a problem if its answer is below
    both DIODE_LUT_CONFIDENCE_THRESHOLD and DIODE_LUT_GAIN_THRESHOLD.
    """
    from rich.console import Console

    from diode_lut import errors
    from diode_lut.build.measurements import combined
    from diode_lut.decide.sources import ModelSource, TableSource, Threshold
    from diode_lut.evaluate import as_columns, as_json, evaluate
    from diode_lut.formats.other_tools import read_solution

    if everything and model_file is None:
        raise click.UsageError("--all needs --model: tables and functions are always evaluated on all problems.")
    if model_file is not None and function is not None:
        raise click.UsageError("--model and --chooser exclude each other.")
    source, datasets = _subject(files, model_file, function)
    baseline: ReferenceKernels | str = against
    if against == STANDARD or Path(against).is_file():
        solution = arguments.FILE.convert(against, None, click.get_current_context())
        baseline = read_solution(solution.path, solution.contents)
    else:
        try:
            Config.parse(against)
        except ProblemError as error:
            raise ProblemError(f"--against {against}: no such file, and no config: {error}") from error
    measured: Iterable[Record] = arguments.records_of(datasets)
    if isinstance(source, ModelSource) and not everything:
        measured = _unseen(source.model, measured)
    if not isinstance(source, TableSource):  # it may choose any config, so the times of both stages count
        measured = combined(measured)
    evaluation = evaluate(source, measured, baseline, Threshold.of(config))
    if isinstance(source, TableSource):
        _say_missing(source.table, datasets)
    if form == "text":
        Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(as_columns(evaluation))
    else:
        kind = "chooser" if function else "model" if model_file else "table"
        origin: dict[str, Any] = {
            kind: function or f"sha256:{source.digest}",
            "datasets": [f"sha256:{dataset.digest}" for dataset in datasets],
            "hardware": str(source.hardware),
            **({"rows": source.rows} if kind == "table" else {}),
        }
        say(errors.as_json({**origin, **as_json(evaluation)}))
    return arguments.say_losses(datasets)


def _subject(
    files: tuple[arguments.Typed, ...], model_file: arguments.Typed | None, function: str | None
) -> tuple[Source, Sequence[Dataset]]:
    """Open the source to evaluate, and its datasets."""
    from diode_lut.decide.catalog import is_model, open_model, open_table
    from diode_lut.decide.choosers import Chooser, ChooserSource, load_function
    from diode_lut.decide.sources import source_of

    named = next((each.shipped_as for each in files if each.shipped_as), "")
    if named and (function is not None or model_file is not None):
        raise click.UsageError(f"{named}: a table; with --model or --chooser only datasets are given")
    if function is not None:
        chooser = Chooser(load_function(function), function, generated=True)
        first, *others = datasets = arguments.read_datasets(files)
        device = first.header.hardware
        for each in others:
            found = each.header.hardware
            if not found.same_device(device):
                raise DatasetError(f"{each.path}: measured on {found}, but {first.path} on {device}")
        return ChooserSource(chooser, device), datasets
    if model_file is not None:
        model = open_model(model_file.file)
        return source_of(model), arguments.read_datasets_answered_by(model, files)
    table_file, *inputs = files
    if is_model(table_file.path):
        raise click.UsageError(f"{table_file.path}: a model is evaluated by {as_command('--model', table_file.path)}")
    if not inputs:
        raise click.UsageError("Missing argument 'DATASET...'.")
    table = open_table(table_file.path, table_file.contents)
    return source_of(table), arguments.read_datasets_answered_by(table, inputs)


def _unseen(model: Model, records: Iterable[Record]) -> Iterator[Record]:
    """Yield records outside of the model's training, and count the others in a note. DatasetError if all are others."""
    from diode_lut.model import TRAIN

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
        trained = f"{counted(len(left_out), 'problem')} that the model may have been trained on"
        say(f"left out: {trained} (--all includes them)", err=True)


@click.command("report")
@click.argument("table_file", metavar="TABLE", type=arguments.TABLE)
@click.argument("inputs", metavar="[DATASET]...", nargs=-1, type=arguments.FILE)
@output_option(type=Output(PAGE, ".html"), help="The page to write: NAME.html.")
@arguments.table_option(
    "--beside", help="Another table for the same device, or a model: the page shows both side by side."
)
@arguments.files_option(
    "--receipt",
    "receipts",
    help="Show on the map what programs asked for, by this receipt. Can be given several times.",
)
@click.option(
    "--link-base",
    metavar="URL",
    help="URL of the table's directory, for links to the table's lines: "
    "https://github.com/OWNER/NAME/blob/main/tables.  [default: relative to OUT]",
)
def report_command(
    table_file: arguments.Typed,
    inputs: tuple[arguments.Typed, ...],
    output: Path,
    beside: arguments.Typed | None,
    receipts: tuple[arguments.Typed, ...],
    link_base: str | None,
) -> int:
    """Write an HTML page of the coverage and the gains of a table.

    The page shows which sizes each row covers, which template wins, and the gain over aten, for attention
    and generated kernels over what Inductor would try first. With datasets it also shows each measured problem and the
    regret of its answer. The page needs no network.
    """
    from diode_lut.build.measurements import measurements_of
    from diode_lut.decide.catalog import is_model, open_model, open_table
    from diode_lut.decide.sources import Threshold, source_of
    from diode_lut.evaluate import evaluate
    from diode_lut.table import read_bytes

    contents = table_file.read(read_bytes)
    table = open_table(table_file.path, contents)
    datasets = arguments.read_datasets_for(table, inputs)
    try:
        from diode_lut.report import Side, as_data, as_page
    except ModuleNotFoundError as error:
        raise SettingError(f"report needs {error.name}: {install_command('report')}") from error
    measurements = measurements_of(arguments.records_of(datasets)) if datasets else None

    def side(chooser: Table | Model, file: Path, contents: bytes | None) -> Side:
        evaluation = None
        if measurements is not None:
            evaluation = evaluate(source_of(chooser), measurements, threshold=Threshold.of(config))
        link = quote(Path(os.path.relpath(file.resolve(), output.resolve().parent)).as_posix())
        if link_base is not None:
            link = f"{link_base.rstrip('/')}/{quote(file.name)}"
        return Side(chooser, evaluation, link if contents else "", contents)

    first, other = side(table, table_file.path, contents), None
    if beside is not None and is_model(beside.path):
        other = side(open_model(beside.file), beside.path, None)
    elif beside is not None:
        contents = beside.read(read_bytes)
        other = side(open_table(beside.path, contents), beside.path, contents)
    if other is not None:
        arguments.require_same_device(datasets, other.chooser)
    missing = _say_missing(table, datasets) if datasets else 0
    with progress_bars() as progress:
        data = as_data(
            first,
            beside=other,
            datasets=[dataset.path.name for dataset in datasets],
            missing=missing,
            asked=_asked(receipts, table.hardware) if receipts else (),
            track=lambda problems: progress.track(problems, "model", len(problems)),
        )
    page = as_page(data).encode()
    write(output, page)
    parts = [counted(len(table.entries), "row"), *([counted(len(first.cases), "problem")] if datasets else [])]
    say(printable(f"{output}: {', '.join(parts)}, {len(page)} bytes"), err=is_standard(output))
    return arguments.say_losses(datasets)


def _say_missing(table: Table, datasets: Sequence[Dataset]) -> int:
    """Print and count the datasets that the table was built from and that are not given, if some of them are."""
    from diode_lut.contribute.judge import datasets_beside
    from diode_lut.decide.sources import shown

    given = {f"sha256:{dataset.digest}" for dataset in datasets}
    sources = table.provenance.get("datasets", ())
    missing = [digest for digest in sources if digest not in given]
    if len(missing) == len(sources):
        return 0  # these timings are of other problems on purpose
    if missing:
        beside = datasets_beside(table.path) if table.path is not None else {}
        names = [shown(beside[each].path) if each in beside else each[: len("sha256:") + 12] for each in missing[:3]]
        listed = ", ".join([*names, *(["..."] if len(missing) > 3 else [])])
        number = f"{len(missing)} of the {len(sources)} datasets that the table was built from"
        text = f"{number} {'is' if len(missing) == 1 else 'are'} not given: {listed}"
        remedy = "give all of them, or the gain and regret may not be those of the table"
        say(printable(f"note: {text} ({remedy})"), err=True)
    return len(missing)


def _asked(receipts: tuple[arguments.Typed, ...], hardware: Hardware) -> list[AskedProblem]:
    """Return the questions on this architecture, the most frequent first. ReceiptError if there are none."""
    from diode_lut.receipts import merge_receipts, read_receipt
    from diode_lut.report import AskedProblem

    merged = merge_receipts(read_receipt(*each[:2]) for each in receipts)
    devices = [device for found, device in merged.devices.items() if found.same_arch(hardware)]
    hits = [AskedProblem(hit.problem, calls, hit.tier) for each in devices for hit, calls in each.hits.items()]
    misses = [AskedProblem(miss.problem, calls, "") for each in devices for miss, calls in each.misses.items()]
    if not hits and not misses:
        found = ", ".join(map(str, merged.devices)) or "no device"
        raise ReceiptError(f"{receipts[0].path}: nothing was asked on {hardware} (the receipt is of: {found})")
    return sorted([*hits, *misses], key=lambda asked: (-asked.calls, asked))


_FORMATS = {"text": "diode_lut.receipts.summary:as_text", "json": "diode_lut.receipts.summary:as_json"}


@click.command("receipt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=arguments.FILE)
@click.option("--output", "-o", type=Output(RECEIPT), help="Write the sum as one receipt to this file.")
@format_option(*_FORMATS, about="A report for people, or JSON with the figures and all misses.")
def receipt_command(files: tuple[arguments.Typed, ...], output: Path | None, form: str) -> None:
    """Sum up the questions of programs, the answers, and the misses.

    A program writes a receipt if it runs with DIODE_LUT_RECEIPT=FILE, or under `run`. For each device the report shows
    how many calls each table and model answered, and the misses, by the time that they may have cost: an estimate from
    a roofline and from the model's expected saving. `collect --problems` takes receipts.
    """
    from diode_lut.receipts import merge_receipts, read_receipt, receipt_bytes

    merged = merge_receipts(read_receipt(*each[:2]) for each in files)
    if output is not None:
        write(output, receipt_bytes(merged))
    say(resolve_name(_FORMATS[form])(merged), err=output is not None and is_standard(output))
