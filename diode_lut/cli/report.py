"""``report``: a page that shows a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from diode_lut.cli.output import progress_bars, say
from diode_lut.errors import SettingError
from diode_lut.printable import printable

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset
    from diode_lut.evaluate import Evaluation
    from diode_lut.table import Table

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("table_file", metavar="TABLE", type=_FILE)
@click.argument("inputs", metavar="[DATASET]...", nargs=-1, type=_FILE)
@click.option("-o", "--output", metavar="OUT", required=True, type=_FILE, help="The page to write: NAME.html.")
@click.option(
    "--link-base",
    metavar="URL",
    help="Where the table's directory can be seen, for the links to its lines: "
    "https://github.com/OWNER/NAME/blob/main/tables.  [default: relative to OUT]",
)
def report_command(table_file: Path, inputs: tuple[Path, ...], output: Path, link_base: str | None) -> None:
    """Write a page that shows what a table covers, which template wins where, and what that gains over aten.

    With datasets it also shows each measured problem, and how far from the best config its answer is. The page needs
    no network.
    """
    from diode_lut.catalog import open_table
    from diode_lut.cli.inputs import end_with_losses, read_datasets_for
    from diode_lut.files import write_atomically

    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the page to")
    table = open_table(table_file)
    datasets = read_datasets_for(table, inputs)
    try:
        from diode_lut.report import as_data, as_page
    except ModuleNotFoundError as error:
        raise SettingError(f"report needs {error.name}: pip install diode-lut[report]") from error
    evaluation = _evaluation(table, datasets) if datasets else None
    link = _link(table_file, output, link_base)
    page = as_page(as_data(table, evaluation, link=link, datasets=[dataset.path.name for dataset in datasets]))
    write_atomically(output, page.encode())
    problems = f", {len(evaluation.cases)} problems" if evaluation else ""
    say(printable(f"{output}: {len(table.entries)} rows{problems}, {len(page.encode())} bytes"))
    end_with_losses(datasets)


def _evaluation(table: Table, datasets: list[Dataset]) -> Evaluation:

    from diode_lut.evaluate import answers_of, evaluate

    with progress_bars() as progress:
        records = (record for each in datasets for record in progress.track(each, each.path.name))
        return evaluate(answers_of(table), records)


def _link(table_file: Path, output: Path, base: str | None) -> str:
    """The URL of the table's file, as seen from the page."""
    if base is not None:
        return f"{base.rstrip('/')}/{quote(table_file.name)}"
    return quote(Path(os.path.relpath(table_file.resolve(), output.resolve().parent)).as_posix())
