"""The commands ``report`` and ``receipt``."""

from __future__ import annotations

import os
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from diode_lut.cli.output import is_standard, progress_bars, say, write
from diode_lut.cli.typed import FILE, PAGE_OUTPUT, RECEIPT, TABLE, Output, Typed
from diode_lut.domain.errors import SettingError, install_command
from diode_lut.domain.printable import printable

if TYPE_CHECKING:
    from diode_lut.build.measurements import Measurements
    from diode_lut.dataset import Dataset
    from diode_lut.domain.hardware import Hardware
    from diode_lut.evaluate import Evaluation
    from diode_lut.model.ranking import Model
    from diode_lut.report import Asked, Side
    from diode_lut.table import Table


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
    from diode_lut.cli.inputs import end_with_losses, read_datasets_for, require_same_device
    from diode_lut.selection.catalog import open_table
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
    from diode_lut.evaluate import evaluate_on
    from diode_lut.selection.sources import Threshold
    from diode_lut.selection.tiers import source_of
    from diode_lut.settings import config

    if measurements is None:
        return None
    return evaluate_on(source_of(chooser), measurements, threshold=Threshold.of(config))


def _beside(typed: Typed, measurements: Measurements | None, link: str) -> Side:
    from diode_lut.report import Side
    from diode_lut.selection.catalog import is_model, open_model, open_table
    from diode_lut.table.read import read_bytes

    if is_model(typed.path):
        model = open_model(typed.file)
        return Side(model, _evaluation(model, measurements))
    file = typed.read(read_bytes)
    table = open_table(typed.path, file)
    return Side(table, _evaluation(table, measurements), link, file)


def _asked(receipts: tuple[Typed, ...], hardware: Hardware) -> list[Asked]:
    """What programs asked for on devices of this architecture, the most frequent first; ReceiptError if nothing."""
    from diode_lut.domain.errors import ReceiptError
    from diode_lut.receipt.read import read_receipt
    from diode_lut.receipt.receipt import merge_receipts
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


_FORMATS = {"text": "diode_lut.receipt.summary:as_text", "json": "diode_lut.receipt.summary:as_json"}


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
    from diode_lut.receipt.read import read_receipt
    from diode_lut.receipt.receipt import merge_receipts
    from diode_lut.receipt.write import receipt_bytes

    merged = merge_receipts(read_receipt(*each[:2]) for each in files)
    if output is not None:
        write(output, receipt_bytes(merged))
    say(resolve_name(_FORMATS[form])(merged), err=output is not None and is_standard(output))
