"""``show``: a table, or a model's header, in words."""

from __future__ import annotations

from pathlib import Path

import click

from diode_lut.bounded import open_regular
from diode_lut.cli.output import say


@click.command("show")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def show_command(file: Path) -> None:
    """Print a table in words, a line for each row and one for each kernel; of a model, the metadata and the tensors.

    Equal tables are printed equally, however they are written.
    """
    from diode_lut.safetensors_header import header_in_words
    from diode_lut.table import read_table
    from diode_lut.table.as_text import as_text

    with open_regular(file) as opened:
        is_json = opened.read(64).lstrip().startswith(b"{")
    say(as_text(read_table(file)) if is_json else header_in_words(file))
