"""``evaluate``: what a table's answers cost, on measured problems."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diode_lut.errors import SettingError

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset
    from diode_lut.evaluate import Evaluation
    from diode_lut.table import Table

_FILE = click.Path(dir_okay=False, path_type=Path)
_WIDTH = 120
"""Columns where the output is no terminal."""


@click.command("evaluate")
@click.argument("table_file", metavar="TABLE", type=_FILE)
@click.argument("inputs", metavar="DATASET...", nargs=-1, required=True, type=_FILE)
@click.option(
    "--against",
    metavar="CONFIG",
    default="aten",
    show_default=True,
    help="What gains are over: a config, written as explain writes it.",
)
@click.option("--json", "json_file", metavar="FILE", type=_FILE, help="Write all figures there, too.")
@click.option(
    "--picture", metavar="FILE", type=_FILE, help="Draw the regrets and gains there: a .png, .svg or .pdf file."
)
def evaluate_command(
    table_file: Path, inputs: tuple[Path, ...], against: str, json_file: Path | None, picture: Path | None
) -> None:
    """Show what the table's first choices cost on the problems of datasets.

    They are compared with aten and with the best config that was measured for each problem.
    """
    from rich.console import Console
    from rich.progress import Progress

    from diode_lut.catalog import open_table
    from diode_lut.cli.inputs import read_datasets_for
    from diode_lut.evaluate import answers_of, evaluate
    from diode_lut.evaluate.as_text import AsText

    table = open_table(table_file)
    datasets = read_datasets_for(table, inputs)
    if picture is not None:
        _check_picture(picture)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        records = (record for each in datasets for record in progress.track(each, description=each.path.name))
        evaluation = evaluate(answers_of(table), records, against)
    Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False).print(AsText(evaluation))
    if json_file is not None:
        _write_json(json_file, evaluation, table, datasets)
    if picture is not None:
        from diode_lut.evaluate.as_picture import save_picture

        save_picture(evaluation, picture, f"{table_file.name} on {', '.join(each.path.name for each in datasets)}")


def _check_picture(path: Path) -> None:
    """Before the work is done: SettingError if it could not be drawn."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise SettingError("--picture needs matplotlib: pip install diode-lut[report]") from error
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise SettingError(f"--picture: {path.name}: its name must end with one of .{', .'.join(sorted(formats))}")


def _write_json(path: Path, evaluation: Evaluation, table: Table, datasets: Sequence[Dataset]) -> None:
    import orjson

    from diode_lut.evaluate.as_json import as_json
    from diode_lut.files import write_atomically

    origin: dict[str, Any] = {
        "table": f"sha256:{table.digest}",
        "datasets": [f"sha256:{dataset.digest}" for dataset in datasets],
        "hardware": str(table.hardware),
        "rows": len(table.entries),
    }
    write_atomically(path, orjson.dumps({**origin, **as_json(evaluation)}, option=orjson.OPT_INDENT_2) + b"\n")
