"""The commands ``report`` and ``receipt``."""

from __future__ import annotations

import os
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from diode_lut.cli.output import is_standard, progress_bars, say, write
from diode_lut.cli.typed import FILE, OUTPUT, TABLE, Typed
from diode_lut.domain.errors import SettingError, install_command
from diode_lut.domain.printable import printable

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset
    from diode_lut.evaluate import Evaluation
    from diode_lut.table import Table


@click.command("report")
@click.argument("table_file", metavar="TABLE", type=TABLE)
@click.argument("inputs", metavar="[DATASET]...", nargs=-1, type=FILE)
@click.option("-o", "--output", metavar="OUT", required=True, type=OUTPUT, help="The page to write: NAME.html.")
@click.option(
    "--link-base",
    metavar="URL",
    help="URL of the table's directory, for links to the table's lines: "
    "https://github.com/OWNER/NAME/blob/main/tables.  [default: relative to OUT]",
)
def report_command(table_file: Typed, inputs: tuple[Typed, ...], output: Path, link_base: str | None) -> None:
    """Write a page that shows what a table covers, which template wins where, and the gain over aten.

    With datasets the page also shows each measured problem and the regret of its answer. The page needs no network.
    """
    from diode_lut.cli.inputs import end_with_losses, read_datasets_for
    from diode_lut.selection.catalog import open_table
    from diode_lut.table.read import read_bytes

    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the page to")
    file = table_file.read(read_bytes)
    table = open_table(table_file.path, file)
    datasets = read_datasets_for(table, inputs)
    try:
        from diode_lut.report import as_data, as_page
    except ModuleNotFoundError as error:
        raise SettingError(f"report needs {error.name}: {install_command('report')}") from error
    evaluation = _evaluation(table, datasets) if datasets else None
    link = _link(table_file.path, output, link_base)
    names = [dataset.path.name for dataset in datasets]
    page = as_page(as_data(table, evaluation, link=link, datasets=names, file=file))
    write(output, page.encode())
    problems = f", {len(evaluation.cases)} problems" if evaluation else ""
    say(
        printable(f"{output}: {len(table.entries)} rows{problems}, {len(page.encode())} bytes"), err=is_standard(output)
    )
    end_with_losses(datasets)


def _evaluation(table: Table, datasets: list[Dataset]) -> Evaluation:
    from diode_lut.evaluate import evaluate
    from diode_lut.selection.sources import TableSource

    with progress_bars() as progress:
        records = (record for each in datasets for record in progress.track(each, each.path.name))
        return evaluate(TableSource(table), records)


def _link(table_file: Path, output: Path, base: str | None) -> str:
    """The URL of the table's file, for links on the page."""
    if base is not None:
        return f"{base.rstrip('/')}/{quote(table_file.name)}"
    return quote(Path(os.path.relpath(table_file.resolve(), output.resolve().parent)).as_posix())


_FORMATS = {"text": "diode_lut.receipt.summary:as_text", "json": "diode_lut.receipt.summary:as_json"}


@click.command("receipt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--output", "-o", type=OUTPUT, help="Write the sum as one receipt to this file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="A report for people, or JSON with the figures and all misses.",
)
def receipt_command(files: tuple[Typed, ...], output: Path | None, form: str) -> None:
    """Sum up receipts, which programs write that run with DIODE_LUT_RECEIPT=FILE.

    Per hardware it shows how many calls each table and model answered, and the misses, sorted by the time that they may
    have cost. That is the share of a roofline time that the model expects to save, or a typical share. Receipts can be
    given to `collect --problems`.
    """
    from diode_lut.receipt.file import read_receipt, receipt_bytes
    from diode_lut.receipt.receipt import merge_receipts

    merged = merge_receipts(read_receipt(*each[:2]) for each in files)
    if output is not None:
        write(output, receipt_bytes(merged))
    say(resolve_name(_FORMATS[form])(merged), err=output is not None and is_standard(output))
